"""What flows along the edges of a graph while it is converted, and how it is read.

A value is an OpenVINO output, a `Constant`, a Python number, text or None, a tuple of values, a
`Function`, a `Variable`, or the `MONAD`, which stands for an order of effects and nothing else.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

import numpy as np

Value: TypeAlias = Any
Array: TypeAlias = "np.ndarray[Any, Any]"


class Monad:
    """The type of MONAD."""


MONAD: Final = Monad()


@dataclass(frozen=True, slots=True, eq=False)
class Constant:
    """A tensor that is known: `array` is a view of the file where it can be.

    numpy has no bfloat16: with `is_bfloat16` the array is uint16 and holds its bits.
    """

    array: Array
    is_bfloat16: bool = False


@dataclass(frozen=True, slots=True)
class Function:
    """A graph of the file by name, with its first arguments."""

    graph: str
    bound: tuple[Value, ...] = ()


@dataclass(frozen=True, slots=True)
class Choice:
    """One of two functions, or of further choices."""

    condition: Value
    then: "Function | Choice"
    otherwise: "Function | Choice"

    def graphs(self) -> Iterator[str]:
        for side in (self.then, self.otherwise):
            if isinstance(side, Choice):
                yield from side.graphs()
            else:
                yield side.graph


@dataclass(slots=True, eq=False)
class Variable:
    """A weight by name, and what it holds at this point of the graph.

    `state`, of one that the graph writes, is what the run before has left there.
    """

    name: str
    current: Value
    state: Value = None

    @property
    def is_written(self) -> bool:
        return self.state is not None


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a part of the program may end: calls of graphs by name, or the return.

    With several ways, `selector` is a 1-element int32 tensor: the number of the way that was taken,
    in the order of `ways`; the arguments of the others have no meaning.
    """

    ways: dict[str, tuple[Value, ...]]
    selector: Value = None


def read(value: Value) -> Value:
    """A variable's value, and any other value itself."""
    return value.current if isinstance(value, Variable) else value


def is_number(value: Value) -> bool:
    return isinstance(value, bool | int | float)


def leaves(value: Value) -> Iterator[Value]:
    """What is in nested tuples, from left to right."""
    if isinstance(value, tuple):
        for part in value:
            yield from leaves(part)
    else:
        yield value


def mapped(change: Callable[[Value], Value], value: Value) -> Value:
    """`value` with every leaf changed; the arguments of functions are leaves too."""
    if isinstance(value, tuple):
        return tuple(mapped(change, part) for part in value)
    if isinstance(value, Function):
        return replace(value, bound=mapped(change, value.bound))
    if isinstance(value, Choice):
        parts = (value.condition, value.then, value.otherwise)
        return Choice(*(mapped(change, part) for part in parts))
    return change(value)
