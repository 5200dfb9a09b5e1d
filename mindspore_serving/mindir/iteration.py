"""Body of a loop: its parameters, with shapes that fit every iteration.

It knows neither the graphs of a file nor operators.
"""

from dataclasses import dataclass, field
from itertools import count
from typing import Any

import openvino as ov
from openvino import opset16 as op

from mindspore_serving.mindir.bodies import Contents, HeldValue, check_movable, content, share
from mindspore_serving.mindir.branch import Run
from mindspore_serving.mindir.storage import flat, holder, holders
from mindspore_serving.mindir.tensors import UnsupportedTensor, tensor
from mindspore_serving.mindir.values import (
    BranchOutcome,
    Constant,
    Lost,
    Monad,
    Value,
    Variable,
    is_number,
    mapped,
    moment,
)

_MAX_ATTEMPTS = 12  # until shapes and shared values are the same in every iteration
UNCLEAR = "which values a change in place affects depends on the iteration"


@dataclass(slots=True)
class Iteration:
    """Body of a loop: its parameters, their first values, and their values in the next iteration.

    `changes` are the variables that are changed in place, with the number of the parameter that
    carries their content; None if the content is not known behind the loop.
    """

    outcome: BranchOutcome
    parameters: list[Any] = field(default_factory=list)
    starts: list[Any] = field(default_factory=list)
    next: list[Value] = field(default_factory=list)
    changes: dict[Variable, int | None] = field(default_factory=dict)


def settled(
    iterate: Run, header: str, arguments: tuple[Value, ...], written: tuple[Variable, ...]
) -> Iteration:
    """Return an iteration whose parameters have the shapes of the next iteration too.

    It is found by attempts, each of which widens shapes by those that the last one computed.
    Raises Unsupported if values or their sharing change in each iteration.
    """
    variables = holders((written, arguments))
    carried = {variable for variable in variables if isinstance(variable.current, ov.Output)}
    plan = _Plan(header, arguments, variables, carried)
    for _ in range(_MAX_ATTEMPTS):
        attempt = _Attempt(plan)
        iteration = attempt.run(iterate)
        if header not in iteration.outcome.exits or not plan.learn(attempt, iteration):
            return iteration
    raise UnsupportedTensor(f"the loop of graph '{header}' does not settle on what it carries")


@dataclass(slots=True)
class _Plan:
    """Knowledge of a loop before an attempt.

    `moving` are numbers of arguments that start in a variable and continue in another; `carried`
    are variables whose content is carried, and `lost` those whose content is not known in every
    iteration.
    """

    header: str
    arguments: tuple[Value, ...]
    variables: list[Variable]
    carried: set[Variable]
    moving: set[int] = field(default_factory=set)
    lost: set[Variable] = field(default_factory=set)
    shapes: dict[Any, Any] = field(default_factory=dict)  # by number of argument, or by variable

    def learn(self, attempt: "_Attempt", iteration: Iteration) -> bool:
        """Record the results of an attempt, and return whether another one is needed."""
        size = self._size()
        for key, parameter, value in zip(
            attempt.keys, iteration.parameters, iteration.next, strict=True
        ):
            before, after = parameter.get_partial_shape(), content(value).get_partial_shape()
            self.shapes[key] = _wider(before, after)
        is_settled = all(
            self.shapes[key] == parameter.get_partial_shape()
            for key, parameter in zip(attempt.keys, iteration.parameters, strict=True)
        )
        self.moving |= attempt.moved
        for variable in attempt.changed():
            is_lost = isinstance(attempt.last[variable], Lost)
            (self.lost if is_lost else self.carried).add(variable)
        return not is_settled or size != self._size()

    def _size(self) -> tuple[int, ...]:
        return len(self.moving), len(self.carried), len(self.lost)


