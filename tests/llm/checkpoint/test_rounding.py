"""Rounding with zeros, by arithmetic, and integers that do not belong together."""

import numpy as np
import pytest

from mindspore_serving.errors import StartError
from mindspore_serving.llm.checkpoint.packing import pack, packed_tensor, unpack


def test_with_zeros_errors_are_at_most_half_a_step_and_0_is_exact():
    random = np.random.default_rng(0)
    weight = random.uniform(-1, 3, (24, 256)).astype(np.float32)
    weight[:, ::7] = 0
    packed = pack(weight, 4, 64, has_zeros=True)
    assert packed.group == 64
    steps = np.repeat(packed.scales.astype(np.float32), 64, axis=1)
    found = unpack(packed)
    np.testing.assert_array_equal(found[:, ::7], 0)
    # Half a step, and what the zero and the ends are rounded by.
    assert (np.abs(found - weight) <= 1.01 * steps).all()
    assert (np.abs(found - weight) <= 0.51 * steps).mean() > 0.9


def test_groups_of_a_single_sign_and_of_zeros_are_kept():
    weight = np.zeros((3, 64), np.float32)
    weight[0, :32], weight[1, 32:] = 2.0, -3.0
    np.testing.assert_allclose(unpack(pack(weight, 4, 32, has_zeros=True)), weight, atol=2e-3)


def test_zeros_that_do_not_fit_are_refused_by_name():
    values, scales = np.zeros((4, 32), np.uint8), np.ones((4, 2), np.float16)
    assert packed_tensor("w", values, scales, np.zeros((4, 2), np.uint8)).group == 32
    with pytest.raises(StartError, match=r"'w' is 4 bit with scales \[4, 2\] and zeros \[4, 1\]"):
        packed_tensor("w", values, scales, np.zeros((4, 1), np.uint8))
