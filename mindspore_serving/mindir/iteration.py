"""One iteration of a loop: what it carries, on parameters that every iteration can have.

Knows no graphs of a file, and no operators.
"""

from dataclasses import dataclass, field
from itertools import count
from typing import Any

import openvino as ov
from openvino import opset16 as op

from mindspore_serving.mindir.bodies import Contents, Held, check_movable, content, share
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

_MAX_ATTEMPTS = 12  # to find what no iteration changes: shapes, and which values are shared
UNCLEAR = "it depends on the iteration which values a change in place is seen by"


@dataclass(slots=True)
class Iteration:
    """A loop's body: its parameters, what they start with, and what the next iteration gets.

    `changes` are variables that are changed in place, with the number of the parameter that carries
    what they hold; None for one whose content is not known behind the loop.
    """

    outcome: BranchOutcome
    parameters: list[Any] = field(default_factory=list)
    starts: list[Any] = field(default_factory=list)
    next: list[Value] = field(default_factory=list)
    changes: dict[Variable, int | None] = field(default_factory=dict)


def settled(
    iterate: Run, header: str, arguments: tuple[Value, ...], written: tuple[Variable, ...]
) -> Iteration:
    """An iteration on parameters of shapes that the next iteration has too.

    Raises Unsupported: what the loop carries has other values, or is shared otherwise, each time.
    """
    variables = holders((written, arguments))
    carried = {one for one in variables if isinstance(one.current, ov.Output)}
    plan = _Plan(header, arguments, variables, carried)
    for _ in range(_MAX_ATTEMPTS):
        attempt = _Attempt(plan)
        iteration = attempt.run(iterate)
        if header not in iteration.outcome.ways or not plan.learn(attempt, iteration):
            return iteration
    raise UnsupportedTensor(f"the loop of graph '{header}' does not settle on what it carries")


@dataclass(slots=True)
class _Plan:
    """What is known of a loop before an attempt.

    `moving` are numbers of arguments that start in a variable and go on in another; `carried` are
    variables whose content is, and `lost` those that have no content known in every iteration.
    """

    header: str
    arguments: tuple[Value, ...]
    variables: list[Variable]
    carried: set[Variable]
    moving: set[int] = field(default_factory=set)
    lost: set[Variable] = field(default_factory=set)
    shapes: dict[Any, Any] = field(default_factory=dict)  # by number of argument, or by variable

    def learn(self, attempt: "_Attempt", iteration: Iteration) -> bool:
        """Take from an attempt what the next one needs.  False if that is nothing new."""
        before = self._size()
        for key, parameter, value in zip(
            attempt.keys, iteration.parameters, iteration.next, strict=True
        ):
            own, new = parameter.get_partial_shape(), content(value).get_partial_shape()
            self.shapes[key] = _wider(own, new)
        is_settled = all(
            self.shapes[key] == parameter.get_partial_shape()
            for key, parameter in zip(attempt.keys, iteration.parameters, strict=True)
        )
        self.moving |= attempt.moved
        for variable in attempt.changed():
            is_lost = isinstance(attempt.last[variable], Lost)
            (self.lost if is_lost else self.carried).add(variable)
        return not is_settled or before != self._size()

    def _size(self) -> tuple[int, ...]:
        return len(self.moving), len(self.carried), len(self.lost)


@dataclass(slots=True)
class _Attempt:
    """One try to walk an iteration; `keys` say what each parameter is for."""

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
                one: self._parameter(one, one.current)
                for one in plan.variables
                if one in plan.carried - plan.lost
            }
            contents.set(inside | {one: Lost(UNCLEAR) for one in plan.lost})
            self.first = contents.now()
            outcome = iterate(arguments)
            self.last = contents.now()
            ways = {name: contents.held(way) for name, way in outcome.ways.items()}
        following = self._following(ways.get(plan.header))
        return Iteration(
            BranchOutcome(ways, outcome.selector),
            self.parameters,
            self.starts,
            following,
            self._changes(),
        )

    def changed(self) -> list[Variable]:
        return [one for one in self.plan.variables if self.last[one] is not self.first[one]]

    def _changes(self) -> dict[Variable, int | None]:
        numbers = {key: number for number, key in enumerate(self.keys)}
        return {
            one: None if isinstance(self.last[one], Lost) else numbers.get(one)
            for one in self.changed()
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
        """What the next iteration gets, by parameter."""
        if way is None:
            return list(self.parameters)
        before, after = list(flat(self.plan.arguments)), list(flat(way))
        if len(before) != len(after):
            raise UnsupportedTensor(
                f"the loop of graph '{self.plan.header}' changes what it carries"
            )
        for number, (start, value) in enumerate(zip(before, after, strict=True)):
            is_stored = holder(start) is not None
            if (isinstance(value, Held) or _is_plain(value)) != (is_stored or _is_plain(start)):
                raise UnsupportedTensor(
                    f"the loop of graph '{self.plan.header}' changes what it carries"
                )
            stays = isinstance(value, Held) and value.source is start
            if is_stored and not stays and number not in self.entries:
                self.moved.add(number)
        self._check_shared(after)
        following = {number: after[number] for number in self.keys if isinstance(number, int)}
        return [following[key] if isinstance(key, int) else self._kept(key) for key in self.keys]

    def _kept(self, variable: Variable) -> Value:
        last = self.last[variable]
        return self.first[variable] if isinstance(last, Lost) else last

    def _check_shared(self, after: list[Value]) -> None:
        """What goes on in other variables must not be seen by those that share it."""
        changed = set(self.changed())
        is_changed = any(entry.changed for entry in self.entries.values())
        roots = [after[number].root for number in self.entries if isinstance(after[number], Held)]
        others = {*self.first, *self.entries.values()}
        if not changed.isdisjoint(roots) or (
            is_changed and (len(set(roots)) < len(roots) or not others.isdisjoint(roots))
        ):
            raise UnsupportedTensor(UNCLEAR)


def _is_plain(value: Value) -> bool:
    return isinstance(value, ov.Output | Constant) or is_number(value)


def _wider(one: Any, other: Any) -> Any:
    """A shape that both are of."""
    if one.rank != other.rank or one.rank.is_dynamic:
        return ov.PartialShape.dynamic()
    return ov.PartialShape(
        [a if a == b else ov.Dimension() for a, b in zip(one, other, strict=True)]
    )
