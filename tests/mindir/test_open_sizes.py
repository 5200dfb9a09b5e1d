"""What a network decides by open sizes, and what it assigns to slices of them.

MindSpore 2.10 exports these networks, but fails to run the files; numpy computes the same code.
"""

import numpy as np
import pytest

pytest.importorskip("mindspore", reason="MindSpore exports these networks")
from mindspore import nn

from tests.mindir.conftest import compare, export, opened

pytestmark = [
    pytest.mark.mindspore,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
RANDOM = np.random.default_rng(0)


def decided(x):
    rows, columns = x.shape[:2]
    if rows == 2 and columns == 3:
        x = x + 1
    if rows == 2 or columns > 9:
        x = x * 3
    if rows != 5:
        x = x + 1
    if not rows > 1:
        x = x * 7
    if (rows, columns) == (2, 3):
        x = x * 5
    if rows // 2 in [1, 2]:
        x = x - 1
    if rows not in (7, 1):
        x = x - 4
    if columns in (rows, 4):
        x = x - 3
    if rows is None:
        x = x * 0
    return x


def added_to_columns(x):
    x = x * 1
    x[:, 0:2] += x[:, 1:3]
    return x


def set_by_steps(x):
    x = x * 1
    x[:, 1:-1, ::2] = 7
    return x


def set_by_rows(x):
    x = x * 1
    x[:-1, 1:3] = x[1:, 2:4] * 2
    return x


def multiplied_rows(x):
    x = x * 1
    x[1:] *= 2
    return x


class Decided(nn.Cell):
    def construct(self, x):
        return decided(x)


class AddedToColumns(nn.Cell):
    def construct(self, x):
        return added_to_columns(x)


class SetBySteps(nn.Cell):
    def construct(self, x):
        return set_by_steps(x)


class SetByRows(nn.Cell):
    def construct(self, x):
        return set_by_rows(x)


class MultipliedRows(nn.Cell):
    def construct(self, x):
        return multiplied_rows(x)


def test_decisions_by_open_sizes_are_those_of_python(tmp_path):
    agrees(tmp_path, Decided, decided, (None, None, 4), [(2, 3), (3, 3), (1, 4), (7, 2), (5, 10)])


@pytest.mark.parametrize(
    ("cell", "expected"),
    [
        (AddedToColumns, added_to_columns),
        (SetBySteps, set_by_steps),
        (SetByRows, set_by_rows),
        (MultipliedRows, multiplied_rows),
    ],
    ids=lambda one: getattr(one, "__name__", ""),
)
def test_an_assignment_to_slices_of_an_open_batch_is_that_of_numpy(cell, expected, tmp_path):
    agrees(tmp_path, cell, expected, (None, 4, 4), [(2, 4), (3, 4), (4, 4)])


def agrees(path, cell, expected, shape, sizes):
    images = [RANDOM.standard_normal((*size, 4)).astype(np.float32) for size in sizes]
    export(cell(), path / "net.mindir", images[:1], [shape])
    backend = opened(path / "net.mindir")
    for x in images:
        compare([np.array(one) for one in backend.run([x])], [expected(x)])
    backend.close()
