"""What goes into the body of a branch or a loop, and what comes out: results, and storage.

A variable keeps being the same object inside and outside; what it holds is exchanged.
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
class BodyPlace:
    """Stands for result number `number` of a body.

    With `is_stored` it is of a variable or view; `roots` are those that it may share storage with.
    """

    number: int
    roots: tuple[Variable, ...] = ()
    is_stored: bool = False


@dataclass(slots=True)
class Results:
    """The results of a body, as nodes."""

    nodes: list[Any] = field(default_factory=list)
    places: dict[int, BodyPlace] = field(default_factory=dict)

    def add(self, output: Any) -> int:
        self.nodes.append(op.result(output))
        return len(self.nodes) - 1

    def keep(self, value: Value) -> Value:
        """A place for what is computed, a variable that is outside too, anything else itself."""
        if isinstance(value, Held):
            if value.is_outer:
                return value.source
            key = id(value.source)
            if key not in self.places:
                roots = (value.root,)
                self.places[key] = BodyPlace(self.add(content(value)), roots, is_stored=True)
            return self.places[key]
        return BodyPlace(self.add(value)) if isinstance(value, ov.Output) else value


@dataclass(frozen=True, slots=True, eq=False)
class Held:
    """A variable or view at the end of a body; `is_outer` says that it is known outside too."""

    source: Value
    root: Variable
    last: Value
    is_outer: bool


def content(value: Value) -> Any:
    """The tensor that `value` is, inside its body."""
    if not isinstance(value, Held):
        return tensor(value)
    last = value.last
    return tensor(value.source.part(last) if isinstance(value.source, View) else last)


class Contents:
    """A context in which variables hold what they do inside a body."""

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
        """`value` with what its variables hold now."""

        def hold(leaf: Value) -> Value:
            root = holder(leaf)
            if root is None:
                return leaf
            return Held(bare(leaf), root, root.current, root in self._outside or bool(root.name))

        return mapped(hold, value)


@dataclass(slots=True)
class Behind:
    """Values behind a branch or a loop; `output` gives its results by number."""

    output: Callable[[int], Any]
    _variables: dict[BodyPlace, Variable] = field(default_factory=dict)

    def value(self, value: Value) -> Value:
        """What a place stands for, in storage where it was; a later moment for a monad."""
        if isinstance(value, Monad):
            return Monad(moment())
        if not isinstance(value, BodyPlace):
            return value
        if not value.is_stored:
            return self.output(value.number)
        if value not in self._variables:
            new = Variable("", self.output(value.number))
            for place, other in self._variables.items():
                if set(place.roots) & set(value.roots):
                    share(new, other)
            for root in value.roots:
                share(new, root)
            self._variables[value] = new
        return self._variables[value]

    def change(self, variable: Variable, change: Value) -> None:
        """Let `variable` hold `change`, a place or a value, as a write in the body does."""
        new = self.output(change.number) if isinstance(change, BodyPlace) else read(change)
        variable.current, variable.changed = new, moment()


def share(first: Variable, second: Variable) -> None:
    """Say that both may be the same storage."""
    first.shared.append(second)
    second.shared.append(first)


def check_movable(value: Value) -> None:
    if isinstance(value, View) and not value.is_movable:
        raise UnsupportedTensor(
            "a view at a position that depends on the data, in a branch or a loop"
        )


def is_lost(value: Value) -> bool:
    return isinstance(value, Lost)
