"""Goldens of norms and rotary embedding by hand."""

import numpy as np

from mindspore_serving.llm.runtimes.mindspore.primitives import goldens


def test_rms_norm_of_a_row_by_hand():
    x, gamma = np.array([[3.0, 4.0]], np.float32), np.array([2.0, 1.0], np.float32)
    y, rstd = goldens.rms_norm(x, gamma, eps=0.0)
    np.testing.assert_allclose(rstd, [[12.5**-0.5]], rtol=1e-6)
    np.testing.assert_allclose(y, [[6 / 12.5**0.5, 4 / 12.5**0.5]], rtol=1e-6)
    added, _, total = goldens.add_rms_norm(x - 1, np.ones_like(x), gamma, eps=0.0)
    np.testing.assert_array_equal(total, x)
    np.testing.assert_array_equal(added, y)


def test_rotary_embedding_turns_a_quarter_by_hand():
    x = np.array([[1.0, 2.0, 3.0, 4.0]], np.float32)
    cos, sin = np.zeros((1, 4), np.float32), np.ones((1, 4), np.float32)
    halves, _ = goldens.rope(x, x, cos, sin, None, cos_format=2)
    pairs, _ = goldens.rope(x, x, cos, sin, None, cos_format=3)
    assert halves.tolist() == [[-3, -4, 1, 2]]
    assert pairs.tolist() == [[-2, 1, -4, 3]]


def test_collectives_of_two_ranks_by_hand():
    parts = np.array([[[1.0, 2.0]], [[10.0, 20.0]]], np.float32)
    assert goldens.all_reduce(*parts).tolist() == [[11, 22]]
    assert goldens.all_gather(*parts).tolist() == [[1, 2], [10, 20]]


def test_swiglu_and_the_choice_of_tokens_by_hand():
    x = np.array([[0.0, 1.0, 7.0, 2.0]], np.float32)
    np.testing.assert_allclose(goldens.swiglu(x), [[0, 2 / (1 + np.exp(-1))]], rtol=1e-6)
    values, indices = goldens.top_k(x, k=2)
    assert (values.tolist(), indices.tolist()) == ([[7, 2]], [[2, 3]])
    assert goldens.argmax(x).tolist() == [2]
