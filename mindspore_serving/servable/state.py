"""`declare_state`: a value that a method keeps between the requests of a sequence."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from mindspore_serving.core import dtype as dtypes
from mindspore_serving.core.sequences import MethodState, initial_state
from mindspore_serving.errors import InvalidInputs
from mindspore_serving.servable.check import check_int, check_str
from mindspore_serving.servable.method_builder import MethodBuilder, Placeholder, building


class StatePlaceholder(Placeholder):
    """Placeholder of a state: its value before a request; `update` sets the value after it."""

    __slots__ = ("initial", "name")

    def __init__(
        self, builder: MethodBuilder, slot: int, name: str, initial: "np.ndarray[Any, Any]"
    ) -> None:
        super().__init__(builder, slot)
        self.name, self.initial = name, initial

    def update(self, value: object) -> None:
        """Set the placeholder whose value the next request of the sequence gets.

        Raises RuntimeError for a second call, and for another value than a placeholder.
        """
        if self.slot in self.builder.next_slots_of_states:
            raise self.builder.failure(f"state '{self.name}' is updated twice")
        (slot,) = self.builder.slots_of((value,), f"The next value of state '{self.name}'")
        self.builder.next_slots_of_states[self.slot] = slot


def declare_state(
    name: str,
    shape: int | Sequence[int],
    dtype: object = "float32",
    initial: object = 0,
) -> StatePlaceholder:
    """Declare a state of the method being registered, before its first stage.

        @register.register_method(output_names=["y"])
        def predict(x):
            state = register.declare_state("state", 128)
            y, new = register.add_stage(model, x, state, outputs_count=2)
            state.update(new)
            return y

    Each sequence of requests has its own state: the first request gets `initial`, each later one
    what the one before has passed to `update`.  A client has to name a sequence to call the method.

    Args:
        name: Name in errors.
        shape: Shape of the state of one sequence, without a batch dimension.  It cannot change.
        dtype: A number type of numpy, or its name.
        initial: A number, or an array of that shape.

    Returns the placeholder of the state.  Raises RuntimeError for a wrong argument or place.
    """
    builder = building("declare_state")
    check_str("name", name)
    dims = shape if isinstance(shape, tuple | list) else (shape,)
    sizes = [check_int("shape", size, 1) for size in dims]
    if builder.stages:
        raise builder.failure(f"declare_state('{name}') has to be before the first add_stage")
    if any(state.name == name for state in builder.states):
        raise builder.failure(f"state '{name}' is declared twice")
    try:
        kind = np.dtype(dtype)  # type: ignore[call-overload]
    except TypeError:
        kind = None
    if kind not in dtypes.BY_NUMPY or kind.kind not in "biuf":
        raise builder.failure(f"the dtype of state '{name}' is {dtype!r}, expected one of numbers")
    slot = len(builder.inputs) + len(builder.states)
    state = StatePlaceholder(builder, slot, name, initial_state(name, sizes, kind, initial))
    builder.states.append(state)
    return state


def states_of(builder: MethodBuilder) -> tuple[MethodState, ...]:
    """Return the states of a method that has been built.  Raises InvalidInputs."""
    for state in builder.states:
        if state.slot not in builder.next_slots_of_states:
            raise builder.failure(
                f"state '{state.name}' is never updated: call its method update with the value for "
                "the next request"
            )
    if builder.states and any(stage.streams for stage in builder.stages):
        raise builder.failure("a method with a state cannot stream its answers")
    if builder.states and not builder.stages:
        raise InvalidInputs(f"method '{builder.name}' has a state, but no stage")
    return tuple(
        MethodState(state.name, state.initial, state.slot, builder.next_slots_of_states[state.slot])
        for state in builder.states
    )
