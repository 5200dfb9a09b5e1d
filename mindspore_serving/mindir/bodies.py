"""Results and storage that cross the border of the body of a branch or a loop.

A variable is the same object inside and outside; only its content is exchanged.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import openvino as ov
from openvino import opset16 as op

from mindspore_serving.mindir.storage import bare, holder
from mindspore_serving.mindir.tensors import UnsupportedTensor, tensor
from mindspore_serving.mindir.values import (
    Lost,
    Monad,
    Value,
    Variable,
    View,
    mapped,
    moment,
    read,
)


@dataclass(frozen=True, slots=True)
class BodyResult:
    """Stand-in for result number `number` of a body.

    With `is_stored` it is the content of a variable or view; `roots` are the variables that it may
    share storage with.
    """

    number: int
    roots: tuple[Variable, ...] = ()
    is_stored: bool = False


@dataclass(slots=True)
class Results:
    """The results of a body, as nodes."""

    nodes: list[Any] = field(default_factory=list)
    stored: dict[int, BodyResult] = field(default_factory=dict)

    def add(self, output: Any) -> int:
        self.nodes.append(op.result(output))
        return len(self.nodes) - 1

    def keep(self, value: Value) -> Value:
        """Return the stand-in of a computed value, an outer variable, or the value itself."""
        if isinstance(value, HeldValue):
            if value.is_outer:
                return value.source
            key = id(value.source)
            if key not in self.stored:
                roots = (value.root,)
                self.stored[key] = BodyResult(self.add(content(value)), roots, is_stored=True)
            return self.stored[key]
        return BodyResult(self.add(value)) if isinstance(value, ov.Output) else value


@dataclass(frozen=True, slots=True, eq=False)
class HeldValue:
    """A variable or view at the end of a body; `is_outer` if it exists outside the body too."""

    source: Value
    root: Variable
    last: Value
    is_outer: bool


def content(value: Value) -> Any:
    """Return the tensor of `value` inside its body."""
    if not isinstance(value, HeldValue):
        return tensor(value)
    last = value.last
    return tensor(value.source.part(last) if isinstance(value.source, View) else last)


class Contents:
    """A context in which variables have their contents inside a body."""

    def __init__(self, variables: Sequence[Variable]) -> None:
        self._outside = {variable: variable.current for variable in variables}

    def __enter__(self) -> "Contents":
        return self

    def __exit__(self, *_: object) -> None:
        self.set(self._outside)

    def set(self, contents: Mapping[Variable, Value]) -> None:
        for variable, value in contents.items():
            variable.current = value

    def now(self) -> dict[Variable, Value]:
        return {variable: variable.current for variable in self._outside}

    def held(self, value: Value) -> Value:
        """Return `value` with the present contents of its variables."""

        def hold(leaf: Value) -> Value:
            root = holder(leaf)
            if root is None:
                return leaf
            return HeldValue(
                bare(leaf), root, root.current, root in self._outside or bool(root.name)
            )

        return mapped(hold, value)


@dataclass(slots=True)
class Behind:
    """Values behind a branch or a loop; `output` returns its results by number."""

    output: Callable[[int], Any]
    _variables: dict[BodyResult, Variable] = field(default_factory=dict)

    def value(self, value: Value) -> Value:
        """Return the value of a stand-in, stored if it was stored; a later moment for a monad."""
        if isinstance(value, Monad):
            return Monad(moment())
        if not isinstance(value, BodyResult):
            return value
        if not value.is_stored:
            return self.output(value.number)
        if value not in self._variables:
            new = Variable("", self.output(value.number))
            for result, other in self._variables.items():
                if set(result.roots) & set(value.roots):
                    share(new, other)
            for root in value.roots:
                share(new, root)
            self._variables[value] = new
        return self._variables[value]

    def change(self, variable: Variable, change: Value) -> None:
        """Set `variable` to `change`, a stand-in or a value, as a write in the body does."""
        new = self.output(change.number) if isinstance(change, BodyResult) else read(change)
        variable.current, variable.changed = new, moment()


def share(first: Variable, second: Variable) -> None:
    """Record that both may be the same storage."""
    first.shared.append(second)
    second.shared.append(first)


def check_movable(value: Value) -> None:
    """Raise Unsupported for a view that cannot be applied inside a body."""
    if isinstance(value, View) and not value.is_movable:
        raise UnsupportedTensor(
            "a view at a position that depends on the data, in a branch or a loop"
        )


def is_lost(value: Value) -> bool:
    """Return whether a value is the stand-in for an unknown content."""
    return isinstance(value, Lost)
