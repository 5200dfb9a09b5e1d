"""Linear algebra: products of matrices and vectors, diagonals, determinants, inverses."""

from math import prod
from typing import Any

import openvino as ov
from openvino import opset16 as op

from mindspore_serving.mindir.operators.indexing import diagonal
from mindspore_serving.mindir.operators.integers import matmul, reduce_sum, wrapping
from mindspore_serving.mindir.operators.types import is_float
from mindspore_serving.mindir.tensors import (
    Bool,
    Float,
    Int,
    Operator,
    Tensor,
    Text,
    UnsupportedTensor,
    absolute,
    cast,
    dims,
    ints_of,
    known_dims,
    like,
    rank,
    reshape,
    sizes_of,
    slice_of,
    squeeze,
    tensor,
    unsqueeze,
)
from mindspore_serving.mindir.values import Value

_MAX_DETERMINANT = 64  # rows: each adds some twenty nodes to the graph
_FIRST_OF_THREE = -65530  # the axis of a cross product that was not named


def _cross(x: Tensor, y: Tensor, dim: Int = _FIRST_OF_THREE) -> Any:
    if dim == _FIRST_OF_THREE:
        if 3 not in dims(x):
            raise UnsupportedTensor(
                f"a cross product of shape {dims(x)}, which has no axis of size 3"
            )
        dim = dims(x).index(3)
    axis = op.constant(dim % rank(x))

    def turned(vector: Any, order: tuple[int, ...]) -> Any:
        return op.gather(vector, ints_of(order), axis)

    first = op.multiply(turned(x, (1, 2, 0)), turned(y, (2, 0, 1)))
    return op.subtract(first, op.multiply(turned(x, (2, 0, 1)), turned(y, (1, 2, 0))))


def _matrix_of(values: Any, offset: int = 0) -> Any:
    """Return the square matrix with the 1-D `values` on its diagonal `offset`."""
    (count,) = known_dims(values)
    size = op.constant(count + abs(offset))
    is_on_diagonal = op.eye(size, size, op.constant(offset), "boolean")
    before, behind = max(-offset, 0), max(offset, 0)
    padded = op.pad(values, ints_of([before]), ints_of([behind]), "constant", like(0, values))
    column = op.reshape(padded, ints_of([-1, 1]), False)
    return op.select(is_on_diagonal, column, like(0, values)).output(0)


def _diag(x: Tensor) -> Any:
    """Return a tensor with twice the axes of `x`, and `x` on its diagonal."""
    sizes = dims(x)
    return reshape(_matrix_of(reshape(x, (-1,))), (*sizes, *sizes))


