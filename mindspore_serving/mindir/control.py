"""Branches and loops: OpenVINO's If and Loop around what the walk of graphs gives.

Knows no operators, and nothing of files.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import openvino as ov
from openvino import opset16 as op

from mindspore_serving.mindir.bodies import Behind, Results, content
from mindspore_serving.mindir.branch import Side, branch, ints_like
from mindspore_serving.mindir.flow import ControlFlow
from mindspore_serving.mindir.iteration import UNCLEAR, settled
from mindspore_serving.mindir.program import RETURN
from mindspore_serving.mindir.storage import bare, seen
from mindspore_serving.mindir.tensors import UnsupportedTensor, cast, known, reshape, tensor
from mindspore_serving.mindir.values import (
    BranchChoice,
    BranchOutcome,
    GraphFunction,
    Lost,
    Value,
    Variable,
    mapped,
)


class Walk(Protocol):
    """What calls graphs."""

    @property
    def flow(self) -> ControlFlow: ...

    @property
    def written(self) -> tuple[Variable, ...]:
        """The weights that the program writes, which every graph may reach."""

    def run(
        self, name: str, arguments: Sequence[Value], stops: tuple[str, ...]
    ) -> BranchOutcome: ...

    def body(
        self, name: str, arguments: Sequence[Value], stops: tuple[str, ...]
    ) -> BranchOutcome: ...


def choose(
    walk: Walk, callee: Value, arguments: Sequence[Value], stops: tuple[str, ...]
) -> BranchOutcome:
    """Call a function, or one of two; ends as `Walk.run` does."""
    if isinstance(callee, GraphFunction):
        return walk.run(callee.graph, (*callee.bound, *arguments), stops)
    if not isinstance(callee, BranchChoice):
        raise UnsupportedTensor(f"a call of {type(callee).__name__} in place of a graph")
    condition = seen(callee.condition, None)
    number = known(condition)
    if number is not None:
        side = callee.then if number.ravel()[0] else callee.otherwise
        return choose(walk, side, arguments, stops)
    meeting = walk.flow.meeting(list(callee.graphs()), stops)
    inner = stops if meeting in (RETURN, *stops) else (*stops, meeting)

    def side_of(function: Value) -> "Side":
        def run(given: tuple[Value, ...]) -> BranchOutcome:
            return choose(walk, given[1], given[2:], inner)

        return Side(run, (walk.written, function, *arguments))

    outcome = branch(condition, side_of(callee.then), side_of(callee.otherwise))
    if inner == stops:
        return outcome
    return walk.run(meeting, outcome.ways[meeting], stops)


def loop(
    walk: Walk, header: str, arguments: tuple[Value, ...], stops: tuple[str, ...]
) -> BranchOutcome:
    """Call graph `header`, which may end in a call of itself; ends as `Walk.run` does."""
    exits = [name for name in walk.flow.exits(header, stops) if name != RETURN]
    inner = tuple(dict.fromkeys((*stops, header, *exits)))

    def iterate(given: tuple[Value, ...]) -> BranchOutcome:
        return walk.body(header, given, inner)

    arguments = mapped(bare, arguments)
    iteration = settled(iterate, header, arguments, walk.written)
    outcome = iteration.outcome
    if header not in outcome.ways:
        return iterate(arguments)
    if outcome.selector is None:
        raise UnsupportedTensor(f"the loop of graph '{header}' does not end")
    ways = [name for name in outcome.ways if name != header]
    results = Results()
    go_on = op.equal(outcome.selector, ints_like(list(outcome.ways).index(header)))
    results.add(reshape(go_on.output(0), ()))
    carried = [
        results.add(_copied(cast(content(value), parameter.get_element_type()), parameter, go_on))
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

    def last(number: int) -> Any:
        return node.get_iter_value(results.nodes[number].output(0), -1)

    behind = Behind(last)
    for variable, number in iteration.changes.items():
        behind.change(variable, Lost(UNCLEAR) if number is None else last(carried[number]))
    left = {name: mapped(behind.value, places[name]) for name in ways}
    numbers = {name: list(outcome.ways).index(name) for name in ways}
    return _left(walk, left, numbers, last(selector), stops)


def _copied(value: Any, parameter: Any, condition: Any) -> Any:
    """A copy of `value` where it is another parameter of the body than `parameter`.

    OpenVINO 2026.4 writes what the next iteration gets one after another: a parameter that goes on
    as another one would be read when it has its next value already.
    """
    node = value.get_node()
    if node.get_type_name() != "Parameter" or node is parameter:
        return value
    return op.select(condition, value, value).output(0)


def _left(
    walk: Walk,
    left: dict[str, tuple[Value, ...]],
    numbers: dict[str, int],
    last: Value,
    stops: tuple[str, ...],
) -> BranchOutcome:
    """Go on behind a loop that has ended in way number `last`."""
    name, *others = left

    def end(given: tuple[Value, ...]) -> BranchOutcome:
        return BranchOutcome({name: given}) if name == RETURN else walk.run(name, given, stops)

    if not others:
        return end(left[name])
    rest = {other: left[other] for other in others}
    taken = op.equal(last, ints_like(numbers[name])).output(0)
    return branch(
        taken,
        Side(lambda given: end(given[1:]), (walk.written, *left[name])),
        Side(
            lambda given: _left(
                walk, dict(zip(rest, given[2:], strict=True)), numbers, given[1], stops
            ),
            (walk.written, last, *rest.values()),
        ),
    )
