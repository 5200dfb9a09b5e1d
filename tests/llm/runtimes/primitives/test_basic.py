"""Goldens of norms, rotary embedding and activation, and the cells composed of plain operators."""

import numpy as np
import pytest

pytestmark = pytest.mark.mindspore
pytest.importorskip("mindspore")

from mindspore_serving.llm.runtimes.mindir.library import mindspore  # noqa: E402
from mindspore_serving.llm.runtimes.mindspore.primitives.table import PRIMITIVES, make  # noqa: E402

RANDOM = np.random.default_rng(3)


def draw(*shape):
    return RANDOM.standard_normal(shape).astype(np.float32)


class Call(mindspore.nn.Cell):
    """A graph of one primitive."""

    def __init__(self, primitive):
        super().__init__()
        self.primitive = primitive

    def construct(self, *arguments):
        return self.primitive(*arguments)


ROWS = [
    ("rms_norm", {"eps": 0.1}, (draw(3, 8), draw(8))),
    ("add_rms_norm", {"eps": 0.1}, (draw(3, 8), draw(3, 8), draw(8))),
    ("rope", {"cos_format": 2}, (draw(3, 16), draw(3, 8), draw(3, 4), draw(3, 4), None)),
    ("rope", {"cos_format": 3}, (draw(3, 16), draw(3, 8), draw(3, 4), draw(3, 4), None)),
    ("swiglu", {}, (draw(3, 8),)),
    ("matmul", {}, (draw(3, 8), draw(5, 8))),
    ("top_k", {"k": 3}, (draw(3, 8),)),
    ("argmax", {}, (draw(3, 8),)),
]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row[0]}{[*row[1].values()]}")
def test_a_composed_cell_equals_its_golden_with_any_number_of_rows(row):
    name, options, arrays = row
    arguments = [x if x is not None else np.array([2, 1], np.int32) for x in arrays]
    cell = Call(make(name, "composed", **options))
    tensors = [mindspore.Tensor(x) for x in arguments]
    is_weight = [False] * len(tensors)
    is_weight[-1] = name in ("rms_norm", "add_rms_norm", "matmul")
    cell.set_inputs(*[
        x if is_last else mindspore.Tensor(shape=[None, *x.shape[1:]], dtype=x.dtype)
        for x, is_last in zip(tensors, is_weight, strict=True)
    ])  # fmt: skip
    got, want = cell.compile_and_run(*tensors), PRIMITIVES[name].golden(*arguments, **options)
    pairs = zip(got, want, strict=True) if isinstance(want, tuple) else [(got, want)]
    for one, other in pairs:
        np.testing.assert_allclose(one.asnumpy(), other, rtol=1e-5, atol=1e-6)


def test_rms_norm_of_a_row_by_hand():
    y, rstd = PRIMITIVES["rms_norm"].golden(
        np.array([[3.0, 4.0]], np.float32), np.array([2.0, 1.0], np.float32), eps=0.0
    )
    np.testing.assert_allclose(rstd, [[12.5**-0.5]], rtol=1e-6)
    np.testing.assert_allclose(y, [[6 / 12.5**0.5, 4 / 12.5**0.5]], rtol=1e-6)


def test_rotary_embedding_turns_a_quarter_by_hand():
    x = np.array([[1.0, 2.0, 3.0, 4.0]], np.float32)
    cos, sin = np.zeros((1, 4), np.float32), np.ones((1, 4), np.float32)
    halves, _ = PRIMITIVES["rope"].golden(x, x, cos, sin, None, cos_format=2)
    pairs, _ = PRIMITIVES["rope"].golden(x, x, cos, sin, None, cos_format=3)
    assert halves.tolist() == [[-3, -4, 1, 2]]
    assert pairs.tolist() == [[-2, 1, -4, 3]]
