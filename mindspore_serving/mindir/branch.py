"""Branches: OpenVINO's If around two sides.

Knows no graphs of a file, and no operators.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import openvino as ov
from openvino import opset16 as op

from mindspore_serving.mindir.bodies import (
    Behind,
    BodyPlace,
    Contents,
    Held,
    Results,
    check_movable,
    content,
)
from mindspore_serving.mindir.storage import holders
from mindspore_serving.mindir.tensors import UnsupportedTensor, cast, ints_of, reshape, tensor
from mindspore_serving.mindir.values import (
    BranchOutcome,
    GraphFunction,
    Lost,
    Monad,
    Value,
    Variable,
    is_number,
    mapped,
    moment,
)

Run = Callable[[tuple[Value, ...]], BranchOutcome]


@dataclass(frozen=True, slots=True)
class Side:
    """One side of a branch: what runs, and the arguments that go in."""

    run: Run
    arguments: tuple[Value, ...]


def ints_like(number: int) -> Any:
    """A 1-element int32 tensor."""
    return cast(ints_of([number]), ov.Type.i32)


def branch(condition: Value, then: Side, otherwise: Side) -> BranchOutcome:
    """An If of two sides, joined way by way; what either changes in place is changed behind it."""
    variables = holders((then.arguments, otherwise.arguments))
    insides = [_Inside.of(side, variables) for side in (then, otherwise)]
    names = list(dict.fromkeys(name for inside in insides for name in inside.outcome.ways))
    join = _Join()
    ways = {
        name: tuple(join.values(*(inside.outcome.ways.get(name) for inside in insides)))
        for name in names
    }
    changes = {
        variable: join.leaf(*(inside.last[variable] for inside in insides))
        for variable in variables
        if any(inside.last[variable] is not inside.first[variable] for inside in insides)
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
    behind = Behind(outputs.__getitem__)
    for variable, change in changes.items():
        behind.change(variable, change)
    return BranchOutcome(
        {name: mapped(behind.value, way) for name, way in ways.items()},
        None if selector is None else outputs[selector.number],
    )


@dataclass(slots=True)
class _Inside:
    """A side that has run on parameters of its own: what variables held `first`, and at `last`."""

    outer: list[Any]
    parameters: list[Any]
    first: dict[Variable, Value]
    last: dict[Variable, Value]
    outcome: BranchOutcome

    @classmethod
    def of(cls, side: Side, variables: Sequence[Variable]) -> "_Inside":
        outer: list[Any] = []
        parameters: list[Any] = []

        def enter(value: Value) -> Value:
            check_movable(value)
            if isinstance(value, Monad):
                return Monad(moment())
            if not isinstance(value, ov.Output):
                return value
            outer.append(value)
            parameters.append(op.parameter(value.get_partial_shape(), value.get_element_type()))
            return parameters[-1].output(0)

        with Contents(variables) as contents:
            contents.set({variable: enter(variable.current) for variable in variables})
            first = contents.now()
            outcome = side.run(mapped(enter, side.arguments))
            ways = {name: contents.held(way) for name, way in outcome.ways.items()}
            return cls(
                outer, parameters, first, contents.now(), BranchOutcome(ways, outcome.selector)
            )

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
    places: dict[tuple[int, int], BodyPlace] = field(default_factory=dict)
    alive: list[Value] = field(default_factory=list)  # so that no identity is used again

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
        if isinstance(first, GraphFunction) and isinstance(second, GraphFunction):
            if first.graph == second.graph:
                return GraphFunction(first.graph, self.leaf(first.bound, second.bound))
            raise UnsupportedTensor("two sides of a branch that give different functions")
        if first is second or (
            type(first) is type(second) and _is_plain(first) and first == second
        ):
            return first.source if isinstance(first, Held) else first
        if isinstance(first, Monad) and isinstance(second, Monad):
            return first
        return self._place(first, second)

    def _place(self, first: Value, second: Value) -> Value:
        sources = [value.source if isinstance(value, Held) else value for value in (first, second)]
        if sources[0] is sources[1]:
            return sources[0]
        for value in (first, second):
            if isinstance(value, Lost):
                return value
        is_stored = any(isinstance(value, Held) for value in (first, second))
        key = (id(sources[0]), id(sources[1]))
        if is_stored and key in self.places:
            return self.places[key]
        pair = [content(first), content(second)]
        kind = pair[0].get_element_type()
        number = self.then.add(pair[0])
        self.otherwise.add(cast(pair[1], kind))
        place = BodyPlace(number, tuple(holders(tuple(sources))), is_stored)
        if is_stored:
            self.places[key] = place
            self.alive.append(sources)
        return place


def _is_plain(value: Value) -> bool:
    return is_number(value) or isinstance(value, str)


def _zeros(value: Value) -> Value:
    """In place of `value` on a side that does not give it."""
    if isinstance(value, Held):
        if value.is_outer:
            return value
        value = content(value)
    if not isinstance(value, ov.Output):
        return value
    shape = value.get_partial_shape()
    zero = cast(tensor(0), value.get_element_type())
    if shape.is_static:
        return op.broadcast(zero, ints_of(list(shape.to_shape()))).output(0)
    sizes = [0 if dim.is_dynamic else dim.get_length() for dim in shape]
    return op.broadcast(zero, ints_of(sizes)).output(0)
