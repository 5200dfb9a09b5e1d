"""A sequence as the scheduler sees it (tokens, computed tokens, cache blocks), and plans of steps.

Decides nothing, and knows neither text nor sampling.
"""

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

from mindspore_serving.core.llm_messages import BACKGROUND
from mindspore_serving.llm.engine.beams import BeamSearch
from mindspore_serving.llm.engine.blocks import hash_block, hash_root
from mindspore_serving.llm.engine.prompt_images import PromptImages
from mindspore_serving.llm.step import Row, StateSlots, Step

MAX_SCORED_TOKENS = 64  # of a prompt per step, if all its logits are needed: they are large


class SequenceStatus(Enum):
    """State of a sequence.

    WAITING  --admitted-->  RUNNING  --last token-->  FINISHED
       |     <--preempted--    |                         ^
       '--------- abort -------'--> ABORTED --schedule---'
    """

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
    order: tuple[int, int, int]  # (priority, arrival, index)
    salt: str = ""
    tenant: str = ""
    turn: int = 0  # before the arrival: the smallest is preempted last
    num_charged: int = 0  # tokens that its tenant was charged for, see `FairTurns`
    adapter: int = 0
    uses_long_rope: bool = False  # keys are rotated by the table for texts beyond `rope_switch`
    num_encoded: int = 0  # leading tokens, those of the prompt, that an encoder reads
    logits_from: int = -1  # first position whose logits are needed; -1: the last token's
    images: PromptImages | None = None
    num_computed: int = 0
    num_replayed: int = 0  # accepted draft tokens that are computed again, as others were rejected
    num_cached: int = -1  # tokens found in the cache when it was first admitted; -1: not yet
    blocks: list[int] = field(default_factory=list)
    hashes: list[bytes] = field(default_factory=list)  # of full blocks, as far as was needed
    num_registered: int = 0  # leading blocks that the pool has registered
    slots: list[int] = field(default_factory=list)  # of states; between steps the current one
    snapshot_after: int = (
        0  # tokens after which a state is to be kept, as others begin alike that far
    )
    kept: bytes = b""  # hash of the last state that was kept while decoding
    draft: list[int] = field(default_factory=list)  # draft tokens, behind `tokens`
    search: BeamSearch | None = None  # the last of `tokens` stands for those of its beams
    status: SequenceStatus = SequenceStatus.WAITING

    def __post_init__(self) -> None:
        if self.logits_from < 0:
            self.logits_from = len(self.tokens) - 1

    @property
    def width(self) -> int:
        """Number of answers that blocks are needed for at once."""
        return 1 if self.search is None else self.search.width

    def restart(self) -> None:
        """Forget what is computed, as the blocks are given back; beams begin with the prompt."""
        self.num_computed = self.num_registered = self.num_replayed = 0
        self.draft = []
        if self.search is not None and self.search.tokens:
            del self.tokens[-self.search.length :]
            self.logits_from = len(self.tokens) - 1
            self.search.restart()

    @property
    def scope(self) -> tuple[str, int]:
        """Cache salt and adapter: only sequences of one scope share blocks and answers."""
        return self.salt, self.adapter

    @property
    def num_left(self) -> int:
        """Number of tokens that are not computed."""
        return len(self.tokens) - self.num_computed

    @property
    def is_decoding(self) -> bool:
        """True if only its last token is not computed, or the state before some tokens is read."""
        return len(self.tokens) - self.num_computed - self.num_replayed == 1

    @property
    def room(self) -> int:
        """Number of tokens that may follow after the next one."""
        return self.max_len - len(self.tokens) - 1

    @property
    def is_scored(self) -> bool:
        """True if logits of tokens before the last are still needed (prompt log-probabilities)."""
        return self.logits_from < len(self.tokens) - 1

    def hash_blocks(self, count: int, block_size: int) -> list[bytes]:
        """Return the chained hashes of the first `count` blocks, which must be full."""
        hashes = self.hashes
        for index in range(len(hashes), count):
            previous = hashes[-1] if hashes else hash_root(*self.scope, self.uses_long_rope)
            start = index * block_size
            end = start + block_size
            identity = self.images.identity(start, end) if self.images else b""
            hashes.append(hash_block(previous, self.tokens[start:end], identity))
        return hashes[:count]

    def hash_reusable(self, block_size: int) -> list[bytes]:
        """Return the hashes of the blocks that cached blocks may replace.

        Tokens whose logits are needed are always computed: at least the last one.
        """
        return self.hash_blocks(self.logits_from // block_size, block_size)

    def select_rope(self, rope_switch: int) -> None:
        """Select the rotary table by the present length, while the sequence has no blocks."""
        uses_long_rope = 0 < rope_switch < len(self.tokens)
        if uses_long_rope is not self.uses_long_rope:
            self.uses_long_rope = uses_long_rope
            self.hashes.clear()

    def fork(self, index: int, token: int) -> "Sequence":
        """Return a sequence of the same computed tokens, followed by `token`, without blocks."""
        tokens = self.tokens[: self.num_computed]
        return Sequence(
            tokens=[*tokens, token],
            max_len=self.max_len,
            order=(self.order[0], self.order[1], index),
            turn=self.turn,
            salt=self.salt,
            tenant=self.tenant,
            num_charged=self.num_charged,
            adapter=self.adapter,
            uses_long_rope=self.uses_long_rope,
            num_cached=self.num_cached,
            num_encoded=self.num_encoded,
            images=self.images,
            hashes=self.hashes[:],
        )


def order_of(sequence: Sequence) -> tuple[int, int, int, int]:
    """Return the key by which sequences are ordered: the smallest runs first."""
    priority, arrival, index = sequence.order
    return priority, sequence.turn, arrival, index


def is_background(sequence: Sequence) -> bool:
    """Return whether `sequence` runs in the background."""
    return sequence.order[0] >= BACKGROUND


def split(ordered: list[Sequence]) -> tuple[list[Sequence], list[Sequence]]:
    """Return the sequences of a list in order that run in the foreground and in the background."""
    if not ordered or not is_background(ordered[-1]):
        return ordered, []
    index = bisect_left(ordered, (BACKGROUND, -1, -1, -1), key=order_of)
    return ordered[:index], ordered[index:]


def remove(ordered: list[Sequence], sequence: Sequence) -> None:
    """Remove `sequence` from a list in order."""
    del ordered[bisect_left(ordered, order_of(sequence), key=order_of)]


@dataclass(frozen=True, slots=True)
class Scheduled:
    """A step, and the sequence of each of its rows."""

    step: Step
    sequences: tuple[Sequence, ...]


@dataclass(slots=True)
class StepPlan:
    """A step that is being filled.

    `budget` is how many more tokens it has room for.  `assign` returns the slots for the state of a
    sequence and its new tokens; None in a model without states.
    """

    budget: int
    assign: Callable[[Sequence, int], StateSlots | None]
    rows: list[Row] = field(default_factory=list)
    sequences: list[Sequence] = field(default_factory=list)
    copies: list[tuple[int, int]] = field(default_factory=list)

    def add(self, sequence: Sequence, tokens: list[int]) -> None:
        """Add a row that computes `tokens` of `sequence`, from its first uncomputed position on."""
        start = sequence.num_computed
        num_logits = start + len(tokens) - max(start, sequence.logits_from)
        parents: list[int] = []
        if sequence.search is not None and sequence.search.tokens:
            tokens, parents = sequence.search.tokens, sequence.search.parents
            num_logits = len(tokens)
        state = self.assign(sequence, len(tokens))
        read, features, rope_positions = tokens, None, None
        if sequence.images is not None:
            read, features, rope_positions = sequence.images.inputs(tokens, start)
        self.rows.append(
            Row(
                read, start, sequence.blocks, max(0, num_logits),
                sequence.adapter, state, features, sequence.uses_long_rope, rope_positions,
                sequence.num_encoded, parents,
            )
        )  # fmt: skip
        self.sequences.append(sequence)
        self.budget -= len(tokens)

    def add_piece(self, sequence: Sequence, limit: int) -> int:
        """Add up to `limit` uncomputed tokens of `sequence`, and return their number.

        They may be more if an image has to be computed at once.
        """
        start = sequence.num_computed
        end = min(len(sequence.tokens), start + limit)
        if sequence.is_scored:
            end = min(end, max(start, sequence.logits_from) + MAX_SCORED_TOKENS)
        if start < sequence.snapshot_after:
            end = min(end, sequence.snapshot_after)
        if sequence.images is not None:
            end = sequence.images.end_of_piece(start, end)
        self.add(sequence, sequence.tokens[start:end])
        return end - start

    def build(self) -> Scheduled:
        """Return the step and its sequences."""
        return Scheduled(Step(tuple(self.rows), tuple(self.copies)), tuple(self.sequences))
