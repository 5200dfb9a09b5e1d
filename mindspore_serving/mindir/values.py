"""Values on the edges of a graph while it is converted.

A value is an OpenVINO output, a `Constant`, a Python number, text or None, a tuple of values, a
`GraphFunction`, a `Variable`, a `View` of one, or a `Monad`, which stands for an order of effects
and nothing else.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, Final, TypeAlias

import numpy as np

Value: TypeAlias = Any
Array: TypeAlias = "np.ndarray[Any, Any]"

_moments = count(1)


def moment() -> int:
    """Return the next number of the order in which effects are walked."""
    return next(_moments)


@dataclass(frozen=True, slots=True, eq=False)
class Monad:
    """A point in the order of effects: those of an earlier moment are done."""

    moment: int = 0


MONAD: Final = Monad()
"""The start of a program."""


@dataclass(frozen=True, slots=True, eq=False)
class Constant:
    """A constant tensor; `array` is a view of the file if possible.

    numpy has no bfloat16: with `is_bfloat16` the array is uint16 and holds its bits.
    """

    array: Array
    is_bfloat16: bool = False


@dataclass(frozen=True, slots=True)
class GraphFunction:
    """A graph of the file by name, with its first arguments."""

    graph: str
    bound: tuple[Value, ...] = ()


@dataclass(frozen=True, slots=True)
class BranchChoice:
    """A choice between two functions, or further choices."""

    condition: Value
    then: "GraphFunction | BranchChoice"
    otherwise: "GraphFunction | BranchChoice"

    def graphs(self) -> Iterator[str]:
        for side in (self.then, self.otherwise):
            if isinstance(side, BranchChoice):
                yield from side.graphs()
            else:
                yield side.graph


@dataclass(slots=True, eq=False, repr=False)
class Variable:
    """Storage with its content at the current point of the walk.

    A weight has a name; `state`, of a weight that the graph writes, is its value after the previous
    run.  In a program that changes values in place, results of operators are variables too.
    `shared` are variables that may be the same storage.
    """

    name: str
    current: Value
    state: Value = None
    changed: int = 0  # the moment of the last write, 0 for none
    seen: int = 0  # the moment of the last read in the order of effects
    is_seen_apart: bool = False  # whether an operator outside that order has read it
    shared: list["Variable"] = field(default_factory=list)

    @property
    def is_written(self) -> bool:
        return self.state is not None


@dataclass(frozen=True, slots=True, eq=False)
class View:
    """Elements of a variable in another shape or order; `part` selects them from the whole.

    `is_movable` if `part` depends on nothing else in the graph, so that it can be applied in the
    body of a branch or a loop.  `repeats` if an element may be in it several times.  The result of
    a write is a view of the whole, `since` the moment of the write.
    """

    base: Variable
    part: Callable[[Any], Any]
    is_movable: bool
    repeats: bool = False
    since: int = 0


@dataclass(frozen=True, slots=True)
class Lost:
    """Stand-in for a variable's content that is not known; `why` is the reason."""

    why: str


@dataclass(frozen=True, slots=True)
class BranchOutcome:
    """Possible exits of a part of the program: final calls of graphs by name, or the return.

    With several exits, `selector` is a 1-element int32 tensor: the number of the exit that was
    taken, in the order of `exits`; the arguments of the others have no meaning.
    """

    exits: dict[str, tuple[Value, ...]]
    selector: Value = None


def read(value: Value) -> Value:
    """Return the content of a variable or a view, any other value unchanged."""
    if isinstance(value, View):
        return value.part(value.base.current)
    return value.current if isinstance(value, Variable) else value


def is_number(value: Value) -> bool:
    """Return whether a value is a Python number or boolean."""
    return isinstance(value, bool | int | float)


def leaves(value: Value) -> Iterator[Value]:
    """Iterate over the leaves of nested tuples, from left to right."""
    if isinstance(value, tuple):
        for part in value:
            yield from leaves(part)
    else:
        yield value


def mapped(change: Callable[[Value], Value], value: Value) -> Value:
    """Apply `change` to every leaf of `value`; arguments of functions are leaves too."""
    if isinstance(value, tuple):
        return tuple(mapped(change, part) for part in value)
    if isinstance(value, GraphFunction):
        return replace(value, bound=mapped(change, value.bound))
    if isinstance(value, BranchChoice):
        parts = (value.condition, value.then, value.otherwise)
        return BranchChoice(*(mapped(change, part) for part in parts))
    return change(value)
