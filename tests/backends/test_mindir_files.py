"""MindIR files, on MindSpore and on OpenVINO."""

import numpy as np
import pytest

pytestmark = [
    pytest.mark.mindspore,
    pytest.mark.filterwarnings("ignore:getName\\(\\) is deprecated:DeprecationWarning"),
]


def f32(*rows):
    return np.array(rows, np.float32)


@pytest.fixture(params=["mindir", "mindir_openvino"])
def loaded(request, mindir, opened):
    """loaded(name, ...): the backend of files of these names."""
    return lambda *names: opened(request.param, *(mindir / f"{name}.mindir" for name in names))


def test_a_fixed_model_adds(loaded):
    backend = loaded("add")
    (result,) = backend.run([f32([1, 2], [3, 4]), f32([10, 20], [30, 40])])
    np.testing.assert_array_equal(result, f32([11, 22], [33, 44]))


def test_a_loop_and_a_branch_run(loaded):
    backend = loaded("loop")
    (result,) = backend.run([f32([1, 2], [3, 4])])
    np.testing.assert_array_equal(result, f32([5, 9], [13, 17]))  # doubled twice, plus one
    (result,) = backend.run([f32([-1, 2], [3, 4])])
    np.testing.assert_array_equal(result, f32([-5, 7], [11, 15]))  # or minus one
    assert backend.signature[0].outputs[0].shape == (2, 2)


def test_several_files_are_sub_graphs(loaded):
    backend = loaded("add", "two_open")
    ones = np.ones((2, 2), np.float32)
    assert [len(signature.outputs) for signature in backend.signature] == [1, 2]
    assert len(backend.run([ones, ones], 0)) == 1
    np.testing.assert_array_equal(backend.run([ones, ones], 1)[1], np.zeros((2, 2)))


def test_a_bfloat16_input_is_taken_as_float32(loaded):
    backend = loaded("bfloat16_input")
    assert backend.signature[0].inputs[0].dtype == np.float32
    (result,) = backend.run([f32([1, 2.5], [3, 4])])
    np.testing.assert_array_equal(result, f32([3, 6], [7, 9]))


def test_nested_outputs_are_flattened_and_bfloat16_becomes_float32(loaded):
    backend = loaded("nested")
    results = backend.run([f32([1, 2], [3, 4])])
    assert [spec.dtype for spec in backend.signature[0].outputs] == [np.float32] * 3
    for result, expected in zip(results, ([1, 2, 3, 4], [2, 3, 4, 5], [1, 2, 3, 4]), strict=True):
        assert result.dtype == np.float32
        np.testing.assert_array_equal(result.ravel(), expected)


def test_read_only_and_unaligned_arrays_are_accepted(loaded):
    backend = loaded("add")
    values = f32([1, 2], [3, 4])
    read_only = np.frombuffer(values.tobytes(), np.float32).reshape(2, 2)
    unaligned = np.frombuffer(b"\0" + values.tobytes(), np.float32, 4, 1).reshape(2, 2)
    assert not unaligned.flags.aligned
    (result,) = backend.run([read_only, unaligned])
    np.testing.assert_array_equal(result, 2 * values)
