"""Inputs of models that the server fills: their slots in the graph of a method."""

import numpy as np
import pytest

from mindspore_serving.core.graph import Method, Stage, StageKind
from mindspore_serving.core.sequences import ControlInput, MethodControl
from mindspore_serving.core.signature import InstanceSignature, ValueSpec
from mindspore_serving.errors import InvalidInputs, StartError
from mindspore_serving.ipc.messages import ModelReport, SequencePart, StateReport
from mindspore_serving.worker.model_states import with_model_states
from mindspore_serving.worker.sequences import SequenceStore

START = ControlInput("start", "start", "int32", (-1, 1))
ID = ControlInput("id", "id", "uint32")
STAGE = Stage(StageKind.MODEL, "net", (0,), (1,), "Model 'net'")
METHOD = Method("predict", ("x",), ("y",), (STAGE,), (1,))


def report(shape: tuple[int | None, ...] | None = (1,)) -> ModelReport:
    inputs = [
        ValueSpec("start", "int32", shape),
        ValueSpec("h", "float32", (2,)),
        ValueSpec("x", "float32", (2,)),
        ValueSpec("id", "uint32", ()),
    ]
    outputs = (ValueSpec("y", "float32", (2,)), ValueSpec("next", "float32", (2,)))
    graph = InstanceSignature(tuple(inputs), outputs)
    return ModelReport(0, [graph], [StateReport("h", "next")], controls=(ID, START))


def test_slots_of_control_inputs_follow_those_of_states() -> None:
    method = with_model_states(METHOD, {"net": report()})
    assert method.needs_sequence
    assert method.stages[0].inputs == (3, 1, 0, 2)  # slots: x, h, id, start
    assert (method.stages[0].outputs, method.returns) == ((4, 5), (4,))
    assert [(state.slot, state.next_slot) for state in method.states] == [(1, 5)]
    assert method.controls == (MethodControl(ID, ()), MethodControl(START, (1,)))


@pytest.mark.parametrize(("shape", "expected"), [(None, (1,)), ((None, 1), (1, 1)), ((), ())])
def test_a_control_input_has_the_shape_of_the_model(
    shape: tuple[int | None, ...] | None, expected: tuple[int, ...]
) -> None:
    method = with_model_states(METHOD, {"net": report(shape)})
    assert method.controls[1].shape == expected


def test_a_control_input_of_several_values_is_refused() -> None:
    with pytest.raises(StartError, match=r"control input 'start' has shape \[3\] in an instance"):
        with_model_states(METHOD, {"net": report((3,))})


def test_only_the_first_instance_of_a_start_begins_a_sequence() -> None:
    method = with_model_states(METHOD, {"net": report()})
    store = SequenceStore(method.states, method.controls)
    part = SequencePart(1, is_start=True, id=9)
    rows = [store.values(part), store.values(part, is_first=False), store.values(None)]
    assert [[number.item() for number in row[1:]] for row in rows] == [[9, 1], [9, -1], [0, 1]]
    assert [array.dtype for array in rows[0]] == [np.float32, np.uint32, np.int32]
    with pytest.raises(InvalidInputs, match="sequence_id is 4294967296, expected a number up to"):
        store.values(SequencePart(1, id=2**32))


def test_a_sequence_without_a_state_continues_on_another_worker() -> None:
    store, other = (SequenceStore((), (MethodControl(START, ()),)) for _ in range(2))
    store.put(SequencePart(1, is_start=True), store.checked([]))
    kept = store.settle(SequencePart(1, is_start=True, is_kept=True), has_failed=False)
    part = SequencePart(4, state=kept, is_kept=True)
    other.begin(part)
    assert (len(other), [value.item() for value in other.values(part)]) == (1, [-1])
