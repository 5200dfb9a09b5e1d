"""Poolers: from the hidden states of a text to a vector, or to a classifier's logits.

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
from mindspore_serving.llm.engine.prompt_images import PromptImages
from mindspore_serving.llm.step import Vectors

TOKEN_BYTES = 256  # of an image that waits: the limit of waiting tokens bounds their memory


@dataclass(frozen=True, slots=True)
class PromptText:
    """Tokens of a text, or of a pair of texts; or an image.

    `types` are rows of the type table, None for zeros.  `normalizes` scales its vector to length 1;
    None as the model's directory says.  `image` has the inputs of a vision tower by name.
    `images` are those in the text, for a model that generates.
    """

    ids: list[int]
    types: list[int] | None = None
    normalizes: bool | None = None
    image: Mapping[str, Any] | None = None
    images: PromptImages | None = None

    @property
    def num_tokens(self) -> int:
        """Number of tokens; an image counts as many as take its memory."""
        if self.image is None:
            return len(self.ids)
        return 1 + sum(int(array.nbytes) for array in self.image.values()) // TOKEN_BYTES


class Pooler(Protocol):
    """Pooling of states, or a classifier behind it."""

    @property
    def modes(self) -> tuple[str, ...]:
        """Names of sentence-transformers for how the states of a text are pooled."""
        ...

    @property
    def labels(self) -> Labels | None:
        """Labels of a classifier."""
        ...

    @property
    def normalizes(self) -> bool:
        """Default of `PromptText.normalizes`."""
        ...

    def size(self, hidden_size: int) -> int:
        """Return how many numbers a text has."""
        ...

    def pool(self, states: Vectors, lengths: Sequence[int]) -> Vectors:
        """Return float32 [texts, size], not scaled, of states [tokens, hidden_size].

        `lengths` are how many of the states each text has, in order.
        """
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


def pool_texts(
    pooler: Pooler, states: Vectors, lengths: Sequence[int], texts: Sequence[PromptText]
) -> Vectors:
    """Return the vectors of `texts`, each scaled to length 1 if it says so.

    `lengths` are how many of `states` each text has.
    """
    vectors = pooler.pool(states, lengths)
    scales = [pooler.normalizes if text.normalizes is None else text.normalizes for text in texts]
    if not any(scales):
        return vectors
    units = unit_vectors(vectors)
    return units if all(scales) else np.where(np.array(scales)[:, None], units, vectors)


def open_pooler(checkpoint: Checkpoint, hidden_size: int, *, classifies: bool) -> Pooler:
    """Return the pooler of an encoder.

    Raises StartError for files that are broken or contradict each other.
    """
    if classifies:
        return open_classifier(checkpoint, hidden_size)
    return read_pooling(checkpoint.directory, hidden_size)


def open_classifier(checkpoint: Checkpoint, hidden_size: int) -> Classifier:
    """Return the classifier behind an encoder.  Raises StartError."""
    head = sequence_head(checkpoint)
    check_head(head, hidden_size)
    pooling = Pooling((_pooling_mode(checkpoint),), normalizes=False)
    return Classifier(pooling, head, score_labels(checkpoint.config, head))


def score_labels(config: Mapping[str, Any], head: ModuleHead) -> Labels:
    """Return the labels of a head with the scores of a cross-encoder.  Raises StartError."""
    labels = read_labels(config, head.num_outputs)
    return Labels(labels.names, read_score_problem(config, labels))


def check_head(head: ModuleHead, hidden_size: int) -> None:
    """Raise StartError unless the head takes states of size `hidden_size`."""
    try:
        head.apply(np.zeros((1, hidden_size), np.float32))
    except ValueError as error:
        raise StartError(
            f"the tensors of the head do not fit hidden_size {hidden_size}: {error}"
        ) from error


def _pooling_mode(checkpoint: Checkpoint) -> str:
    """Return which states a classifier takes: the first token's, unless config.json has another."""
    mode = checkpoint.config.get("classifier_pooling", "cls")
    if mode not in ("cls", "mean"):
        raise StartError(f"config.json has classifier_pooling {mode!r}, expected cls or mean")
    return str(mode)
