"""The parts of an answer as they come.  Plain data."""

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Content:
    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    text: str


@dataclass(frozen=True, slots=True)
class CallBegun:
    """A call of tool `name` begins, the `index`-th of the answer, from 0 on."""

    index: int
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """More of the JSON text of the arguments of call `index`."""

    index: int
    text: str


Delta: TypeAlias = Content | Reasoning | CallBegun | CallArguments
