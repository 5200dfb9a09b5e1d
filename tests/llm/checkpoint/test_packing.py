"""Rounding matrices to integers: the arithmetic, by hand and within bounds."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from mindspore_serving.errors import StartError
from mindspore_serving.llm.checkpoint.packing import (
    Packed,
    pack,
    packed_form,
    packed_tensor,
    unpack,
)


def test_int8_has_a_scale_per_output():
    """Largest 127/64 and 0: scales 1/64 and 0."""
    weight = np.array([[127, -64, 1, 0], [0, 0, 0, 0]], np.float32) / 64
    packed = pack(weight, 8)
    assert packed.values.tolist() == [[127, -64, 1, 0], [0, 0, 0, 0]]
    assert packed.scales.tolist() == [[1 / 64], [0.0]]
    np.testing.assert_array_equal(unpack(packed), weight)


def test_int4_maps_the_largest_weight_to_minus_eight():
    """Group of 32 with 16 the largest: scale -2, so 16 -> -8, -14 -> 7, 2 -> -1."""
    weight = np.zeros((1, 32), np.float32)
    weight[0, :4] = [16, -14, 2, 4]
    packed = pack(weight, 4)
    assert (packed.bits, packed.group) == (4, 32)
    assert packed.scales.tolist() == [[-2.0]]
    assert packed.values[0, :2].tolist() == [0x8 | 0x7 << 4, 0xF | 0xE << 4]
    np.testing.assert_array_equal(unpack(packed), weight)


@pytest.mark.parametrize(
    ("inputs", "form"), [(256, (4, 128)), (192, (4, 64)), (96, (4, 32)), (80, (8, 80))]
)
def test_int4_takes_the_largest_group_that_divides_and_else_int8(inputs, form):
    assert packed_form(inputs, 4) == form
    packed = pack(np.ones((2, inputs), np.float32), 4)
    assert (packed.bits, packed.group) == form


@settings(max_examples=60)
@given(
    arrays.arrays(np.float32, (3, 64), elements=st.floats(-1e3, 1e3, width=32)),
    st.sampled_from([8, 4]),
)
def test_no_weight_is_off_by_more_than_a_step(weight, bits):
    """Half a step of rounding; the step that -8..7 lacks on one side; and a scale in float16."""
    packed = pack(weight, bits)
    steps = np.abs(packed.scales.astype(np.float32)).repeat(packed.group, 1)
    largest = np.abs(weight).reshape(3, -1, packed.group).max(-1).repeat(packed.group, 1)
    allowed = steps * (0.5 if bits == 8 else 1.0) + largest * 2**-10 + 2.0**-17
    assert (np.abs(unpack(packed) - weight) <= allowed).all()


def test_large_matrices_are_rounded_in_pieces_to_the_same(monkeypatch):
    weight = np.random.default_rng(0).standard_normal((50, 64)).astype(np.float32)
    whole = pack(weight, 4)
    monkeypatch.setattr("mindspore_serving.llm.checkpoint.packing.CHUNK", 64 * 7)
    pieces = pack(weight, 4)
    np.testing.assert_array_equal(whole.values, pieces.values)
    np.testing.assert_array_equal(whole.scales, pieces.scales)


def test_scales_of_another_shape_are_refused_by_name():
    with pytest.raises(StartError, match="tensor 'w' is .* with scales"):
        packed_tensor("w", np.zeros((4, 8), np.int8), np.zeros((3, 1), np.float16))
    assert isinstance(packed_tensor("w", np.zeros((4, 8), np.int8), np.zeros((4, 1), np.float16)),
                      Packed)  # fmt: skip
