"""Products of matrices and vectors."""

from typing import Any

from openvino import opset16 as op

from mindspore_serving.mindir.operators.integers import matmul, reduce_sum, wrapping
from mindspore_serving.mindir.tensors import (
    Bool,
    Float,
    Operator,
    Tensor,
    Text,
    Unsupported,
    absolute,
    ints_of,
    like,
    rank,
    tensor,
)
from mindspore_serving.mindir.values import Value


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
    return wrapping(op.multiply, op.unsqueeze(x, ints_of([1])), op.unsqueeze(y, ints_of([0])))


def _einsum(inputs: Value, equation: Text) -> Any:
    return op.einsum([tensor(one) for one in inputs], equation.replace(" ", ""))


def _einsum_ext(equation: Text, inputs: Value) -> Any:
    return _einsum(inputs, equation)


def _dot(x: Tensor, y: Tensor) -> Any:
    return reduce_sum(wrapping(op.multiply, x, y), ints_of([0]), False)


def _cdist(x1: Tensor, x2: Tensor, p: Float = 2.0) -> Any:
    """Distances of the rows of `x1` to those of `x2`."""
    difference = absolute(
        op.subtract(op.unsqueeze(x1, ints_of([-2])), op.unsqueeze(x2, ints_of([-3])))
    )
    axis = ints_of([rank(x1)])
    if p == 2:
        return op.reduce_l2(difference, axis, False)
    if p == 1:
        return op.reduce_sum(difference, axis, False)
    raise Unsupported(f"p={p}, accepted are 1 and 2")


OPERATORS: dict[str, Operator] = {
    "Addbmm": _addbmm,
    "Addmm": _addmm,
    "Addmv": _addmm,
    "Baddbmm": _addmm,
    "BatchMatMul": _matmul,
    "BatchMatMulExt": _matmul,
    "Cdist": _cdist,
    "Dense": _dense,
    "Dot": _dot,
    "Einsum": _einsum,
    "EinsumExt": _einsum_ext,
    "MatMul": _matmul,
    "MatMulExt": _matmul,
    "Mm": _matmul,
    "Mv": _matmul,
    "Outer": _outer,
}
