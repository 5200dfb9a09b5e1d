import numpy as np
import pytest

from mindspore_serving.errors import StageFailed
from mindspore_serving.servable.builtins import BUILTINS


def argmax(data):
    function, num_inputs, num_outputs = BUILTINS["argmax_cpp"]
    assert (num_inputs, num_outputs) == (1, 1)
    return function(data)


@pytest.mark.parametrize("dtype", ["i1", "u1", "i4", "u8", "f4", "f8"])
def test_argmax_counts_through_the_flattened_array(dtype):
    result = argmax(np.array([[1, 2, 0], [5, 3, 5]], dtype))
    assert (result.dtype, result.shape, result.item()) == (np.int64, (), 3)


def test_argmax_of_a_scalar_is_zero():
    assert argmax(np.array(7.0)).item() == 0


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (np.ones(2, np.float16), "kMSI_Float16"),
        (np.ones(2, np.bool_), "kMSI_Bool"),
        ("text", "kMSI_String"),
        (b"raw", "kMSI_Bytes"),
    ],
)
def test_argmax_refuses_other_types(data, kind):
    with pytest.raises(StageFailed, match=f"^Argmax not support data type {kind}$"):
        argmax(data)


def test_argmax_refuses_an_array_without_elements():
    with pytest.raises(StageFailed, match="at least one element"):
        argmax(np.ones((0, 2), np.float32))
