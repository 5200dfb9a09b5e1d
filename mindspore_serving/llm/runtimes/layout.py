"""Layout of a step: each token's position, its slot in the cache, its sequence's blocks.

Plain arrays that a runtime copies to its device.  A step that does not fit the cache or the model
is refused here, before anything is computed.  Knows no runtime.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from mindspore_serving.errors import InvalidInputs, ServingError
from mindspore_serving.llm.step import CacheMemory, Features, Row, StateSlots, Step, Tokens

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class RunnerLimits:
    """Capacity of a runner."""

    block_size: int
    num_blocks: int
    vocab_size: int
    max_model_len: int
    adapters: Collection[int] = ()
    num_slots: int = 0  # slots of recurrent states
    memory: CacheMemory = CacheMemory()

    def agreed(self, minimum: Callable[[int], int]) -> "RunnerLimits":
        """Return the limits that every rank can hold, by `minimum` of their numbers."""
        num_blocks, longest = minimum(self.num_blocks), minimum(self.max_model_len)
        num_slots = minimum(self.num_slots)
        kept = self.memory.kept_blocks  # None also of a stage without keys and values
        kept = minimum(self.num_blocks if kept is None else kept)
        memory = replace(self.memory, kept_blocks=kept)
        return replace(
            self, num_blocks=num_blocks, max_model_len=longest, num_slots=num_slots, memory=memory
        )


@dataclass(frozen=True, slots=True)
class TokenSpan:
    """New tokens `begin` .. `end - 1` of a step, the last ones of one sequence.

    `length` is the sequence's with them; its tokens are in `blocks`.
    """

    begin: int
    end: int
    length: int
    blocks: Indices
    adapter: int = 0
    state: StateSlots | None = None

    @property
    def start(self) -> int:
        """Position of the first new token."""
        return self.length - (self.end - self.begin)


@dataclass(frozen=True, slots=True)
class Layout:
    """A step as arrays."""

    token_ids: Indices  # [tokens]
    positions: Indices  # [tokens]
    slots: Indices  # [tokens], block * block_size + offset
    rows: Indices  # [num_logits], tokens whose logits are returned
    visible_ends: Indices  # [tokens], one position past the last visible one
    uses_long_rope: Indices  # [tokens], as `DecoderInputs.uses_long_rope`
    spans: tuple[TokenSpan, ...]
    features: Features | None = None
    rope_positions: Tokens | None = None  # [tokens, 3], as `Step.rope_positions`


@dataclass(frozen=True, slots=True)
class SharedCache:
    """Cache of another runner, with which a runner computes too.

    `arrays` have the keys and values, "key_cache.0" and "value_cache.0" those of layer 0: bytes,
    [num_blocks, heads, tokens, bytes of a row].  `check` raises when the runner is no longer
    wanted; it is called between parts of its opening.
    """

    limits: RunnerLimits
    arrays: Mapping[str, npt.NDArray[np.uint8]]
    check: Callable[[], None]


class LimitedRunner:
    """Base of runners: the limits that an engine reads.  Its cache keeps its memory."""

    hidden_size = 0
    rope_switch = 0
    is_head = False
    draft_ids: Indices | None = None

    def __init__(self, limits: RunnerLimits) -> None:
        self._limits = limits
        self.block_size = limits.block_size
        self.num_blocks = limits.num_blocks
        self.num_slots = limits.num_slots
        self.vocab_size = limits.vocab_size
        self.max_model_len = limits.max_model_len
        self.adapters = limits.adapters
        self.cache_memory = limits.memory

    def release_blocks(self, blocks: Sequence[int]) -> None:
        """Release nothing."""


def lay_out(step: Step, limits: RunnerLimits) -> Layout:
    """Return the arrays of `step`.  Raises ServingError naming a row or copy that does not fit."""
    spans: list[TokenSpan] = []
    begin = 0
    for index, row in enumerate(step.rows):
        end = begin + len(row.tokens)
        blocks = _checked_blocks(index, row, limits)
        length = row.start + len(row.tokens)
        spans.append(TokenSpan(begin, end, length, blocks, row.adapter, row.state))
        begin = end
    positions = _join(np.arange(span.start, span.length) for span in spans)
    token_ids = _join(np.asarray(row.tokens, np.int64) for row in step.rows)
    _check_tokens(step, token_ids, limits.vocab_size)
    check_copies(step, limits.num_blocks)
    return Layout(
        token_ids,
        positions,
        _join(_slots(span, limits.block_size) for span in spans),
        _join(
            np.arange(span.end - row.num_logits, span.end)
            for span, row in zip(spans, step.rows, strict=True)
        ),
        _join(map(_visible_ends, step.rows)),
        np.repeat(
            [int(row.uses_long_rope) for row in step.rows], [len(row.tokens) for row in step.rows]
        ),
        tuple(spans),
        step.features(),
        step.rope_positions(),
    )


def requested_rows(step: Step) -> Indices:
    """Return which tokens of `step` have logits."""
    ends = np.cumsum([len(row.tokens) for row in step.rows])
    counts = (row.num_logits for row in step.rows)
    return _join(np.arange(end - n, end) for end, n in zip(ends, counts, strict=True))


def check_copies(step: Step, num_blocks: int) -> None:
    """Raise ServingError for a copy from or to a block that the cache does not have."""
    for copy in step.copies:
        if not all(0 <= block < num_blocks for block in copy):
            raise ServingError(f"copy {copy} is out of the cache, which has {num_blocks} blocks")


def fits_slots(row: Row, num_slots: int) -> bool:
    """Return whether the state slots of `row` are valid for a model with `num_slots` of them."""
    state = row.state
    if state is None:
        return row.start == 0
    has_read = 0 <= state.read < num_slots if row.start else state.read == -1
    has_snapshot = (state.snapshot, state.kept) == (-1, 0) or (
        0 <= state.snapshot < num_slots and 0 < state.kept < len(row.tokens)
    )
    return has_read and 0 <= state.write < num_slots and has_snapshot


def _checked_blocks(index: int, row: Row, limits: RunnerLimits) -> Indices:
    count, length = len(row.tokens), row.start + len(row.tokens)
    if not count:
        raise ServingError(f"row {index} has no tokens, expected at least one")
    if row.start < 0 or length > limits.max_model_len:
        raise ServingError(
            f"row {index} has positions {row.start}..{length - 1}, expected 0.."
            f"{limits.max_model_len - 1}"
        )
    if not 0 <= row.num_logits <= count:
        raise ServingError(f"row {index} requests {row.num_logits} logits of {count} tokens")
    if row.adapter and row.adapter not in limits.adapters:
        loaded = ", ".join(map(str, sorted(limits.adapters))) or "none"
        raise ServingError(f"row {index} has adapter {row.adapter}, but this runtime has {loaded}")
    if limits.num_slots and not fits_slots(row, limits.num_slots):
        raise ServingError(
            f"row {index} begins at {row.start} with state {row.state}, expected slots of "
            f"0..{limits.num_slots - 1} to read and write"
        )
    needed = -(-length // limits.block_size)
    if len(row.blocks) < needed:
        raise ServingError(
            f"row {index} has {len(row.blocks)} blocks, expected at least {needed} for {length} "
            f"tokens in blocks of {limits.block_size}"
        )
    blocks = np.asarray(row.blocks[:needed], np.int64)
    if blocks.min() < 0 or blocks.max() >= limits.num_blocks:
        raise ServingError(
            f"row {index} has blocks {blocks.min()}..{blocks.max()}, expected 0.."
            f"{limits.num_blocks - 1}"
        )
    return blocks


def _check_tokens(step: Step, token_ids: Indices, vocab_size: int) -> None:
    wrong = token_ids[(token_ids < 0) | (token_ids >= vocab_size)]
    if wrong.size:
        index = next(i for i, row in enumerate(step.rows) if int(wrong[0]) in row.tokens)
        raise InvalidInputs(f"row {index} has token id {wrong[0]}, expected 0..{vocab_size - 1}")


def _slots(span: TokenSpan, block_size: int) -> Indices:
    positions = np.arange(span.start, span.length)
    slots: Indices = span.blocks[positions // block_size] * block_size + positions % block_size
    return slots


def _visible_ends(row: Row) -> Indices:
    ends = np.arange(row.start, row.start + len(row.tokens)) + 1
    if row.features is not None and row.features.is_bidirectional:
        ends[row.features.positions] = row.start + row.features.ends()
    return ends


def _join(parts: Iterable[npt.NDArray[np.int64]]) -> Indices:
    arrays = list(parts)
    return np.concatenate(arrays) if arrays else np.zeros(0, np.int64)
