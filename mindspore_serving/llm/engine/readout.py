"""What is made of the hidden states of a text: a vector, or a classifier's logits.

Knows no runtime and no queue.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from mindspore_serving.errors import StartError
from mindspore_serving.llm.checkpoint.pooling import Pooling, read_pooling, unit_vectors
from mindspore_serving.llm.checkpoint.weights import Checkpoint
from mindspore_serving.llm.engine.heads import ModuleHead, sequence_head
from mindspore_serving.llm.engine.labels import Labels, read_labels, read_score_problem
from mindspore_serving.llm.step import Vectors


@dataclass(frozen=True, slots=True)
class PromptText:
    """The tokens of a text, or of two.  `types` are rows of the type table, None for zeros.
    `normalizes` scales its vector to length 1; None as the model's directory says.
    """

    ids: list[int]
    types: list[int] | None = None
    normalizes: bool | None = None


class Readout(Protocol):
    """Pooling, or a classifier."""

    @property
    def modes(self) -> tuple[str, ...]:
        """How the states of a text are pooled: names of sentence-transformers."""
        ...

    @property
    def labels(self) -> Labels | None:
        """Those of a classifier."""
        ...

    @property
    def normalizes(self) -> bool:
        """Whether vectors are scaled to length 1 unless a text says otherwise."""
        ...

    def size(self, hidden_size: int) -> int:
        """Numbers of a text."""
        ...

    def pool(self, states: Vectors, lengths: Sequence[int]) -> Vectors:
        """float32 [texts, size] of states [tokens, hidden_size], text after text, not scaled."""
        ...


@dataclass(frozen=True, slots=True)
class Classifier:
    """A head behind pooled states, and the labels of its outputs."""

    pooling: Pooling
    head: ModuleHead
    labels: Labels
    normalizes: bool = False

    @property
    def modes(self) -> tuple[str, ...]:
        return self.pooling.modes

    def size(self, hidden_size: int) -> int:
        return self.head.num_outputs

    def pool(self, states: Vectors, lengths: Sequence[int]) -> Vectors:
        return self.head.apply(self.pooling.pool(states, lengths)).astype(np.float32, copy=False)


def read_out(
    readout: Readout, states: Vectors, lengths: Sequence[int], texts: Sequence[PromptText]
) -> Vectors:
    """What `readout` makes of `texts`, each scaled as it wants to be.  `lengths` are how many
    `states` each has.
    """
    vectors = readout.pool(states, lengths)
    wanted = [readout.normalizes if one.normalizes is None else one.normalizes for one in texts]
    if not any(wanted):
        return vectors
    units = unit_vectors(vectors)
    return units if all(wanted) else np.where(np.array(wanted)[:, None], units, vectors)


def open_readout(checkpoint: Checkpoint, hidden_size: int, *, classifies: bool) -> Readout:
    """Of an encoder.  Raises StartError: files that are broken or contradict each other."""
    if classifies:
        return open_classifier(checkpoint, hidden_size)
    return read_pooling(checkpoint.directory, hidden_size)


def open_classifier(checkpoint: Checkpoint, hidden_size: int) -> Classifier:
    """The classifier behind an encoder.  Raises StartError."""
    head = sequence_head(checkpoint)
    check_head(head, hidden_size)
    pooling = Pooling((_mode(checkpoint),), normalizes=False)
    return Classifier(pooling, head, score_labels(checkpoint.config, head))


def score_labels(config: Mapping[str, Any], head: ModuleHead) -> Labels:
    """The labels of a head, whose scores are those of a cross-encoder.  Raises StartError."""
    labels = read_labels(config, head.num_outputs)
    return Labels(labels.names, read_score_problem(config, labels))


def check_head(head: ModuleHead, hidden_size: int) -> None:
    """Raises StartError unless the head takes states of that size."""
    try:
        head.apply(np.zeros((1, hidden_size), np.float32))
    except ValueError as error:
        raise StartError(
            f"the tensors of the head do not fit hidden_size {hidden_size}: {error}"
        ) from error


def _mode(checkpoint: Checkpoint) -> str:
    """Which states a classifier takes: the first token's, unless config.json has another."""
    found = checkpoint.config.get("classifier_pooling", "cls")
    if found not in ("cls", "mean"):
        raise StartError(f"config.json has classifier_pooling {found!r}, expected cls or mean")
    return str(found)
