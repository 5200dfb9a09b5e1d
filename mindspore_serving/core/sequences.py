"""Sequences: requests of a client that share a state, and the states of methods.  No I/O."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from mindspore_serving.core import dtype as dtypes
from mindspore_serving.errors import InvalidInputs

MAX_ID = 128  # characters of an id
_MAX_NUMBER = (1 << 64) - 1


class SequenceStep(msgspec.Struct, frozen=True):
    """Place of a request in a sequence: its id, and whether it is the first or the last.

    `owner` is the tenant whose sequence it is, "" without API keys: an id of one is not seen by
    another.
    """

    id: int | str
    is_start: bool = False
    is_end: bool = False
    owner: str = ""


def to_step(sequence_id: object, start: object = None, end: object = None) -> SequenceStep | None:
    """Check the parameters of a request; None if it is in no sequence (0, "" or no id).

    Raises InvalidInputs.
    """
    for name, flag in (("sequence_start", start), ("sequence_end", end)):
        if flag is not None and type(flag) is not bool:
            raise InvalidInputs(f"parameter {name} is {flag!r:.64}, expected true or false")
    is_number = type(sequence_id) is int and 0 <= sequence_id <= _MAX_NUMBER
    is_text = isinstance(sequence_id, str) and len(sequence_id) <= MAX_ID
    if sequence_id is not None and not (is_number or is_text):
        raise InvalidInputs(
            f"parameter sequence_id is {sequence_id!r:.64}, expected a number of 0 to 2**64 - 1, "
            f"or a text of at most {MAX_ID} characters"
        )
    if not sequence_id:
        return None
    assert isinstance(sequence_id, int | str)
    return SequenceStep(sequence_id, bool(start), bool(end))


_FLAGS = {"": None, "true": True, "1": True, "false": False, "0": False}


def step_of_texts(sequence_id: str, start: str, end: str) -> SequenceStep | None:
    """Make a step of headers or metadata, like `to_step`.  A flag is true, 1, false or 0."""
    flags = (_FLAGS.get(text.strip().lower(), text) for text in (start, end))
    return to_step(sequence_id.strip(), *flags)


def to_fields(step: SequenceStep) -> tuple[tuple[str, str], ...]:
    """Return the headers or metadata of a step, which `step_of_texts` reads."""
    fields = [("sequence-id", str(step.id))]
    fields += [("sequence-start", "true")] * step.is_start
    fields += [("sequence-end", "true")] * step.is_end
    return tuple(fields)


class ControlInput(msgspec.Struct, frozen=True):
    """Input of a model that the server fills from the place of a request in its sequence.

    `kind` is "start", "end", "ready" or "id". `dtype` is a name of `core.dtype`. `values` are those
    for false and true; an id has none.
    """

    name: str
    kind: str
    dtype: str
    values: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class MethodControl:
    """Control input of a model of a method, and the shape of its value in one instance."""

    input: ControlInput
    shape: tuple[int, ...]


def control_value(control: MethodControl, step: SequenceStep) -> "np.ndarray[Any, Any] | str":
    """Return the value of a control input at a step.  Raises InvalidInputs if the id does not fit.

    Every instance that a worker runs is ready.
    """
    if control.input.kind == "id":
        return _id_value(control, step.id)
    is_true = {"start": step.is_start, "end": step.is_end, "ready": True}[control.input.kind]
    dtype = dtypes.BY_NAME[control.input.dtype].numpy
    return np.full(control.shape, control.input.values[is_true], dtype)


def _id_value(control: MethodControl, value: int | str) -> "np.ndarray[Any, Any] | str":
    dtype = dtypes.BY_NAME[control.input.dtype].numpy
    if dtype is None and isinstance(value, str):
        return value
    if dtype is not None and isinstance(value, int) and value <= np.iinfo(dtype).max:
        return np.full(control.shape, value, dtype)
    expected = "a text" if dtype is None else f"a number up to {np.iinfo(dtype).max}"
    raise InvalidInputs(
        f"sequence_id is {value!r}, expected {expected}: input '{control.input.name}' of the model "
        f"gets the id as {control.input.dtype}"
    )


@dataclass(frozen=True, slots=True)
class MethodState:
    """State of a method: an array that each sequence has, and which its requests replace.

    It is the value of slot `slot` in a request, and the value of slot `next_slot` afterwards.
    """

    name: str
    initial: "np.ndarray[Any, Any]"  # of the first request
    slot: int
    next_slot: int

    @property
    def num_bytes(self) -> int:
        return self.initial.nbytes


def initial_state(
    name: str, shape: Sequence[int], dtype: "np.dtype[Any]", initial: object = 0
) -> "np.ndarray[Any, Any]":
    """Return the first value of a state.  Raises InvalidInputs if `initial` does not fit."""
    array = np.zeros(shape, dtype)
    try:
        array[...] = initial
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidInputs(
            f"the initial value of state '{name}' does not fit {dtype} {list(shape)}: {error}"
        ) from None
    return array
