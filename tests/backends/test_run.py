import numpy as np
import pytest

from mindspore_serving.backends.run import run_model
from mindspore_serving.core.declaration import DeclaredModel
from mindspore_serving.core.value import Signature, TensorSpec
from mindspore_serving.errors import InvalidInputs, StageFailed, WorkerUnavailable


def f32(*values):
    return np.array(values, np.float32)


def as_lists(outcomes):
    return [[array.tolist() for array in outcome] for outcome in outcomes]


@pytest.mark.mindspore
def test_a_fixed_batch_is_filled_up_and_only_real_instances_come_back(mindir, opened):
    backend, spec = opened("mindir", mindir / "add_batch3.mindir"), DeclaredModel("add", "mindir")
    instances = [(f32(i, i), f32(10, 20)) for i in range(7)]
    outcomes = run_model(backend, spec, 0, instances)
    assert as_lists(outcomes) == [[[10.0 + i, 20.0 + i]] for i in range(7)]


@pytest.mark.mindspore
def test_without_batch_dimension_every_instance_is_a_run(mindir, opened):
    backend = opened("mindir", mindir / "add.mindir")
    spec = DeclaredModel("add", "mindir", with_batch_dim=False)
    x = f32([1, 2], [3, 4])
    outcomes = run_model(backend, spec, 0, [(x, x), (x, 2 * x)])
    assert as_lists(outcomes) == [[(2 * x).tolist()], [(3 * x).tolist()]]


@pytest.mark.mindspore
def test_a_bad_instance_fails_alone(mindir, opened):
    backend, spec = opened("mindir", mindir / "add_batch3.mindir"), DeclaredModel("add", "mindir")
    good = (f32(1, 2), f32(3, 4))
    bad = (f32(1, 2, 3), f32(3, 4))
    first, second, third = run_model(backend, spec, 0, [good, bad, good])
    assert as_lists([first, third]) == [[[4.0, 6.0]]] * 2
    assert isinstance(second, InvalidInputs)
    assert str(second) == (
        "input 'x1' is float32 [3], expected float32 [2]. "
        "Given model input 0 size 12 not match the size 8 defined in model"
    )


@pytest.mark.mindspore
def test_results_are_copies_and_inputs_are_not_changed(mindir, opened):
    backend = opened("mindir", mindir / "same.mindir")
    spec = DeclaredModel("same", "mindir", with_batch_dim=False)
    given = f32([1, 2], [3, 4])
    ((first,),) = run_model(backend, spec, 0, [(given,)])
    run_model(backend, spec, 0, [(f32([9, 9], [9, 9]),)])
    assert not np.shares_memory(first, given)
    assert first.tolist() == [[1, 2], [3, 4]]


@pytest.mark.onnx
def test_an_open_batch_is_run_at_once_with_as_many_as_there_are(onnx, opened):
    backend, spec = opened("onnx", onnx / "open.onnx"), DeclaredModel("open", "onnx")
    outcomes = run_model(backend, spec, 0, [(f32(i, 0), f32(1, 1)) for i in range(4)])
    assert as_lists(outcomes) == [[[i + 1.0, 1.0], [i - 1.0, -1.0]] for i in range(4)]


@pytest.mark.onnx
def test_an_output_without_the_batch_fails_the_run_and_is_named(onnx, opened):
    backend, spec = opened("onnx", onnx / "unbatched.onnx"), DeclaredModel("sum", "onnx")
    outcomes = run_model(backend, spec, 0, [(f32(1, 2),), (f32(3, 4),)])
    assert [type(outcome) for outcome in outcomes] == [StageFailed] * 2
    assert "shape [] of model output 0 does not match current batch size 2" in str(outcomes[0])


@pytest.mark.onnx
def test_instances_of_different_lengths_are_run_apart(onnx, opened):
    backend = opened("onnx", onnx / "unbatched.onnx")
    spec = DeclaredModel("sum", "onnx", with_batch_dim=False)
    outcomes = run_model(backend, spec, 0, [(f32([1, 2]),), (f32([1, 2, 3]),)])
    assert as_lists(outcomes) == [[3.0], [6.0]]


class ReusesMemory:
    """A backend that answers from one buffer and fails on a negative number."""

    signature = (
        Signature(
            (TensorSpec("x", np.dtype("f4"), (2, 1)),), (TensorSpec("y", np.dtype("f4"), (2, 1)),)
        ),
    )

    def __init__(self):
        self.buffer = np.empty((2, 1), np.float32)

    def run(self, inputs, subgraph=0):
        if (inputs[0] < 0).any():
            raise StageFailed("negative")
        self.buffer[:] = inputs[0]
        return [self.buffer]


def test_a_run_that_fails_fails_its_own_instances_alone():
    outcomes = run_model(
        ReusesMemory(), DeclaredModel("m", "x"), 0, [(f32(i),) for i in (1, -1, 2, 3)]
    )
    assert [type(outcome) for outcome in outcomes] == [StageFailed, StageFailed, tuple, tuple]
    assert str(outcomes[0]) == "Predict Failed, model: 'm', error msg: negative"


def test_lost_model_is_distinguished_from_a_failed_run():
    class Lost(ReusesMemory):
        def run(self, inputs, subgraph=0):
            raise WorkerUnavailable("rank 3 is lost")

    (outcome,) = run_model(Lost(), DeclaredModel("m", "x"), 0, [(f32(1),)])
    assert type(outcome) is WorkerUnavailable
    assert str(outcome) == "Predict Failed, model: 'm', error msg: rank 3 is lost"


def test_results_survive_a_backend_that_reuses_memory():
    outcomes = run_model(ReusesMemory(), DeclaredModel("m", "x"), 0, [(f32(i),) for i in range(5)])
    assert as_lists(outcomes) == [[[float(i)]] for i in range(5)]


def test_no_instances_are_no_outcomes():
    assert run_model(ReusesMemory(), DeclaredModel("m", "x"), 0, []) == []
