"""Models of texts as a task uses them, and the one over our own encoders.  Knows no answers."""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from mindspore_serving.llm.checkpoint.pooling import Pooling, read_pooling
from mindspore_serving.llm.checkpoint.weights import Checkpoint
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.engine.heads import ModuleHead, masked_head, token_head
from mindspore_serving.llm.engine.pooler import Classifier, check_head, open_classifier
from mindspore_serving.llm.models.layouts import open_arranged
from mindspore_serving.llm.runtimes import open_encoder
from mindspore_serving.llm.step import EncoderRunner, Vectors
from mindspore_serving.llm.tokenization.tokenizer import TokenizedInput


class TextModel(Protocol):
    """A model of texts with the head of its task.  Used by one thread."""

    max_length: int  # tokens of a text at most
    num_types: int
    vocab_size: int
    num_outputs: int  # of the head; 0 without one
    pooling: Pooling  # of states to a vector

    def run(self, texts: Sequence[TokenizedInput], places: Sequence[list[int]]) -> list[Vectors]:
        """Of each text the logits [places, num_outputs] of those of its tokens; without a head
        their states [places, hidden size].  One batch.  Raises ServingError.
        """
        ...

    def close(self) -> None: ...


class EncoderTextModel:
    """A `TextModel` over a runner of our own."""

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
        """Raises StartError: a broken or unknown checkpoint, one that contradicts config.json."""
        runner = open_encoder(directory, runtime, config)
        try:
            return cls(task, runner, open_arranged(directory))
        except BaseException:
            runner.close()
            raise

    def run(self, texts: Sequence[TokenizedInput], places: Sequence[list[int]]) -> list[Vectors]:
        states = self._runner.run([text.ids for text in texts], [text.types for text in texts])
        found, start = [], 0
        for text, wanted in zip(texts, places, strict=True):
            whole = states[start : start + len(text.ids)]
            if self._classifier is not None:
                found.append(self._classifier.pool(whole, [len(text.ids)]))
            else:
                rows = whole[wanted]  # a copy
                found.append(rows if self._head is None else self._head.apply(rows))
            start += len(text.ids)
        return found

    def close(self) -> None:
        self._runner.close()


def _open_head(task: str, checkpoint: Checkpoint) -> ModuleHead:
    if task == "token-classification":
        return token_head(checkpoint)
    return masked_head(checkpoint)
