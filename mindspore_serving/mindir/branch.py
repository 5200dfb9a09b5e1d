"""Branches: OpenVINO's If around two sides.

It knows neither the graphs of a file nor operators.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import openvino as ov
from openvino import opset16 as op

from mindspore_serving.mindir.bodies import (
    Behind,
    BodyResult,
    Contents,
    HeldValue,
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
    """Side of a branch: a function to run, and its arguments."""

    run: Run
    arguments: tuple[Value, ...]


def ints_like(number: int) -> Any:
    """Return `number` as an int32 tensor of one element."""
    return cast(ints_of([number]), ov.Type.i32)


def branch(condition: Value, then: Side, otherwise: Side) -> BranchOutcome:
    """Build an If of two sides.

    The sides are joined for each graph that they may continue with.  A variable that either side
    writes is written behind the If.
    """
    variables = holders((then.arguments, otherwise.arguments))
    insides = [_Inside.of(side, variables) for side in (then, otherwise)]
    names = list(dict.fromkeys(name for inside in insides for name in inside.outcome.exits))
    join = _Join()
    exits = {
        name: tuple(join.values(*(inside.outcome.exits.get(name) for inside in insides)))
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
    for inside, results, set_body in zip(
        insides, (join.then, join.otherwise), (node.set_then_body, node.set_else_body), strict=True
    ):
        set_body(ov.Model(results.nodes, inside.parameters, "side"))
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
        {name: mapped(behind.value, way) for name, way in exits.items()},
        None if selector is None else outputs[selector.number],
    )


@dataclass(slots=True)
class _Inside:
    """A side that ran on its indices parameters; contents of variables at `first` and at `last`."""

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
            exits = {name: contents.held(way) for name, way in outcome.exits.items()}
            return cls(
                outer, parameters, first, contents.now(), BranchOutcome(exits, outcome.selector)
            )

    def selector(self, names: list[str]) -> Any:
        """Return the index in `names` of the exit that was taken."""
        indices = [names.index(name) for name in self.outcome.exits]
        if self.outcome.selector is None:
            return ints_like(indices[0])
        numbers = cast(ints_of(indices), ov.Type.i32)
        return op.gather(numbers, self.outcome.selector, ints_of([0])).output(0)


@dataclass(slots=True)
class _Join:
    """Pairs of values of two sides; values that differ become a result of both."""

    then: Results = field(default_factory=Results)
    otherwise: Results = field(default_factory=Results)
    stored: dict[tuple[int, int], BodyResult] = field(default_factory=dict)
    alive: list[Value] = field(
        default_factory=list
    )  # keeps objects alive, so that no id() is reused

    def values(
        self, first: tuple[Value, ...] | None, second: tuple[Value, ...] | None
    ) -> tuple[Value, ...]:
        """Join the values of one exit of both sides; None for a side that never takes it."""
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
            return first.source if isinstance(first, HeldValue) else first
        if isinstance(first, Monad) and isinstance(second, Monad):
            return first
        return self._joined(first, second)

    def _joined(self, first: Value, second: Value) -> Value:
        sources = [
            value.source if isinstance(value, HeldValue) else value for value in (first, second)
        ]
        if sources[0] is sources[1]:
            return sources[0]
        for value in (first, second):
            if isinstance(value, Lost):
                return value
        is_stored = any(isinstance(value, HeldValue) for value in (first, second))
        key = (id(sources[0]), id(sources[1]))
        if is_stored and key in self.stored:
            return self.stored[key]
        pair = [content(first), content(second)]
        kind = pair[0].get_element_type()
        number = self.then.add(pair[0])
        self.otherwise.add(cast(pair[1], kind))
        result = BodyResult(number, tuple(holders(tuple(sources))), is_stored)
        if is_stored:
            self.stored[key] = result
            self.alive.append(sources)
        return result


def _is_plain(value: Value) -> bool:
    return is_number(value) or isinstance(value, str)


def _zeros(value: Value) -> Value:
    """Return zeros like `value`, for the side that does not compute it."""
    if isinstance(value, HeldValue):
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
