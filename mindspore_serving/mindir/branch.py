"""Branches: OpenVINO's If around two sides.

Knows no graphs of a file, and no operators.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import openvino as ov
from openvino import opset16 as op

from mindspore_serving.mindir.tensors import Unsupported, cast, ints_of, reshape, tensor
from mindspore_serving.mindir.values import (
    Function,
    Outcome,
    Value,
    Variable,
    is_number,
    mapped,
)

Run = Callable[[tuple[Value, ...]], Outcome]


@dataclass(frozen=True, slots=True)
class Side:
    """One side of a branch: what runs, and the arguments that go in."""

    run: Run
    arguments: tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class Place:
    """Stands for result number `number` of a body."""

    number: int


@dataclass(slots=True)
class Results:
    """The results of a body, as nodes."""

    nodes: list[Any] = field(default_factory=list)

    def add(self, output: Any) -> int:
        self.nodes.append(op.result(output))
        return len(self.nodes) - 1

    def keep(self, value: Value) -> Value:
        """A place for what is computed, anything else itself."""
        return Place(self.add(value)) if isinstance(value, ov.Output) else value

    @staticmethod
    def value_of(value: Value, output: Callable[[int], Any]) -> Value:
        return output(value.number) if isinstance(value, Place) else value


def ints_like(number: int) -> Any:
    """A 1-element int32 tensor."""
    return cast(ints_of([number]), ov.Type.i32)


def branch(condition: Value, then: Side, otherwise: Side) -> Outcome:
    """An If of two sides, joined way by way."""
    insides = [_Inside.of(side) for side in (then, otherwise)]
    names = list(dict.fromkeys(name for inside in insides for name in inside.outcome.ways))
    join = _Join()
    ways = {
        name: tuple(join.values(*(inside.outcome.ways.get(name) for inside in insides)))
        for name in names
    }
    selector = None
    if len(names) > 1:
        selector = join.leaf(*(inside.selector(names) for inside in insides))
    node = op.if_op(reshape(cast(tensor(condition), ov.Type.boolean), ()))
    for inside, results, place in zip(
        insides, (join.then, join.otherwise), (node.set_then_body, node.set_else_body), strict=True
    ):
        place(ov.Model(results.nodes, inside.parameters, "side"))
    for number, inside in enumerate(insides):
        for outer, parameter in zip(inside.outer, inside.parameters, strict=True):
            node.set_input(outer, *((parameter, None), (None, parameter))[number])
    outputs = [
        node.set_output(*pair) for pair in zip(join.then.nodes, join.otherwise.nodes, strict=True)
    ]

    def out(value: Value) -> Value:
        return Results.value_of(value, outputs.__getitem__)

    return Outcome(
        {name: mapped(out, way) for name, way in ways.items()},
        None if selector is None else out(selector),
    )


@dataclass(slots=True)
class _Inside:
    """A side that has run on parameters of its own."""

    outer: list[Any]
    parameters: list[Any]
    outcome: Outcome

    @classmethod
    def of(cls, side: Side) -> "_Inside":
        outer: list[Any] = []
        parameters: list[Any] = []

        def enter(value: Value) -> Value:
            check_unwritten(value)
            if not isinstance(value, ov.Output):
                return value
            outer.append(value)
            parameters.append(op.parameter(value.get_partial_shape(), value.get_element_type()))
            return parameters[-1].output(0)

        return cls(outer, parameters, side.run(mapped(enter, side.arguments)))

    def selector(self, names: list[str]) -> Any:
        """The number, among `names`, of the way that was taken."""
        own = [names.index(name) for name in self.outcome.ways]
        if self.outcome.selector is None:
            return ints_like(own[0])
        numbers = cast(ints_of(own), ov.Type.i32)
        return op.gather(numbers, self.outcome.selector, ints_of([0])).output(0)


@dataclass(slots=True)
class _Join:
    """Pairs of values of two sides; what differs becomes a result of both."""

    then: Results = field(default_factory=Results)
    otherwise: Results = field(default_factory=Results)

    def values(
        self, first: tuple[Value, ...] | None, second: tuple[Value, ...] | None
    ) -> tuple[Value, ...]:
        """One way of both sides; a side that never takes it is None."""
        if first is None or second is None:
            some = first if first is not None else second
            zeros = mapped(_zeros, some)
            first, second = (zeros, some) if first is None else (some, zeros)
        return tuple(self.leaf(*pair) for pair in zip(first or (), second or (), strict=True))

    def leaf(self, first: Value, second: Value) -> Value:
        if isinstance(first, tuple) and isinstance(second, tuple) and len(first) == len(second):
            return tuple(self.leaf(*pair) for pair in zip(first, second, strict=True))
        if isinstance(first, Function) and isinstance(second, Function):
            if first.graph == second.graph:
                return Function(first.graph, self.leaf(first.bound, second.bound))
            raise Unsupported("two sides of a branch that give different functions")
        if first is second or (
            type(first) is type(second) and _is_plain(first) and first == second
        ):
            return first
        pair = [tensor(first), tensor(second)]
        kind = pair[0].get_element_type()
        place = Place(self.then.add(pair[0]))
        self.otherwise.add(cast(pair[1], kind))
        return place


def _is_plain(value: Value) -> bool:
    return is_number(value) or isinstance(value, str)


def _zeros(value: Value) -> Value:
    """In place of `value` on a side that does not give it."""
    if not isinstance(value, ov.Output):
        return value
    shape = value.get_partial_shape()
    zero = cast(tensor(0), value.get_element_type())
    if shape.is_static:
        return op.broadcast(zero, ints_of(list(shape.to_shape()))).output(0)
    sizes = [0 if dim.is_dynamic else dim.get_length() for dim in shape]
    return op.broadcast(zero, ints_of(sizes)).output(0)


def check_unwritten(value: Value) -> None:
    if isinstance(value, Variable) and value.is_written:
        raise Unsupported(f"weight '{value.name}', which the graph writes, in a branch or a loop")
