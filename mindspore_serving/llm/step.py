"""A step of the engine: which new tokens of which sequences it computes, and in which cache blocks.

Plain data that the scheduler makes and a runner computes.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
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

    `positions` are int64 [n], counted from the row's first new token; `vectors` float32 [n,
    `ModelSpec.image_features`].  With `is_bidirectional`, adjacent positions are of one image,
    whose tokens attend to each other in both directions; a row does not end within an image.
    """

    positions: npt.NDArray[np.int64]
    vectors: Vectors
    is_bidirectional: bool = False

    def cut(self, count: int) -> tuple["Features | None", "Features | None"]:
        """Split those of a row after its first `count` tokens; None for a part without any."""
        middle = int(np.searchsorted(self.positions, count))
        parts = (slice(middle), 0), (slice(middle, None), count)
        first, second = (
            replace(self, positions=self.positions[part] - shift, vectors=self.vectors[part])
            for part, shift in parts
        )
        return (first if middle else None), (second if len(second.positions) else None)

    def ends(self) -> npt.NDArray[np.int64]:
        """Return for each position that behind the last position adjacent to it."""
        lasts = np.append(np.flatnonzero(np.diff(self.positions) != 1), len(self.positions) - 1)
        ends: npt.NDArray[np.int64] = self.positions[lasts] + 1
        return np.repeat(ends, np.diff(lasts, prepend=-1))


@dataclass(frozen=True, slots=True)
class StateSlots:
    """Slots for the state of a sequence, in a model that has more than keys and values.

    A step reads slot `read` (-1: the text begins, nothing is read) and leaves the state after its
    last token in `write`.  The state after its first `kept` new tokens, not all, is left in
    `snapshot`; 0 and -1 are for none.  `read` may be `snapshot`, or `write` where there is no
    snapshot.
    """

    read: int
    write: int
    snapshot: int = -1
    kept: int = 0


@dataclass(frozen=True, slots=True)
class Row:
    """New tokens of one sequence.

    `tokens` are at positions `start` .. `start + len(tokens) - 1`; tokens before `start` are in the
    cache already.  `blocks` are the sequence's cache blocks in order, at least enough to hold every
    position.  The logits of the last `num_logits` tokens are returned; 0 for a chunk of a prompt
    that is not its last.  `adapter` is the number of a LoRA adapter, 0 for none.  `state` is for
    models with state slots; without it a text that is computed at once leaves none.  `features` are
    only for a runner of a model that takes images.  With `uses_long_rope` the sequence is longer
    than the runner's `rope_switch`, or its prompt will be; its keys in the cache must have been
    computed so as well.  `rope_positions` are int32 [tokens, 3]: positions in time, height and
    width, in a prompt with images that have their own; None if all three are those of the tokens.
    The first `num_encoded` tokens of the sequence are for an encoder.

    With `parents` it is a step of a beam search: each of `tokens` continues another answer at
    position `start`, that of the step before with the number in `parents`; all have logits.
    """

    tokens: Sequence[int]
    start: int
    blocks: Sequence[int]
    num_logits: int
    adapter: int = 0
    state: StateSlots | None = None
    features: Features | None = None
    uses_long_rope: bool = False
    rope_positions: Tokens | None = None
    num_encoded: int = 0
    parents: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class Step:
    """A forward pass.  `copies` (from block, to block) are done before it."""

    rows: tuple[Row, ...]
    copies: tuple[tuple[int, int], ...] = ()
    num_tokens: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "num_tokens", sum(len(row.tokens) for row in self.rows))

    def features(self) -> Features | None:
        """Return the features of all rows, with positions counted from the step's first token.

        None if there are none.
        """
        positions, vectors, begin, is_bidirectional = [], [], 0, False
        for row in self.rows:
            if row.features is not None:
                positions.append(row.features.positions + begin)
                vectors.append(row.features.vectors)
                is_bidirectional = row.features.is_bidirectional
            begin += len(row.tokens)
        if not positions:
            return None
        return Features(np.concatenate(positions), np.concatenate(vectors), is_bidirectional)

    def rope_positions(self) -> Tokens | None:
        """Return `Row.rope_positions` of all rows, [num_tokens, 3]; None if no row has its own."""
        if all(row.rope_positions is None for row in self.rows):
            return None
        return np.concatenate([_rope_positions(row) for row in self.rows])


def _rope_positions(row: Row) -> Tokens:
    if row.rope_positions is not None:
        return row.rope_positions
    positions = np.arange(row.start, row.start + len(row.tokens), dtype=np.int32)
    return np.repeat(positions[:, None], 3, axis=1)


@dataclass(frozen=True, slots=True)
class CacheMemory:
    """Memory of a runner's keys and values, in all ranks.

    `block_bytes` is that of a block, 0 if unknown.  `kept_blocks` is how many may stay in memory
    for later prompts when no sequence uses them; None for all.  `shared_bytes` are what all models
    of a server may keep by default; 0 if the size is the operator's.  With `can_release` the runner
    returns the memory of blocks to the system.  `reason` says what limits the cache.
    """

    block_bytes: int = 0
    kept_blocks: int | None = None
    shared_bytes: int = 0
    can_release: bool = False
    reason: str = ""


class RunnerLost(ServingError):
    """Error of a runner that has lost a part of itself and can compute no further step."""

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
    rope_switch: int  # tokens beyond which all keys of a sequence change; 0: they never do
    cache_memory: CacheMemory

    def run(self, step: Step) -> Logits:
        """Compute `step`; return float32 [total num_logits, vocab_size], rows in order.

        The result may be overwritten by the next `run`.  Raises ServingError; a row whose blocks
        are too few or out of range is refused before anything is computed.  After RunnerLost no
        step can be computed.
        """
        ...

    def release_blocks(self, blocks: Sequence[int]) -> None:
        """Return the memory of `blocks` to the system, if the runner can; it loses their contents.

        Raises RunnerLost.
        """
        ...

    def close(self) -> None: ...


