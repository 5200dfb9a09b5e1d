"""Shapes that clients send: what is accepted, numpy can make."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mindspore_serving.wire import tensor
from mindspore_serving.wire.v2 import tensors

COUNTS = [tensor.count_elements, tensors.count_elements]
sizes = st.sampled_from([0, 0, 1, 2, 3, 2**31 - 1, 2**31, 2**40, 2**62, 2**64])


@pytest.mark.parametrize("count", COUNTS)
@given(st.lists(sizes, max_size=6))
def test_numpy_can_create_accepted_shapes(count, shape):
    found = count(tuple(shape))
    if found is None:
        assert 0 in shape or math.prod(shape) >= 2**31
    else:
        assert found == math.prod(shape) < 2**31
    if found == 0:
        assert np.ndarray(shape, np.float64, b"").size == 0


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("shape", [(2**40, 2**40, 0), (2**31 - 1, 2**31 - 1, 0), (2**31,), (-1, 3)])
def test_a_shape_that_is_too_large_is_refused_even_with_a_0_dimension(count, shape):
    assert count(shape) is None


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize(("shape", "elements"), [((), 1), ((0,), 0), ((2, 3), 6), ((5, 0), 0)])
def test_elements_are_counted(count, shape, elements):
    assert count(shape) == elements
