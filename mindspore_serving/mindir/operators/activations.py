"""Activations: what layers apply to every element."""

from typing import Any

from openvino import opset16 as op

from mindspore_serving.mindir.operators.enumerations import APPROXIMATE
from mindspore_serving.mindir.tensors import (
    Float,
    Int,
    Operator,
    Tensor,
    absolute,
    dims,
    like,
    rank,
    reshape,
)
from mindspore_serving.mindir.values import Value


def _softshrink(x: Tensor, lambd: Float = 0.5) -> Any:
    size = op.relu(op.subtract(absolute(x), like(lambd, x)))
    return op.multiply(op.sign(x), size)


def _hard_shrink(x: Tensor, lambd: Float = 0.5) -> Any:
    keep = op.greater(absolute(x), like(lambd, x))
    return op.select(keep, x, like(0.0, x))


def _gelu_ext(x: Tensor, approximate: Value = "none") -> Any:
    name = APPROXIMATE.name("approximate", approximate, "none", "tanh")
    return op.gelu(x, "tanh" if name == "tanh" else "erf")


def _elu(x: Tensor, alpha: Float = 1.0) -> Any:
    return op.elu(x, alpha)


def _celu(x: Tensor, alpha: Float = 1.0) -> Any:
    inner = op.subtract(op.exp(op.divide(x, like(alpha, x))), like(1.0, x))
    negative = op.minimum(op.multiply(inner, like(alpha, x)), like(0.0, x))
    return op.add(op.relu(x), negative)


def _selu(x: Tensor) -> Any:
    return op.selu(x, like(1.6732632423543772, x), like(1.0507009873554805, x))


def _leaky_relu(x: Tensor, negative_slope: Float = 0.01) -> Any:
    return op.prelu(x, like(negative_slope, x))


def _leaky(x: Tensor, alpha: Float = 0.2) -> Any:
    return op.prelu(x, like(alpha, x))


def _prelu(x: Tensor, weight: Tensor) -> Any:
    """One slope for all, or one for each channel of axis 1."""
    if rank(weight) == 1 and rank(x) > 1 and dims(weight) != (1,):
        weight = reshape(weight, (-1, *(1,) * (rank(x) - 2)))
    slope = op.multiply(weight, op.minimum(x, like(0.0, x)))
    return op.add(op.relu(x), slope)


def _hardtanh(x: Tensor, min_val: Float = -1.0, max_val: Float = 1.0) -> Any:
    return op.clamp(x, min_val, max_val)


def _softplus(x: Tensor, beta: Float = 1.0, threshold: Float = 20.0) -> Any:
    scaled = op.multiply(x, like(beta, x))
    soft = op.divide(op.softplus(scaled), like(beta, x))
    return op.select(op.greater(scaled, like(threshold, x)), x, soft)


def _threshold(x: Tensor, threshold: Float, value: Float) -> Any:
    return op.select(op.greater(x, like(threshold, x)), x, like(value, x))


def _glu(x: Tensor, axis: Int = -1) -> Any:
    first, second = op.split(x, op.constant(axis), 2).outputs()
    return op.multiply(first, op.sigmoid(second))


def _swiglu(x: Tensor, dim: Int = -1) -> Any:
    first, second = op.split(x, op.constant(dim), 2).outputs()
    return op.multiply(op.swish(first), second)


OPERATORS: dict[str, Operator] = {
    "CeLU": _celu,
    "Elu": _elu,
    "EluExt": _elu,
    "GLU": _glu,
    "GeluExt": _gelu_ext,
    "HShrink": _hard_shrink,
    "Hardtanh": _hardtanh,
    "LeakyReLU": _leaky,
    "LeakyReLUExt": _leaky_relu,
    "PReLU": _prelu,
    "SeLU": _selu,
    "SeLUExt": _selu,
    "SoftShrink": _softshrink,
    "SoftplusExt": _softplus,
    "Swiglu": _swiglu,
    "Threshold": _threshold,
}