class EncodingRunner(Runner, Protocol):
    """A runner of a model with an encoder, which reads prompts, and a decoder, which answers.

    `answer_start` are the first tokens of the decoder, which belong to no answer; `answer_end`
    ends an answer that has no room for more, None for any token.  No answer has the `bad_words`.
    """

    max_prompt_len: int
    max_answer_len: int
    answer_start: tuple[int, ...]
    answer_end: int | None
    bad_words: tuple[tuple[int, ...], ...]


class HiddenRunner(Runner, Protocol):
    """A runner that keeps the hidden states of its last step."""

    def hidden_states(self) -> Vectors:
        """Return float32 [n, hidden_size], which the next step may overwrite.

        With the option `mtp` they are the final normalised ones of all tokens; those of a
        prediction head are of the tokens with logits.
        """
        ...


class HeadRunner(HiddenRunner, Protocol):
    """A prediction head: its tokens follow those whose hidden states it gets.

    `draft_ids` are the model's tokens by the head's logits; None if they are the same.
    """

    is_head: bool
    draft_ids: npt.NDArray[np.int64] | None

    def compute(self, step: Step, hidden_states: Vectors | None = None) -> Logits:
        """Compute `step` as `run` does, with `hidden_states` of all tokens."""
        ...


class EmbeddingRunner(Runner, Protocol):
    """A runner that also returns what the logits are computed from."""

    def embed(self, step: Step) -> Vectors:
        """Compute `step` as `run`, but return the final normalised hidden states.

        They are float32 [total num_logits, hidden_size], and may be overwritten by the next step.
        """
        ...


@dataclass(frozen=True, slots=True)
class BestLogits:
    """The largest logits of each row, as many of all rows.

    `values` are float32 [rows, n] and `ids` int32 [rows, n], in any order among equals; NaN is
    infinite.  `read_all` returns what `Runner.run` does; only until the next step.
    """

    values: Logits
    ids: Tokens
    read_all: Callable[[], Logits]

    def take(self, rows: Sequence[int]) -> "BestLogits":
        """Return the logits of some rows, in that order."""
        return replace(self, values=self.values[rows], ids=self.ids[rows])


class ChoosingRunner(Runner, Protocol):
    """A runner that can leave the logits on its device, but for the best of each row."""

    max_best: int  # largest `count` of `run_best`; 0 where to read all logits is faster

    def run_best(self, step: Step, count: int) -> BestLogits:
        """Compute `step` as `run`, but return more than `count` of the best logits of each row.

        There is at least one row.
        """
        ...


class OverlappingRunner(Runner, Protocol):
    """A runner that can begin a step before it has the logits of those before.

    It computes steps in order.  `max_in_flight` is how many may be begun and not finished; only
    steps of at most `max_tokens_in_flight` tokens may be begun while others are.
    """

    max_in_flight: int  # 1: `begin` and `finish` are not used
    max_tokens_in_flight: int

    def begin(self, step: Step) -> None:
        """Begin `step`; the row's blocks may change afterwards.  Raises as `run`."""
        ...

    def finish(self) -> Logits:
        """Return the logits of the step begun first, as `run`.  Raises RunnerLost."""
        ...


class AdaptedRunner(Runner, Protocol):
    """A runner of a model that LoRA adapters may change: its `base`; None if none may."""

    base: Any

    def load_adapter(self, adapter: int, changes: Any) -> None:
        """Let rows name `adapter`, a number over 0.

        `changes` are those of `runtimes.adapters` to the `base`.
        """
        ...

    def unload_adapter(self, adapter: int) -> None:
        """Free the adapter's memory; no row may name it any more."""
        ...


class StoringRunner(Runner, Protocol):
    """A runner whose cache blocks can be stored elsewhere and restored."""

    block_bytes: int  # of all keys and values of a block
    block_format: str  # what their contents depend on beside tokens, model and options

    def read_block(self, block: int) -> memoryview:
        """Return a copy of the contents, `block_bytes` unsigned bytes."""
        ...

    def write_block(self, block: int, content: memoryview) -> None:
        """Restore the contents of `block` that were read before."""
        ...


class StatefulRunner(StoringRunner, Protocol):
    """A `StoringRunner` with state slots that can be stored as well."""

    state_bytes: int  # of a slot

    def read_state(self, slot: int) -> memoryview:
        """Return a copy of the state in a slot, `state_bytes` unsigned bytes."""
        ...

    def write_state(self, slot: int, content: memoryview) -> None:
        """Restore a state that was read before."""
        ...


class EncoderRunner(Protocol):
    """A model that embeds and does not generate: no cache, and no steps.  Used by one thread."""

    vocab_size: int
    hidden_size: int
    max_model_len: int  # maximum number of tokens of a prompt
    num_types: int  # rows of the type table; 1 without one

    def run(
        self, prompts: Sequence[Sequence[int]], types: Sequence[Sequence[int]] | None = None
    ) -> Vectors:
        """Return the final hidden state of every token, float32 [tokens, hidden_size].

        Prompts follow one another; there is at least one, and none is empty.  `types` are rows of
        the type table, one for each token; None is zeros.  The next `run` may overwrite the result.
        Raises ServingError.
        """
        ...

    def close(self) -> None: ...
