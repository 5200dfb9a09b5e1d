"""Compiled products of up to 8 rows with a matrix of floats, read where the file is mapped."""

from typing import Any

import numpy as np

from mindspore_serving.llm.runtimes.native.compiling import compiled
from mindspore_serving.llm.runtimes.native.elementwise import (
    A_STRIDE,
    OUT,
    OUT_STRIDE,
    WIDTH,
    A,
    Integers,
)
from mindspore_serving.llm.runtimes.native.memory import load_bf16, load_f16, load_f32, store_f32

F32, F16, BF16 = range(3)
ADDRESS, KIND, ROW_BYTES, COLUMNS = range(4)  # of a matrix
_ZERO = np.float32(0)


@compiled
def _dot(address: int, x: int, width: int, kind: int) -> Any:
    """Return the product of `x` and a row of a matrix at `address`."""
    result = _ZERO
    if kind == F32:
        for i in range(width):
            result += load_f32(address, i) * load_f32(x, i)
    elif kind == F16:
        for i in range(width):
            result += load_f16(address, i) * load_f32(x, i)
    else:
        for i in range(width):
            result += load_bf16(address, i) * load_f32(x, i)
    return result


@compiled
def multiply(arena: int, op: Integers, row: int, matrix: Integers) -> None:
    """Write the product of the `row` of A with a matrix of WIDTH rows."""
    at, to = op[A] + row * op[A_STRIDE], op[OUT] + row * op[OUT_STRIDE]
    x, width = arena + 4 * at, matrix[COLUMNS]
    for out in range(op[WIDTH]):
        product = _dot(matrix[ADDRESS] + out * matrix[ROW_BYTES], x, width, matrix[KIND])
        store_f32(arena, to + out, product)
