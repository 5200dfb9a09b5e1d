"""Messages between rank 0 and the other ranks, and between agents and an engine.

Those that all roles have are in `process.vocabulary`.
"""

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from mindspore_serving.core.placement import RankPlacement
from mindspore_serving.llm.step import Features, Row, StateSlots, Step
from mindspore_serving.process.vocabulary import Beat, Failed, Hello, Message, Ready


class LoadRank(Message, frozen=True, tag=10):
    """First message to a rank: the model whose part it loads.

    `config` are the fields of `EngineConfig`, `key` is that of encrypted files, as
    `checkpoint.encrypted` has it; "" for none.
    """

    directory: str
    runtime: str
    config: dict[str, Any]
    key: str = ""

    def __repr__(self) -> str:  # which logs may have, and thus without the key
        return f"LoadRank({self.directory!r}, {self.runtime!r})"


class Connect(Message, frozen=True, tag=17):
    """First message to a bridge: the machines of the ranks, and the directory of servables here."""

    placement: RankPlacement
    root: str


RankRow: TypeAlias = tuple[
    list[int], int, list[int], int, int, StateSlots | None, bool, bytes, bytes, bool
]
"""(tokens, start, blocks, num_logits, adapter, state, uses_long_rope, rope_positions, images,
is_bidirectional).

`rope_positions` and `images`, the positions of `Features`, are arrays of int32, empty for none.
Their vectors stay with rank 0: ranks that share its layers exchange them, others need none.
"""


class Compute(Message, frozen=True, tag=11):
    """A step to compute, for logits or for vectors.

    With `best` rank 0 reads as many of the best logits of each row, not all.
    """

    number: int
    rows: list[RankRow]
    copies: list[tuple[int, int]]
    embeds: bool
    best: int = 0

    def step(self) -> Step:
        """Return the step."""
        return Step(tuple(map(_row, self.rows)), tuple(self.copies))


class AgentReady(Ready, frozen=True, tag=12):
    """Sent when agent `rank` has loaded its part."""

    rank: int


class Offer(Message, frozen=True, tag=13):
    """First message to an engine: capacity and limits of the agents."""

    block_size: int
    num_blocks: int
    vocab_size: int
    max_model_len: int


class Computed(Message, frozen=True, tag=14):
    """Logits of a step, float32 [num_logits, vocab_size]."""

    logits: bytes


class RankRefused(Message, frozen=True, tag=15):
    """Refusal of a step that cannot be computed; other steps can."""

    text: str


class ReleaseBlocks(Message, frozen=True, tag=16):
    """Cache blocks whose memory is to be returned to the system."""

    blocks: list[int]


class DescribeBlocks(Message, frozen=True, tag=18):
    """Request of the sizes of a rank's parts of a block and of a state, and of their format.

    The answer is exchange `number`.
    """

    number: int


class ReadPart(Message, frozen=True, tag=19):
    """Request of bytes `begin` to `end` of the part of a block, or of a state, that a rank has.

    `index` is the number of the block, or with `is_state` of the slot.
    """

    number: int
    index: int
    begin: int
    end: int
    is_state: bool = False


class WritePart(Message, frozen=True, tag=20):
    """The part of a block, or of a state, that `rank` is to restore; `index` as in `ReadPart`."""

    rank: int
    index: int
    content: bytes
    is_state: bool = False


class GatherCounts(Message, frozen=True, tag=21):
    """Gather the counts of tokens of experts, which all ranks do together."""


FromStore: TypeAlias = DescribeBlocks | ReadPart | WritePart
ToRank: TypeAlias = LoadRank | Compute | ReleaseBlocks | GatherCounts | FromStore
FromRank: TypeAlias = Hello | Ready | Failed
FromAgents: TypeAlias = Hello | AgentReady | Failed | Offer | Computed | RankRefused | Beat


def compute(number: int, step: Step, *, embeds: bool = False, best: int = 0) -> Compute:
    """Return the message for `step`."""
    return Compute(number, list(map(_rank_row, step.rows)), list(step.copies), embeds, best)


def _rank_row(row: Row) -> RankRow:
    features = row.features
    return (
        list(row.tokens), row.start, list(row.blocks), row.num_logits, row.adapter,
        row.state, row.uses_long_rope,
        _numbers(row.rope_positions), _numbers(None if features is None else features.positions),
        features is not None and features.is_bidirectional,
    )  # fmt: skip


def _numbers(array: npt.NDArray[Any] | None) -> bytes:
    return b"" if array is None else array.astype(np.int32).tobytes()


def _row(sent: RankRow) -> Row:
    tokens, start, blocks, num_logits, adapter, state, is_long, axes, images, sees_whole = sent
    features = None
    if images:
        positions = np.frombuffer(images, np.int32).astype(np.int64)
        features = Features(positions, np.empty((len(positions), 0), np.float32), sees_whole)
    rope_positions = np.frombuffer(axes, np.int32).reshape(-1, 3) if axes else None
    return Row(tokens, start, blocks, num_logits, adapter, state, features, is_long, rope_positions)
