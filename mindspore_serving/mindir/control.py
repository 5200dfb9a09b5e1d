"""Branches and loops: OpenVINO's If and Loop around graphs.

It knows neither operators nor files.
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
    """Interface for calling the graphs of a program."""

    @property
    def flow(self) -> ControlFlow: ...

    @property
    def written(self) -> tuple[Variable, ...]:
        """Weights that the program writes; every graph can reach them."""

    def run(
        self, name: str, arguments: Sequence[Value], stops: tuple[str, ...]
    ) -> BranchOutcome: ...

    def body(
        self, name: str, arguments: Sequence[Value], stops: tuple[str, ...]
    ) -> BranchOutcome: ...


def choose(
    walk: Walk, callee: Value, arguments: Sequence[Value], stops: tuple[str, ...]
) -> BranchOutcome:
    """Call a function, or one of the two of a choice; the result is that of `Walk.run`."""
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
        def run(values: tuple[Value, ...]) -> BranchOutcome:
            return choose(walk, values[1], values[2:], inner)

        return Side(run, (walk.written, function, *arguments))

    outcome = branch(condition, side_of(callee.then), side_of(callee.otherwise))
    if inner == stops:
        return outcome
    return walk.run(meeting, outcome.exits[meeting], stops)


def loop(
    walk: Walk, header: str, arguments: tuple[Value, ...], stops: tuple[str, ...]
) -> BranchOutcome:
    """Call graph `header`, which may end in a call of itself; the result is that of `Walk.run`."""
    exits = [name for name in walk.flow.exits(header, stops) if name != RETURN]
    inner = tuple(dict.fromkeys((*stops, header, *exits)))

    def iterate(values: tuple[Value, ...]) -> BranchOutcome:
        return walk.body(header, values, inner)

    arguments = mapped(bare, arguments)
    iteration = settled(iterate, header, arguments, walk.written)
    outcome = iteration.outcome
    if header not in outcome.exits:
        return iterate(arguments)
    if outcome.selector is None:
        raise UnsupportedTensor(f"the loop of graph '{header}' does not end")
    exits = [name for name in outcome.exits if name != header]
    results = Results()
    go_on = op.equal(outcome.selector, ints_like(list(outcome.exits).index(header)))
    results.add(reshape(go_on.output(0), ()))
    carried = [
        results.add(_copied(cast(content(value), parameter.get_element_type()), parameter, go_on))
        for value, parameter in zip(iteration.next, iteration.parameters, strict=True)
    ]
    selector = results.add(outcome.selector)
    stand_ins = {name: mapped(results.keep, outcome.exits[name]) for name in exits}
    node = op.loop(tensor(-1), tensor(True))
    node.set_function(ov.Model(results.nodes, iteration.parameters, header))
    node.set_special_body_ports([-1, 0])
    for parameter, start, result in zip(
        iteration.parameters, iteration.starts, carried, strict=True
    ):
        node.set_merged_input(parameter, start, results.nodes[result].output(0))

    def last(number: int) -> Any:
        return node.get_iter_value(results.nodes[number].output(0), -1)

    behind = Behind(last)
    for variable, number in iteration.changes.items():
        behind.change(variable, Lost(UNCLEAR) if number is None else last(carried[number]))
    left = {name: mapped(behind.value, stand_ins[name]) for name in exits}
    numbers = {name: list(outcome.exits).index(name) for name in exits}
    return _left(walk, left, numbers, last(selector), stops)


def _copied(value: Any, parameter: Any, condition: Any) -> Any:
    """Copy `value` if it is a parameter of the body other than `parameter`.

    OpenVINO 2026.4 assigns the parameters of the next iteration one after another: without a copy,
    a parameter that becomes another parameter would be read after it was overwritten.
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
    """Continue behind a loop that ended in exit number `last`."""
    name, *remaining = left

    def end(values: tuple[Value, ...]) -> BranchOutcome:
        return BranchOutcome({name: values}) if name == RETURN else walk.run(name, values, stops)

    if not remaining:
        return end(left[name])
    rest = {other: left[other] for other in remaining}
    taken = op.equal(last, ints_like(numbers[name])).output(0)
    return branch(
        taken,
        Side(lambda values: end(values[1:]), (walk.written, *left[name])),
        Side(
            lambda values: _left(
                walk, dict(zip(rest, values[2:], strict=True)), numbers, values[1], stops
            ),
            (walk.written, last, *rest.values()),
        ),
    )
