"""Declarations in progress: the servable, and a method while its function runs on placeholders.

It knows slots and counts; `servable.method` knows the kinds of stages.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any

from mindspore_serving.core.declaration import Declaration
from mindspore_serving.core.graph import Method, Stage, StageKind
from mindspore_serving.errors import InvalidInputs

_NO_VALUE = (
    "the body of a method runs once, at registration, when its inputs have no values; write a "
    "function that computes, and pass it to add_stage"
)
_current: ContextVar[Declaration | None] = ContextVar("declaration", default=None)


@contextmanager
def declaring(declaration: Declaration) -> Iterator[None]:
    """Collect the declarations of this thread into `declaration` during the block."""
    token = _current.set(declaration)
    try:
        yield
    finally:
        _current.reset(token)


def current(caller: str) -> Declaration:
    """Return the declaration in progress; raises InvalidInputs naming `caller` if there is none."""
    declaration = _current.get()
    if declaration is None:
        raise InvalidInputs(
            f"Failed to obtain the directory of servable_config.py: '{caller}' may only be called "
            "while the server imports a servable_config.py, in it or in a module it imports"
        )
    return declaration


class Placeholder:
    """Placeholder of a value of a request while a method is registered."""

    __slots__ = ("builder", "slot")

    def __init__(self, builder: "MethodBuilder", slot: int) -> None:
        self.builder, self.slot = builder, slot

    def __bool__(self) -> bool:
        raise self.builder.failure(
            "a placeholder has no value yet, so it cannot decide a condition: the body of a method "
            "runs once, at registration; test values inside a stage function"
        )


@dataclass(slots=True)
class MethodBuilder:
    """Method being registered; slots 0 .. n-1 are its inputs."""

    declaration: Declaration
    function: Callable[..., Any]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    stages: list[Stage] = field(default_factory=list)
    deprecated_calls: list[str] = field(default_factory=list)  # used by `servable.legacy`

    @property
    def name(self) -> str:
        return self.function.__name__

    def run(self) -> tuple[int, ...]:
        """Run the function on placeholders; return the slots that it returns."""
        token = _building.set(self)
        try:
            returned = self.function(*(Placeholder(self, slot) for slot in range(len(self.inputs))))
        except (TypeError, AttributeError) as error:
            text = str(error)
            if Placeholder.__name__ not in text or "unpack" in text:
                raise
            failure = self.failure(f"{text}: {_NO_VALUE}")
            raise failure.with_traceback(error.__traceback__) from None  # which has the line
        finally:
            _building.reset(token)
        results = returned if isinstance(returned, tuple | list) else (returned,)
        return self.slots_of(results, "Each value returned")

    def next_slots(self, number: int) -> tuple[int, ...]:
        """Return the slots for the outputs of the next stage."""
        first = len(self.inputs) + sum(len(stage.outputs) for stage in self.stages)
        return tuple(range(first, first + number))

    def slots_of(self, values: Sequence[object], what: str) -> tuple[int, ...]:
        """Return the slots of placeholders of this method.

        Raises InvalidInputs for other values.
        """
        slots = []
        for value in values:
            if not isinstance(value, Placeholder) or value.builder is not self:
                raise self.failure(
                    f"{what} is a placeholder for data and must come from the method inputs or the "
                    f"outputs of add_stage, but actually {type(value)}"
                )
            slots.append(value.slot)
        return tuple(slots)

    def add(self, stage: Stage) -> Placeholder | tuple[Placeholder, ...]:
        """Append `stage`; return a placeholder, or a tuple of them if it has several outputs.

        Raises InvalidInputs if an earlier use of its model or function does not agree.
        """
        methods = self.declaration.methods.values()
        for earlier in (*(stage for method in methods for stage in method.stages), *self.stages):
            if _target(earlier) == _target(stage) and stage.kind is not StageKind.LANGUAGE:
                _check_agreement(self.name, stage, earlier)
        self.stages.append(stage)
        placeholders = tuple(Placeholder(self, slot) for slot in stage.outputs)
        return placeholders[0] if len(placeholders) == 1 else placeholders

    def add_stages_of(
        self, method: Method, inputs: Sequence[int]
    ) -> Placeholder | tuple[Placeholder, ...]:
        """Append the stages of `method`, which gets the slots `inputs`; return as `add` does."""
        slots = list(inputs)
        for stage in method.stages:
            outputs = self.next_slots(len(stage.outputs))
            moved = tuple(slots[slot] for slot in stage.inputs)
            self.add(replace(stage, inputs=moved, outputs=outputs))
            slots += outputs
        placeholders = tuple(Placeholder(self, slots[slot]) for slot in method.returns)
        return placeholders[0] if len(placeholders) == 1 else placeholders

    def failure(self, reason: str) -> InvalidInputs:
        """Return an error about this method."""
        return InvalidInputs(f"Check failed in method '{self.name}', {reason}")


_building: ContextVar[MethodBuilder | None] = ContextVar("method", default=None)


def building(caller: str) -> MethodBuilder:
    """Return the method being registered; raises InvalidInputs naming `caller` if there is none."""
    builder = _building.get()
    if builder is None:
        raise InvalidInputs(
            f"'{caller}' may only be called in a function decorated by register_method, while "
            "servable_config.py is imported"
        )
    return builder


def _target(stage: Stage) -> tuple[StageKind, str, int, int]:
    return stage.kind, stage.target, stage.subgraph, stage.version


def _check_agreement(method: str, stage: Stage, earlier: Stage) -> None:
    """Check that uses of a model or function agree in inputs, outputs and batches."""
    _check_count(method, stage, "inputs", (len(stage.inputs), len(earlier.inputs)))
    _check_count(method, stage, "outputs", (len(stage.outputs), len(earlier.outputs)))
    if (stage.batch_size is None) != (earlier.batch_size is None):
        raise InvalidInputs(
            f"Failed to add stage function {stage.target}: parameter 'batch_size' in multiple "
            "'add_stage' should be enabled or disabled consistently"
        )


def _check_count(method: str, stage: Stage, noun: str, counts: tuple[int, int]) -> None:
    new, old = counts
    if new == old:
        return
    if stage.kind is StageKind.MODEL:
        raise InvalidInputs(
            f"RegisterInputOutputInfo failed, {noun} count {new} not match old count {old}, "
            f"model: {stage.target}"
        )
    raise InvalidInputs(
        f"Stage function '{stage.target}' {noun} count {new} not match last registered count "
        f"{old}, method name '{method}'"
    )
