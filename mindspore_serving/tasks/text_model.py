"""Models of texts as a task uses them, and the one over our own encoders.  Knows no answers."""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

from mindspore_serving.errors import StartError
from mindspore_serving.llm.checkpoint.pooling import Pooling, read_pooling
from mindspore_serving.llm.checkpoint.weights import Checkpoint
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.models.bert import from_config
from mindspore_serving.llm.runtimes import open_encoder
from mindspore_serving.llm.step import EncoderRunner, Vectors
from mindspore_serving.llm.tokenization.tokenizer import TokenizedInput
from mindspore_serving.tasks.heads import Head, masked_head, sequence_head, token_head


class TextModel(Protocol):
    """A model of texts with the head of its task.  Used by one thread."""

    max_length: int  # tokens of a text at most
    num_types: int
    vocab_size: int
    num_outputs: int  # of the head; 0 without one
    pooling: Pooling  # of states to a vector

    def run(self, texts: Sequence[TokenizedInput], places: Sequence[list[int]]) -> list[Vectors]:
        """Of each text the logits [places, num_outputs] of those of its tokens; without a head
        their states [places, hidden size].  One batch.  Raises ServingError."""
        ...

    def close(self) -> None: ...


class EncoderTextModel:
    """A `TextModel` over a runner of our own."""

    def __init__(self, task: str, runner: EncoderRunner, checkpoint: Checkpoint) -> None:
        self.max_length = runner.max_model_len
        self.num_types = runner.num_types
        self.vocab_size = runner.vocab_size
        self._runner = runner
        self._head = _open_head(task, checkpoint)
        self.num_outputs = self._head.num_outputs if self._head else 0
        self.pooling = Pooling()
        if self._head is None:
            self.pooling = read_pooling(checkpoint.directory, runner.hidden_size)
        else:
            _try_out(self._head, runner.hidden_size)

    @classmethod
    def open(cls, directory: Path, task: str, runtime: str, config: EngineConfig) -> TextModel:
        """Raises StartError: a broken or unknown checkpoint, one that contradicts config.json."""
        runner = open_encoder(directory, runtime, config)
        try:
            return cls(task, runner, Checkpoint.open(directory))
        except BaseException:
            runner.close()
            raise

    def run(self, texts: Sequence[TokenizedInput], places: Sequence[list[int]]) -> list[Vectors]:
        states = self._runner.run([text.ids for text in texts], [text.types for text in texts])
        found, start = [], 0
        for text, wanted in zip(texts, places, strict=True):
            rows = states[start : start + len(text.ids)][wanted]  # a copy
            found.append(rows if self._head is None else self._head.apply(rows))
            start += len(text.ids)
        return found

    def close(self) -> None:
        self._runner.close()


def _open_head(task: str, checkpoint: Checkpoint) -> Head | None:
    if task == "text-classification":
        return sequence_head(checkpoint)
    if task == "token-classification":
        return token_head(checkpoint)
    if task == "fill-mask":
        return masked_head(checkpoint, from_config(checkpoint.config))
    return None


def _try_out(head: Head, hidden_size: int) -> None:
    try:
        head.apply(np.zeros((1, hidden_size), np.float32))
    except ValueError as error:
        raise StartError(
            f"the tensors of the head do not fit hidden_size {hidden_size}: {error}"
        ) from error
