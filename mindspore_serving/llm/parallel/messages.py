"""What rank 0 and the other ranks, and agents and an engine, say beside `process.vocabulary`."""

from typing import Any, TypeAlias

from mindspore_serving.llm.step import Row, Step
from mindspore_serving.process.vocabulary import Beat, Failed, Hello, Message, Ready


class LoadRank(Message, frozen=True, tag=10):
    """The first message to a rank: its part of which model it holds.  `config` are the fields of
    `EngineConfig`.
    """

    directory: str
    runtime: str
    config: dict[str, Any]


class Compute(Message, frozen=True, tag=11):
    """A step, for logits or for vectors.  A row is (tokens, start, blocks, num_logits, adapter,
    uses_long_rope).
    """

    number: int
    rows: list[tuple[list[int], int, list[int], int, int, bool]]
    copies: list[tuple[int, int]]
    embeds: bool

    def step(self) -> Step:
        return Step(
            tuple(Row(*row[:-1], uses_long_rope=row[-1]) for row in self.rows), tuple(self.copies)
        )


class AgentReady(Ready, frozen=True, tag=12):
    """Agent `rank` has loaded its part."""

    rank: int


class Offer(Message, frozen=True, tag=13):
    """The first message to an engine: what the agents can hold."""

    block_size: int
    num_blocks: int
    vocab_size: int
    max_model_len: int


class Computed(Message, frozen=True, tag=14):
    """The logits of a step, float32 of [num_logits, vocab_size]."""

    logits: bytes


class RankRefused(Message, frozen=True, tag=15):
    """A step that cannot be computed; others can."""

    text: str


ToRank: TypeAlias = LoadRank | Compute
FromRank: TypeAlias = Hello | Ready | Failed
FromAgents: TypeAlias = Hello | AgentReady | Failed | Offer | Computed | RankRefused | Beat


def compute(number: int, step: Step, *, embeds: bool) -> Compute:
    rows = [
        (list(r.tokens), r.start, list(r.blocks), r.num_logits, r.adapter, r.uses_long_rope)
        for r in step.rows
    ]
    return Compute(number, rows, list(step.copies), embeds)
