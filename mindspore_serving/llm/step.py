"""What one step of the engine computes: which new tokens of which sequences, and where their
keys and values go.  Plain data that the scheduler makes and a runner computes.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from mindspore_serving.errors import Code, ServingError

Tokens = npt.NDArray[np.int32]
Logits = npt.NDArray[np.float32]
Vectors = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Features:
    """Vectors in place of the embeddings of some of a row's tokens: those of images.

    `places` are int64 [n], from the row's first new token on; `vectors` float32 [n, hidden_size].
    With `is_bidirectional`, adjacent places belong to one image, whose tokens attend to each other
    in both directions; a row does not end before the last of them.
    """

    places: npt.NDArray[np.int64]
    vectors: Vectors
    is_bidirectional: bool = False

    def ends(self) -> npt.NDArray[np.int64]:
        """For each place, that behind the last of those side by side with it."""
        lasts = np.append(np.flatnonzero(np.diff(self.places) != 1), len(self.places) - 1)
        ends: npt.NDArray[np.int64] = self.places[lasts] + 1
        return np.repeat(ends, np.diff(lasts, prepend=-1))


@dataclass(frozen=True, slots=True)
class StateSlots:
    """Where the state of a sequence is, in a model that has more than keys and values.

    A step reads slot `read` (-1: the text begins, nothing is read) and leaves the state after its
    last token in `write`.  That after its first `kept` new tokens, not all, is left in `snapshot`;
    0 and -1 are for none.  `read` may be `snapshot`, or `write` where there is no snapshot.
    """

    read: int
    write: int
    snapshot: int = -1
    kept: int = 0


@dataclass(frozen=True, slots=True)
class Row:
    """The new tokens of one sequence.

    `tokens` are at positions `start` .. `start + len(tokens) - 1`; what is before `start` is in
    the cache already.  `blocks` are the sequence's cache blocks in order, at least enough to hold
    every position.  The logits of the last `num_logits` tokens are wanted; 0 for a chunk of a
    prompt that is not its last.  `adapter` is the number of a LoRA adapter, 0 for none.
    `state` is for models with state slots; without it a text that is computed at once leaves none.
    `features` are only for a runner of a model that takes images.
    `is_long`: the sequence is longer than the runner's `rope_switch`, or its prompt will be; its
    keys in the cache must have been computed so as well.
    """

    tokens: Sequence[int]
    start: int
    blocks: Sequence[int]
    num_logits: int
    adapter: int = 0
    state: StateSlots | None = None
    features: Features | None = None
    is_long: bool = False


@dataclass(frozen=True, slots=True)
class Step:
    """One forward pass.  `copies` (from block, to block) are to be done before it."""

    rows: tuple[Row, ...]
    copies: tuple[tuple[int, int], ...] = ()
    num_tokens: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "num_tokens", sum(len(row.tokens) for row in self.rows))

    def features(self) -> Features | None:
        """Those of all rows, with places from the step's first token on; None if there are none."""
        places, vectors, begin, is_bidirectional = [], [], 0, False
        for row in self.rows:
            if row.features is not None:
                places.append(row.features.places + begin)
                vectors.append(row.features.vectors)
                is_bidirectional = row.features.is_bidirectional
            begin += len(row.tokens)
        if not places:
            return None
        return Features(np.concatenate(places), np.concatenate(vectors), is_bidirectional)


class RunnerLost(ServingError):
    """The runner has lost a part of itself and can compute no further step."""

    code = Code.SYSTEM_ERROR


class Runner(Protocol):
    """A model with its cache, ready to run steps.  Used by one thread."""

    block_size: int  # tokens per cache block
    num_blocks: int
    num_slots: int  # of states beside keys and values; 0 if the model has none
    vocab_size: int
    max_model_len: int
    adapters: Collection[int]  # LoRA adapters that rows may name
    hidden_size: int  # of the vectors of an `EmbeddingRunner`; 0 if it is none
    rope_switch: int  # tokens beyond which all keys of a sequence are others; 0: they never are

    def run(self, step: Step) -> Logits:
        """Compute `step`; float32 [total num_logits, vocab_size], rows in order.

        The result may be overwritten by the next `run`.  Raises ServingError; a row whose blocks
        are too few or out of range is refused before anything is computed.  After RunnerLost no
        step can be computed.
        """
        ...

    def close(self) -> None: ...


class EmbeddingRunner(Runner, Protocol):
    """A runner that also gives what the logits are computed from."""

    def embed(self, step: Step) -> Vectors:
        """As `run`, but the final normalised hidden state: float32 [total num_logits, hidden_size],
        which may be overwritten by the next step.
        """
        ...


class AdaptedRunner(Runner, Protocol):
    """A runner of a model that LoRA adapters may change.  `base` says what; None if none may."""

    base: Any

    def load_adapter(self, adapter: int, changes: Any) -> None:
        """From now on rows may name `adapter`, over 0; `changes` are those of `runtimes.adapters`
        to the `base`.
        """
        ...

    def unload_adapter(self, adapter: int) -> None:
        """Give its memory back; no row may name it any more."""
        ...


class StoringRunner(Runner, Protocol):
    """A runner whose cache blocks can be kept elsewhere and put back."""

    block_bytes: int  # of all keys and values of a block
    block_format: str  # what they depend on beside tokens, model and options

    def read_block(self, block: int) -> memoryview:
        """A copy of the contents, `block_bytes` unsigned bytes."""
        ...

    def write_block(self, block: int, content: memoryview) -> None:
        """Have `block` hold what was read before."""
        ...


class EncoderRunner(Protocol):
    """A model that embeds and does not generate: no cache, and no steps.  Used by one thread."""

    vocab_size: int
    hidden_size: int
    max_model_len: int  # tokens of a prompt at most
    num_types: int  # rows of the type table; 1 without one

    def run(
        self, prompts: Sequence[Sequence[int]], types: Sequence[Sequence[int]] | None = None
    ) -> Vectors:
        """The final hidden state of every token, float32 [tokens, hidden_size], prompt after
        prompt; at least one, none empty.  `types` are rows of the type table, one for each token;
        None is zeros.  The next `run` may overwrite the result.  Raises ServingError.
        """
        ...

    def close(self) -> None: ...
