"""What rank 0 says to the other ranks and they to it: msgpack structs, of which nothing can name a
file to be run, a function or a type."""

from typing import Any, TypeAlias

import msgspec

from mindspore_serving.llm.step import Row, Step


class Message(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The base of all."""


class Load(Message, frozen=True, tag=1):
    """The first message to a rank: its part of which model it holds.  `config` are the fields of
    `EngineConfig`."""

    directory: str
    runtime: str
    config: dict[str, Any]
    rank: int
    size: int


class Compute(Message, frozen=True, tag=2):
    """A step, for logits or for vectors.  A row is (tokens, start, blocks, num_logits, adapter,
    is_long)."""

    number: int
    rows: list[tuple[list[int], int, list[int], int, int, bool]]
    copies: list[tuple[int, int]]
    embeds: bool

    def step(self) -> Step:
        return Step(tuple(Row(*row[:-1], is_long=row[-1]) for row in self.rows), tuple(self.copies))


class Loaded(Message, frozen=True, tag=10):
    """The rank is ready for steps."""


class Failed(Message, frozen=True, tag=11):
    """The rank cannot go on, and ends."""

    text: str


ToRank: TypeAlias = Load | Compute
FromRank: TypeAlias = Loaded | Failed

encode = msgspec.msgpack.Encoder().encode
decode_to_rank = msgspec.msgpack.Decoder(ToRank).decode
decode_from_rank = msgspec.msgpack.Decoder(FromRank).decode


def compute(number: int, step: Step, *, embeds: bool) -> Compute:
    rows = [
        (list(r.tokens), r.start, list(r.blocks), r.num_logits, r.adapter, r.is_long)
        for r in step.rows
    ]
    return Compute(number, rows, list(step.copies), embeds)
