"""What a stage may return, and what a stage is given."""

import numpy as np
import pytest

from mindspore_serving.core.value import TensorSpec, to_argument, to_value
from mindspore_serving.errors import StageFailed


class MindSporeLike:
    def asnumpy(self):
        return np.array([1.5, 2.5], np.float32)


class TorchLike:
    def __array__(self, dtype=None, copy=None):
        return np.array([3, 4], np.int16)


@pytest.mark.parametrize(
    ("result", "dtype", "values"),
    [
        (True, "bool", True),
        (3, "int64", 3),
        (0.5, "float64", 0.5),
        (np.float16(0.25), "float16", 0.25),
        ([1, 2], "int64", [1, 2]),
        ((0.5, 1.5), "float64", [0.5, 1.5]),
        ([[1, 2], [3, 4]], "int64", [[1, 2], [3, 4]]),
        (MindSporeLike(), "float32", [1.5, 2.5]),
        (TorchLike(), "int16", [3, 4]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_numbers_and_tensors_become_arrays(result, dtype, values):
    value = to_value(result)
    assert value.dtype == dtype
    assert value.tolist() == values


def test_texts_and_bytes_are_unchanged():
    assert to_value("a") == "a"
    assert to_value(b"a") == b"a"
    assert to_value(bytearray(b"ab")) == b"ab"
    assert to_value(memoryview(b"abc")[1:]) == b"bc"


def test_a_transposed_array_is_made_contiguous():
    value = to_value(np.arange(6).reshape(2, 3).T)
    assert value.flags.c_contiguous
    assert value.tolist() == [[0, 3], [1, 4], [2, 5]]


def test_a_contiguous_array_is_not_copied():
    array = np.arange(3)
    assert to_value(array) is array


@pytest.mark.parametrize(
    "result",
    [None, object(), {"a": 1}, {1}, [1, "a", None], [[1], [1, 2]], 1 << 70, 1j, ["a", "b"]],
    ids=lambda value: repr(value) if type(value) is not object else "object",
)
def test_other_results_are_refused_by_type(result):
    with pytest.raises(StageFailed, match="Get illegal result data with type"):
        to_value(result)


def test_the_refusal_of_an_array_names_its_dtype():
    with pytest.raises(StageFailed, match="dtype complex128"):
        to_value(np.zeros(1, complex))


def test_a_stage_sees_bytes_as_uint8():
    argument = to_argument(b"\x01\xff")
    assert argument.dtype == np.uint8
    assert argument.tolist() == [1, 255]


def test_a_stage_sees_texts_and_arrays_as_they_are():
    array = np.arange(2)
    assert to_argument("a") == "a"
    assert to_argument(array) is array


@pytest.mark.parametrize(
    ("shape", "is_static"), [((2, 3), True), ((), True), ((-1, 3), False), (None, False)]
)
def test_a_spec_is_static_if_every_dimension_is_known(shape, is_static):
    assert TensorSpec("x", None, shape).is_static is is_static