@dataclass(slots=True)
class _Attempt:
    """Attempt to walk an iteration; `keys` say what each parameter is for."""

    plan: _Plan
    keys: list[Any] = field(default_factory=list)
    parameters: list[Any] = field(default_factory=list)
    starts: list[Any] = field(default_factory=list)
    entries: dict[int, Variable] = field(default_factory=dict)  # by number of argument
    first: dict[Variable, Value] = field(default_factory=dict)
    last: dict[Variable, Value] = field(default_factory=dict)
    moved: set[int] = field(default_factory=set)

    def run(self, iterate: Run) -> Iteration:
        plan = self.plan
        with Contents(plan.variables) as contents:
            arguments = self._enter()
            inside = {
                variable: self._parameter(variable, variable.current)
                for variable in plan.variables
                if variable in plan.carried - plan.lost
            }
            contents.set(inside | dict.fromkeys(plan.lost, Lost(UNCLEAR)))
            self.first = contents.now()
            outcome = iterate(arguments)
            self.last = contents.now()
            exits = {name: contents.held(way) for name, way in outcome.exits.items()}
        following = self._following(exits.get(plan.header))
        return Iteration(
            BranchOutcome(exits, outcome.selector),
            self.parameters,
            self.starts,
            following,
            self._changes(),
        )

    def changed(self) -> list[Variable]:
        return [v for v in self.plan.variables if self.last[v] is not self.first[v]]

    def _changes(self) -> dict[Variable, int | None]:
        numbers = {key: number for number, key in enumerate(self.keys)}
        return {
            variable: None if isinstance(self.last[variable], Lost) else numbers.get(variable)
            for variable in self.changed()
        }

    def _parameter(self, key: Any, value: Value) -> Any:
        start = tensor(value)
        shape = self.plan.shapes.get(key, start.get_partial_shape())
        self.keys.append(key)
        self.starts.append(start)
        self.parameters.append(op.parameter(shape, start.get_element_type()))
        return self.parameters[-1].output(0)

    def _enter(self) -> tuple[Value, ...]:
        numbers = count()
        roots: dict[Variable, list[Variable]] = {}

        def enter(leaf: Value) -> Value:
            number = next(numbers)
            if isinstance(leaf, Monad):
                return Monad(moment())
            if _is_plain(leaf):
                return self._parameter(number, leaf)
            if number not in self.plan.moving:
                check_movable(leaf)
                return leaf
            entry = Variable("", self._parameter(number, leaf))
            for root in holders(leaf):
                for other in (root, *roots.setdefault(root, [])):
                    share(entry, other)
                roots[root].append(entry)
            self.entries[number] = entry
            return entry

        arguments: tuple[Value, ...] = mapped(enter, self.plan.arguments)
        return arguments

    def _following(self, way: tuple[Value, ...] | None) -> list[Value]:
        """Return the values of the parameters in the next iteration."""
        if way is None:
            return list(self.parameters)
        before, after = list(flat(self.plan.arguments)), list(flat(way))
        if len(before) != len(after):
            raise UnsupportedTensor(
                f"the loop of graph '{self.plan.header}' changes the structure of its values"
            )
        for number, (start, value) in enumerate(zip(before, after, strict=True)):
            is_stored = holder(start) is not None
            if (isinstance(value, HeldValue) or _is_plain(value)) != (
                is_stored or _is_plain(start)
            ):
                raise UnsupportedTensor(
                    f"the loop of graph '{self.plan.header}' changes the structure of its values"
                )
            stays = isinstance(value, HeldValue) and value.source is start
            if is_stored and not stays and number not in self.entries:
                self.moved.add(number)
        self._check_shared(after)
        following = {number: after[number] for number in self.keys if isinstance(number, int)}
        return [following[key] if isinstance(key, int) else self._kept(key) for key in self.keys]

    def _kept(self, variable: Variable) -> Value:
        last = self.last[variable]
        return self.first[variable] if isinstance(last, Lost) else last

    def _check_shared(self, after: list[Value]) -> None:
        """Raise Unsupported if a moved value changes while another variable may share it."""
        changed = set(self.changed())
        is_changed = any(entry.changed for entry in self.entries.values())
        roots = [
            after[number].root for number in self.entries if isinstance(after[number], HeldValue)
        ]
        sharing = {*self.first, *self.entries.values()}
        if not changed.isdisjoint(roots) or (
            is_changed and (len(set(roots)) < len(roots) or not sharing.isdisjoint(roots))
        ):
            raise UnsupportedTensor(UNCLEAR)


def _is_plain(value: Value) -> bool:
    return isinstance(value, ov.Output | Constant) or is_number(value)


def _wider(first: Any, second: Any) -> Any:
    """Return the narrowest shape that includes both."""
    if first.rank != second.rank or first.rank.is_dynamic:
        return ov.PartialShape.dynamic()
    return ov.PartialShape(
        [a if a == b else ov.Dimension() for a, b in zip(first, second, strict=True)]
    )
