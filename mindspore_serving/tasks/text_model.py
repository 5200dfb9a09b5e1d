"""Text models as a task uses them, and the model over the server's own encoders.

It knows no outputs of tasks.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from mindspore_serving.llm.checkpoint.pooling import Pooling, read_pooling
from mindspore_serving.llm.checkpoint.weights import Checkpoint
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.engine.heads import ModuleHead, masked_head, token_head
from mindspore_serving.llm.engine.pooler import Classifier, check_head, open_classifier
from mindspore_serving.llm.models.layouts import open_converted
from mindspore_serving.llm.runtimes import open_encoder
from mindspore_serving.llm.step import EncoderRunner, Vectors
from mindspore_serving.llm.tokenization.tokenizer import TokenizedInput


class TextModel(Protocol):
    """Text model with the head of its task.  Used by one thread."""

    max_length: int  # max tokens of a text
    num_types: int
    vocab_size: int
    num_outputs: int  # of the head; 0 without one
    pooling: Pooling  # of states to a vector

    def run(self, texts: Sequence[TokenizedInput], positions: Sequence[list[int]]) -> list[Vectors]:
        """Compute one batch: for each text, the outputs at its `positions`.  Raises ServingError.

        They are logits [positions, num_outputs], or without a head states [positions, hidden size].
        """
        ...

    def close(self) -> None: ...


class EncoderTextModel:
    """`TextModel` over an encoder runner of this package."""

    def __init__(self, task: str, runner: EncoderRunner, checkpoint: Checkpoint) -> None:
        self.max_length = runner.max_model_len
        self.num_types = runner.num_types
        self.vocab_size = runner.vocab_size
        self._runner = runner
        self.pooling = Pooling()
        self._head: ModuleHead | None = None
        self._classifier: Classifier | None = None
        if task == "text-classification":
            self._classifier = open_classifier(checkpoint, runner.hidden_size)
            self.num_outputs = self._classifier.head.num_outputs
        elif task == "feature-extraction":
            self.pooling = read_pooling(checkpoint.directory, runner.hidden_size)
            self.num_outputs = 0
        else:
            self._head = _open_head(task, checkpoint)
            check_head(self._head, runner.hidden_size)
            self.num_outputs = self._head.num_outputs

    @classmethod
    def open(cls, directory: Path, task: str, runtime: str, config: EngineConfig) -> TextModel:
        """Open the model.

        Raises StartError: a broken or unknown checkpoint, or one that contradicts config.json.
        """
        runner = open_encoder(directory, runtime, config)
        try:
            return cls(task, runner, open_converted(directory))
        except BaseException:
            runner.close()
            raise

    def run(self, texts: Sequence[TokenizedInput], positions: Sequence[list[int]]) -> list[Vectors]:
        states = self._runner.run([text.ids for text in texts], [text.types for text in texts])
        outputs, start = [], 0
        for text, indices in zip(texts, positions, strict=True):
            text_states = states[start : start + len(text.ids)]
            if self._classifier is not None:
                outputs.append(self._classifier.pool(text_states, [len(text.ids)]))
            else:
                rows = text_states[indices]  # a copy
                outputs.append(rows if self._head is None else self._head.apply(rows))
            start += len(text.ids)
        return outputs

    def close(self) -> None:
        self._runner.close()


def _open_head(task: str, checkpoint: Checkpoint) -> ModuleHead:
    if task == "token-classification":
        return token_head(checkpoint)
    return masked_head(checkpoint)