def _diag_part(x: Tensor) -> Any:
    """Return the diagonal of a tensor as `_diag` makes it."""
    sizes = dims(x)[: rank(x) // 2]
    if -1 in sizes or dims(x) != sizes * 2:
        raise UnsupportedTensor(f"the diagonal of shape {dims(x)}")
    return reshape(diagonal(reshape(x, (prod(sizes), prod(sizes)))), sizes)


def _diag_ext(x: Tensor, diagonal_: Int = 0) -> Any:
    return diagonal(x, diagonal_) if rank(x) == 2 else _matrix_of(x, diagonal_)


def _trace(x: Tensor) -> Any:
    return op.reduce_sum(diagonal(x), ints_of([0]), False)


def _trace_ext(x: Tensor) -> Any:
    return _trace(x if is_float(x) else cast(x, ov.Type.i64))


def _inverse(x: Tensor, *, adjoint: Bool = False) -> Any:
    """Invert each matrix; with `adjoint` transpose the inverse."""
    return op.inverse(x, adjoint)


def _log_determinant(x: Tensor) -> Any:
    """Return (sign, log of the absolute value) of the determinant of each matrix."""
    sign, pivots = _eliminated(x)
    size = absolute(pivots)
    for_sign = op.reduce_prod(op.sign(pivots), ints_of([0]), False)
    return op.multiply(sign, for_sign), op.reduce_sum(op.log(size), ints_of([0]), False)


def _determinant(x: Tensor) -> Any:
    sign, pivots = _eliminated(x)
    return op.multiply(sign, op.reduce_prod(pivots, ints_of([0]), False))


def _eliminated(x: Any) -> tuple[Any, Any]:
    """Reduce square matrices [..., rows, rows] by Gauss, with the largest pivot of each column.

    Returns the sign [...] of the row exchanges, and the pivots [rows, ...].
    """
    size = dims(x)[-1]
    if size < 1 or dims(x)[-2] != size or size > _MAX_DETERMINANT:
        raise UnsupportedTensor(
            f"the determinant of shape {dims(x)}, expected square matrices of known size, at most "
            f"{_MAX_DETERMINANT}"
        )
    batch = slice_of(sizes_of(x), 0, 0, -2)
    rest = op.reshape(x, ints_of([-1, size, size]), False).output(0)
    sign, pivots = like(1, x), []
    zero, unit = like(0, x), like(1, x)
    for left in range(size, 0, -1):
        column = _column(rest, 0)
        best = op.topk(absolute(column), op.constant(1), 1, "max", "none", "i64").output(1)
        position = squeeze(best, 1)
        # No gather with a batch axis: with a single element it crashes the process.
        is_chosen = unsqueeze(op.equal(ints_of(range(left)), best), 2)
        chosen = op.select(is_chosen, rest, zero)
        row = op.reduce_sum(chosen, ints_of([1]), False).output(0)  # [batch, columns]
        pivot = _column(unsqueeze(row, 1), 0)  # [batch, 1]
        pivots.append(squeeze(pivot, 1))
        is_first = op.equal(position, ints_of([0]))
        sign = op.multiply(sign, op.select(is_first, unit, op.negative(unit))).output(0)
        if left == 1:
            break
        # The first row replaces the chosen one; the chosen row leaves the matrix.
        exchanged = op.select(is_chosen, slice_of(rest, 1, 0, 1), rest)
        below = slice_of(exchanged, 1, 1, left)
        divisor = op.select(op.equal(pivot, zero), unit, pivot)
        factors = op.divide(_column(below, 0), divisor)
        reduced = op.subtract(below, op.multiply(unsqueeze(factors, 2), unsqueeze(row, 1)))
        rest = slice_of(reduced, 2, 1, left)
    stacked = op.concat([unsqueeze(pivot, 0) for pivot in pivots], 0)
    shape = op.concat([ints_of([size]), batch], 0)
    return op.reshape(sign, batch, False), op.reshape(stacked, shape, False).output(0)


def _column(x: Any, index: int) -> Any:
    """Return a column [batch, rows] of matrices."""
    return op.gather(x, op.constant(index), op.constant(2)).output(0)


def _matmul(x: Tensor, y: Tensor, transpose_a: Bool = False, transpose_b: Bool = False) -> Any:
    return matmul(x, y, transpose_a, transpose_b)


def _dense(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Any:
    y = matmul(x, weight, False, True)
    return y if bias is None else wrapping(op.add, y, bias)


def _scaled_sum(x: Any, product: Any, beta: float, alpha: float) -> Any:
    product = product if alpha == 1 else wrapping(op.multiply, product, like(alpha, x))
    return wrapping(op.add, x if beta == 1 else wrapping(op.multiply, x, like(beta, x)), product)


def _addmm(x: Tensor, first: Tensor, second: Tensor, beta: Float = 1.0, alpha: Float = 1.0) -> Any:
    return _scaled_sum(x, matmul(first, second, False, False), beta, alpha)


def _addbmm(x: Tensor, first: Tensor, second: Tensor, beta: Float = 1.0, alpha: Float = 1.0) -> Any:
    total = reduce_sum(matmul(first, second, False, False), ints_of([0]), False)
    return _scaled_sum(x, total, beta, alpha)


def _outer(x: Tensor, y: Tensor) -> Any:
    return wrapping(op.multiply, unsqueeze(x, 1), unsqueeze(y, 0))


def _einsum(inputs: Value, equation: Text) -> Any:
    return op.einsum([tensor(value) for value in inputs], equation.replace(" ", ""))


def _einsum_ext(equation: Text, inputs: Value) -> Any:
    return _einsum(inputs, equation)


def _dot(x: Tensor, y: Tensor) -> Any:
    return reduce_sum(wrapping(op.multiply, x, y), ints_of([0]), False)


def _cdist(x1: Tensor, x2: Tensor, p: Float = 2.0) -> Any:
    """Compute the p-norm distances between the rows of `x1` and those of `x2`."""
    difference = absolute(op.subtract(unsqueeze(x1, -2), unsqueeze(x2, -3)))
    axis = ints_of([rank(x1)])
    if p == 2:
        return op.reduce_l2(difference, axis, False)
    if p == 1:
        return op.reduce_sum(difference, axis, False)
    raise UnsupportedTensor(f"p={p}, accepted are 1 and 2")


OPERATORS: dict[str, Operator] = {
    **dict.fromkeys(("Addmm", "Addmv", "Baddbmm"), _addmm),
    **dict.fromkeys(("BatchMatMul", "BatchMatMulExt", "MatMul", "MatMulExt", "Mm", "Mv"), _matmul),
    **dict.fromkeys(("MatrixInverse", "MatrixInverseExt"), _inverse),
    "Addbmm": _addbmm,
    "Cdist": _cdist,
    "Cross": _cross,
    "Dense": _dense,
    "Diag": _diag,
    "DiagExt": _diag_ext,
    "DiagPart": _diag_part,
    "Dot": _dot,
    "Einsum": _einsum,
    "EinsumExt": _einsum_ext,
    "LogMatrixDeterminant": _log_determinant,
    "MatrixDeterminant": _determinant,
    "Outer": _outer,
    "Trace": _trace,
    "TraceExt": _trace_ext,
}
