"""One sequence as the scheduler sees it: tokens, computed so far, cache blocks; and its steps.

Decides nothing, and knows neither text nor sampling.
"""

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

from mindspore_serving.llm.engine.blocks import hash_block, hash_root
from mindspore_serving.llm.engine.images import PromptImages
from mindspore_serving.llm.step import Row, StateSlots, Step

MAX_SCORED_TOKENS = 64  # of a prompt per step, if all its logits are wanted: they are large


class SequenceStatus(Enum):
    """Where a sequence is.  A preempted one waits again."""

    WAITING = "waiting"
    RUNNING = "running"
    ABORTED = "aborted"  # its blocks are given back when the next step is scheduled
    FINISHED = "finished"


@dataclass(slots=True, eq=False)
class Sequence:
    """A prompt and its answer so far.

    The keys and values of the first `num_computed` of `tokens` are in `blocks`; a step computes
    some more.  There is no other difference between prefill and decoding.
    """

    tokens: list[int]  # prompt and answer
    max_len: int  # tokens at which it ends
    order: tuple[int, int, int]  # (priority, arrival, index): the least runs first, is kept longest
    salt: str = ""
    adapter: int = 0
    is_long: bool = False  # its keys are those of a sequence beyond the model's rotary switch
    wanted_from: int = -1  # logits before this position are not wanted; -1: those of the last token
    images: PromptImages | None = None
    num_computed: int = 0
    num_cached: int = -1  # tokens found in the cache when it was first admitted; -1: not yet
    blocks: list[int] = field(default_factory=list)
    hashes: list[bytes] = field(default_factory=list)  # of full blocks, as far as was needed
    num_registered: int = 0  # leading blocks that the pool has registered
    slots: list[int] = field(default_factory=list)  # of states; between steps the current one
    branch: int = 0  # tokens after which a state is to be kept, as others begin alike that far
    kept: bytes = b""  # what the state is registered under that was kept last while decoding
    draft: list[int] = field(default_factory=list)  # guesses for what follows `tokens`
    status: SequenceStatus = SequenceStatus.WAITING

    def __post_init__(self) -> None:
        if self.wanted_from < 0:
            self.wanted_from = len(self.tokens) - 1

    @property
    def scope(self) -> tuple[str, int]:
        """Only sequences with the same may share what they have computed and answered."""
        return self.salt, self.adapter

    @property
    def num_left(self) -> int:
        """Tokens that are not computed."""
        return len(self.tokens) - self.num_computed

    @property
    def is_decoding(self) -> bool:
        """Whether only its last token is not computed."""
        return len(self.tokens) - self.num_computed == 1

    @property
    def room(self) -> int:
        """Tokens that may follow beside the next one."""
        return self.max_len - len(self.tokens) - 1

    @property
    def is_scored(self) -> bool:
        """Whether logits of tokens before the last are still wanted (prompt log-probabilities)."""
        return self.wanted_from < len(self.tokens) - 1

    def hash_blocks(self, count: int, block_size: int) -> list[bytes]:
        """The chained hashes of the first `count` blocks, which must be full."""
        hashes = self.hashes
        for index in range(len(hashes), count):
            previous = hashes[-1] if hashes else hash_root(*self.scope, self.is_long)
            start = index * block_size
            end = start + block_size
            seen = self.images.identity(start, end) if self.images else b""
            hashes.append(hash_block(previous, self.tokens[start:end], seen))
        return hashes[:count]

    def hash_known(self, block_size: int) -> list[bytes]:
        """Those of the blocks that need not be computed if they are known: the last token always
        is, as its logits are wanted.
        """
        return self.hash_blocks(self.wanted_from // block_size, block_size)

    def choose_table(self, rope_switch: int) -> None:
        """Before it has blocks: whether it is long, by its length now."""
        is_long = 0 < rope_switch < len(self.tokens)
        if is_long is not self.is_long:
            self.is_long = is_long
            self.hashes.clear()

    def fork(self, index: int, token: int) -> "Sequence":
        """A sequence with the same computed tokens, followed by `token`; it has no blocks yet."""
        tokens = self.tokens[: self.num_computed]
        return Sequence(
            tokens=[*tokens, token],
            max_len=self.max_len,
            order=(self.order[0], self.order[1], index),
            salt=self.salt,
            adapter=self.adapter,
            is_long=self.is_long,
            num_cached=self.num_cached,
            images=self.images,
            hashes=self.hashes[:],
        )


def order_of(sequence: Sequence) -> tuple[int, int, int]:
    """The key by which sequences run."""
    return sequence.order


def drop(ordered: list[Sequence], sequence: Sequence) -> None:
    """Take `sequence` out of those that are `ordered`."""
    del ordered[bisect_left(ordered, sequence.order, key=order_of)]


@dataclass(frozen=True, slots=True)
class Scheduled:
    """A step, and the sequence of each of its rows."""

    step: Step
    sequences: tuple[Sequence, ...]


@dataclass(slots=True)
class StepPlan:
    """A step to be filled; `budget` is how many tokens it has room for.  `place` gives the slots
    for the state of a sequence and its new tokens; None in a model without states.
    """

    budget: int
    place: Callable[[Sequence, int], StateSlots | None]
    rows: list[Row] = field(default_factory=list)
    sequences: list[Sequence] = field(default_factory=list)
    copies: list[tuple[int, int]] = field(default_factory=list)

    def add(self, sequence: Sequence, tokens: list[int]) -> None:
        start = sequence.num_computed
        num_logits = start + len(tokens) - max(start, sequence.wanted_from)
        state = self.place(sequence, len(tokens))
        features = None
        if sequence.images is not None:
            features = sequence.images.between(start, start + len(tokens))
        self.rows.append(
            Row(
                tokens, start, sequence.blocks, max(0, num_logits),
                sequence.adapter, state, features, sequence.is_long,
            )
        )  # fmt: skip
        self.sequences.append(sequence)
        self.budget -= len(tokens)

    def add_piece(self, sequence: Sequence, most: int) -> int:
        """Up to `most` of the tokens of `sequence` that are not computed, more if an image has to
        be computed at once; how many it adds.
        """
        start = sequence.num_computed
        end = min(len(sequence.tokens), start + most)
        if sequence.is_scored:
            end = min(end, max(start, sequence.wanted_from) + MAX_SCORED_TOKENS)
        if start < sequence.branch:
            end = min(end, sequence.branch)
        if sequence.images is not None:
            end = sequence.images.end_of_piece(start, end)
        self.add(sequence, sequence.tokens[start:end])
        return end - start

    def done(self) -> Scheduled:
        return Scheduled(Step(tuple(self.rows), tuple(self.copies)), tuple(self.sequences))
