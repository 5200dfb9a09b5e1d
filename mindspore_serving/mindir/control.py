"""Branches and loops: OpenVINO's If and Loop around what the walk of graphs gives.

Knows no operators, and nothing of files.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import openvino as ov
from openvino import opset16 as op

from mindspore_serving.mindir.branch import Results, Run, Side, branch, check_unwritten, ints_like
from mindspore_serving.mindir.flow import Flow
from mindspore_serving.mindir.program import RETURN
from mindspore_serving.mindir.tensors import Unsupported, cast, known, reshape, tensor
from mindspore_serving.mindir.values import (
    Choice,
    Constant,
    Function,
    Outcome,
    Value,
    is_number,
    mapped,
)

_MAX_SHAPES = 5  # attempts to find shapes of a loop that no iteration changes


class Walk(Protocol):
    """What calls graphs."""

    @property
    def flow(self) -> Flow: ...

    def run(self, name: str, arguments: Sequence[Value], stops: tuple[str, ...]) -> Outcome: ...

    def body(self, name: str, arguments: Sequence[Value], stops: tuple[str, ...]) -> Outcome: ...


def choose(
    walk: Walk, callee: Value, arguments: Sequence[Value], stops: tuple[str, ...]
) -> Outcome:
    """Call a function, or one of two; ends as `Walk.run` does."""
    if isinstance(callee, Function):
        return walk.run(callee.graph, (*callee.bound, *arguments), stops)
    if not isinstance(callee, Choice):
        raise Unsupported(f"a call of {type(callee).__name__} in place of a graph")
    condition = known(callee.condition)
    if condition is not None:
        side = callee.then if condition.ravel()[0] else callee.otherwise
        return choose(walk, side, arguments, stops)
    meeting = walk.flow.meeting(list(callee.graphs()), stops)
    inner = stops if meeting in (RETURN, *stops) else (*stops, meeting)

    def side_of(function: Value) -> "Side":
        return Side(lambda given: choose(walk, given[0], given[1:], inner), (function, *arguments))

    outcome = branch(callee.condition, side_of(callee.then), side_of(callee.otherwise))
    if inner == stops:
        return outcome
    return walk.run(meeting, outcome.ways[meeting], stops)


def loop(walk: Walk, header: str, arguments: tuple[Value, ...], stops: tuple[str, ...]) -> Outcome:
    """Call graph `header`, which may end in a call of itself; ends as `Walk.run` does."""
    exits = [name for name in walk.flow.exits(header, stops) if name != RETURN]
    inner = tuple(dict.fromkeys((*stops, header, *exits)))

    def iterate(given: tuple[Value, ...]) -> Outcome:
        return walk.body(header, given, inner)

    iteration = _settled(iterate, header, arguments)
    outcome = iteration.outcome
    if header not in outcome.ways:
        return iterate(arguments)
    if outcome.selector is None:
        raise Unsupported(f"the loop of graph '{header}' does not end")
    ways = [name for name in outcome.ways if name != header]
    results = Results()
    go_on = op.equal(outcome.selector, ints_like(list(outcome.ways).index(header)))
    results.add(reshape(go_on.output(0), ()))
    carried = [
        results.add(cast(tensor(value), parameter.get_element_type()))
        for value, parameter in zip(iteration.next, iteration.parameters, strict=True)
    ]
    selector = results.add(outcome.selector)
    places = {name: mapped(results.keep, outcome.ways[name]) for name in ways}
    node = op.loop(tensor(-1), tensor(True))
    node.set_function(ov.Model(results.nodes, iteration.parameters, header))
    node.set_special_body_ports([-1, 0])
    for parameter, start, place in zip(
        iteration.parameters, iteration.starts, carried, strict=True
    ):
        node.set_merged_input(parameter, start, results.nodes[place].output(0))

    def leave(value: Value) -> Value:
        return results.value_of(
            value, lambda place: node.get_iter_value(results.nodes[place].output(0), -1)
        )

    last = node.get_iter_value(results.nodes[selector].output(0), -1)
    left = {name: mapped(leave, places[name]) for name in ways}
    numbers = {name: list(outcome.ways).index(name) for name in ways}
    return _left(walk, left, numbers, last, stops)


def _left(
    walk: Walk,
    left: dict[str, tuple[Value, ...]],
    numbers: dict[str, int],
    last: Value,
    stops: tuple[str, ...],
) -> Outcome:
    """Go on behind a loop that has ended in way number `last`."""
    name, *others = left

    def end(given: tuple[Value, ...]) -> Outcome:
        return Outcome({name: given}) if name == RETURN else walk.run(name, given, stops)

    if not others:
        return end(left[name])
    rest = {other: left[other] for other in others}
    taken = op.equal(last, ints_like(numbers[name])).output(0)
    return branch(
        taken,
        Side(end, left[name]),
        Side(
            lambda given: _left(
                walk, dict(zip(rest, given[1:], strict=True)), numbers, given[0], stops
            ),
            (last, *rest.values()),
        ),
    )


@dataclass(slots=True)
class _Iteration:
    """A loop's body: its parameters, what they start with, and what the next iteration gets."""

    parameters: list[Any]
    starts: list[Any]
    outcome: Outcome
    next: list[Value]


def _settled(iterate: Run, header: str, arguments: tuple[Value, ...]) -> _Iteration:
    """One iteration, on parameters of shapes that the next iteration has too."""
    starts: list[Any] = []
    mapped(lambda value: starts.append(tensor(value)) if _is_carried(value) else None, arguments)
    shapes = [start.get_partial_shape() for start in starts]
    for _ in range(_MAX_SHAPES):
        parameters = [
            op.parameter(shape, start.get_element_type())
            for shape, start in zip(shapes, starts, strict=True)
        ]
        waiting = iter(parameters)

        def enter(value: Value, waiting: Any = waiting) -> Value:
            check_unwritten(value)
            return next(waiting).output(0) if _is_carried(value) else value

        outcome = iterate(mapped(enter, arguments))
        found: list[Value] = []
        mapped(
            lambda value, found=found: found.append(value) if _is_carried(value) else None,  # type: ignore[misc]
            outcome.ways.get(header, ()),
        )
        if len(found) != len(parameters) and header in outcome.ways:
            raise Unsupported(f"the loop of graph '{header}' changes what it carries")
        new = [
            _wider(shape, tensor(value).get_partial_shape())
            for shape, value in zip(shapes, found, strict=False)
        ]
        if new == shapes or header not in outcome.ways:
            break
        shapes = new
    return _Iteration(parameters, starts, outcome, found)


def _is_carried(value: Value) -> bool:
    return isinstance(value, ov.Output | Constant) or is_number(value)


def _wider(one: Any, other: Any) -> Any:
    """A shape that both are of."""
    if one.rank != other.rank or one.rank.is_dynamic:
        return ov.PartialShape.dynamic()
    return ov.PartialShape(
        [a if a == b else ov.Dimension() for a, b in zip(one, other, strict=True)]
    )
