"""States of the sequences of one method in this worker.  It knows no clock and no channel."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from mindspore_serving.core import casting
from mindspore_serving.core.sequences import MethodControl, MethodState, SequenceStep, control_value
from mindspore_serving.core.value import Value
from mindspore_serving.errors import InvalidInputs, StageFailed
from mindspore_serving.ipc.messages import SequencePart
from mindspore_serving.wire import native

Arrays = tuple["np.ndarray[Any, Any]", ...]


class SequenceStore:
    """States by the number of a sequence.  The master limits their number and ends idle ones."""

    def __init__(
        self, states: tuple[MethodState, ...], controls: tuple[MethodControl, ...] = ()
    ) -> None:
        self._states, self._controls = states, controls
        self._arrays: dict[int, Arrays] = {}
        self._initial: Arrays = tuple(state.initial for state in states)
        self._has_text_id = any(control.input.dtype == "str" for control in controls)

    @property
    def num_bytes(self) -> int:
        """Bytes of the states of one sequence."""
        return sum(array.nbytes for array in self._initial)

    def __len__(self) -> int:
        return len(self._arrays)

    def begin(self, sequence: SequencePart) -> None:
        """Prepare for a part: a start has the initial state, and another worker's may come along.

        Raises InvalidInputs.
        """
        if sequence.is_start:
            self._arrays.pop(sequence.number, None)
        elif sequence.state is not None:
            values = native.decode_values(bytearray(sequence.state))
            self._arrays[sequence.number] = tuple(np.asarray(value) for value in values)

    def values(
        self, sequence: SequencePart | None, *, is_first: bool = True, is_last: bool = True
    ) -> list[Value]:
        """Return copies of the states, which stages may change, and the control inputs.

        They are those of an instance of a part, which may be its first or last one.  Without a
        sequence the states are the initial ones, and the instance is the first and the last.
        Raises InvalidInputs for an id that a control input cannot hold.
        """
        arrays = self._initial
        step = SequenceStep("" if self._has_text_id else 0, is_start=True, is_end=True)
        if sequence is not None:
            arrays = self._arrays.get(sequence.number, arrays)
            is_start, is_end = sequence.is_start and is_first, sequence.is_end and is_last
            step = SequenceStep(sequence.id, is_start, is_end)
        controls = [control_value(control, step) for control in self._controls]
        return [*(array.copy() for array in arrays), *controls]

    def checked(self, values: Sequence[Value]) -> Arrays:
        """Return the new states of an instance, with its slots `values`.

        They are copies: those of a batch share memory.  Raises StageFailed for a state of another
        shape, and of a dtype that `core.casting` does not convert.
        """
        return tuple(_checked(state, values[state.next_slot]) for state in self._states)

    def put(self, sequence: SequencePart, arrays: Arrays) -> None:
        """Set the states of a sequence."""
        self._arrays[sequence.number] = arrays

    def settle(self, sequence: SequencePart, *, has_failed: bool) -> bytes | None:
        """End a part; return the state for the master, if it keeps it.

        The sequence ends with its last request, and with a start that has failed.
        """
        if sequence.is_end or (sequence.is_start and has_failed):
            self.end((sequence.number,))
        elif sequence.is_kept and sequence.number in self._arrays:
            return native.encode_values(self._arrays[sequence.number])
        return None

    def end(self, numbers: Sequence[int]) -> None:
        """Drop the states of sequences."""
        for number in numbers:
            self._arrays.pop(number, None)


def _checked(state: MethodState, value: Value) -> "np.ndarray[Any, Any]":
    expected = state.initial
    if not isinstance(value, np.ndarray | np.generic):
        raise StageFailed(f"state '{state.name}' became {type(value).__name__}, not an array")
    if value.shape == expected.shape and value.dtype == expected.dtype:
        return np.array(value, order="C")
    reason = "a state keeps its shape"
    if value.shape == expected.shape:
        try:
            return np.array(casting.cast(np.asarray(value), expected.dtype), order="C")
        except InvalidInputs as error:
            reason = str(error)
    raise StageFailed(
        f"state '{state.name}' became {value.dtype} {list(value.shape)}, it is declared as "
        f"{expected.dtype} {list(expected.shape)}: {reason}"
    )
