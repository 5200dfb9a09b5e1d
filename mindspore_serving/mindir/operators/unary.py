"""Functions of one tensor, element by element."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import openvino as ov
from openvino import opset16 as op

from mindspore_serving.mindir.operators import integers
from mindspore_serving.mindir.operators.enumerations import APPROXIMATE
from mindspore_serving.mindir.operators.types import as_float, is_float
from mindspore_serving.mindir.tensors import (
    Float,
    Int,
    Operator,
    Tensor,
    absolute,
    cast,
    dims,
    like,
    rank,
    reshape,
    tensor,
)
from mindspore_serving.mindir.values import Value, read

Build = Callable[[Any], Any]


def _of(build: Build, convert: Build = lambda x: x) -> Operator:
    """Make an operator that applies `convert` to its input (e.g. to float), then `build`."""
    return lambda x: build(convert(tensor(x)))


def _rounded(x: Tensor, decimals: Int = 0) -> Any:
    if not is_float(x):
        return x
    scale = like(10.0**decimals, x)
    return op.divide(op.round(op.multiply(x, scale), "half_to_even"), scale)


def _keep_integers(build: Build) -> Build:
    return lambda x: build(x) if is_float(x) else x


def _logit(x: Tensor, eps: Float = -1.0) -> Any:
    if eps >= 0:
        x = op.clamp(x, eps, 1 - eps).output(0)
    return op.log(op.divide(x, op.subtract(like(1.0, x), x)))


def _nan_to_num(
    x: Tensor, nan: Float | None = None, posinf: Float | None = None, neginf: Float | None = None
) -> Any:
    largest = 65504.0 if x.get_element_type() == ov.Type.f16 else 3.4028234663852886e38
    x = op.select(op.is_nan(x), like(nan or 0.0, x), x).output(0)
    high, low = (
        posinf if posinf is not None else largest,
        neginf if neginf is not None else -largest,
    )
    x = op.select(op.equal(x, like(math.inf, x)), like(high, x), x).output(0)
    return op.select(op.equal(x, like(-math.inf, x)), like(low, x), x)


def _log_sigmoid(x: Any) -> Any:
    """Return the result, and a value that only training needs."""
    return op.negative(op.softplus(op.negative(x))), op.exp(op.negative(absolute(x)))


_NOTHING = ("Clone", "Contiguous", "Copy", "Detach", "Identity", "StopGradient", "TensorMove")
_PLAIN: dict[str, Build] = {
    "Abs": partial(integers.wrapping, absolute),
    "BitwiseNot": op.bitwise_not,
    "LogicalNot": lambda x: op.logical_not(cast(x, ov.Type.boolean)),
    "Neg": integers.negative,
    **dict.fromkeys(("ReLU", "ReLUV3"), integers.positive),
    "ReLU6": lambda x: op.clamp(x, 0.0, 6.0),
    "Sign": op.sign,
    "Square": partial(integers.wrapping, lambda x: op.multiply(x, x)),
}
_NAMED_ALIKE = (
    *("Acosh", "Asin", "Asinh", "Atan", "Atanh", "Cos", "Cosh", "Erf", "Exp", "HSigmoid", "HSwish"),
    *("Log", "Mish", "Sigmoid", "Sin", "Sinh", "Softplus", "Softsign", "Sqrt", "Tan", "Tanh"),
)
_FLOATS: dict[str, Build] = {
    **{name: getattr(op, name.lower()) for name in _NAMED_ALIKE},
    **dict.fromkeys(("ACos", "AcosExt"), op.acos),
    "AcoshExt": op.acosh,
    "AsinExt": op.asin,
    "AsinhExt": op.asinh,
    "AtanExt": op.atan,
    "Erfc": lambda x: op.subtract(like(1.0, x), op.erf(x)),
    "Exp2": lambda x: op.power(like(2.0, x), x),
    "Expm1": lambda x: op.subtract(op.exp(x), like(1.0, x)),
    "FastGeLU": lambda x: op.multiply(x, op.sigmoid(op.multiply(x, like(1.702, x)))),
    "GeLU": lambda x: op.gelu(x, "tanh"),
    "IsFinite": lambda x: op.less(absolute(x), like(math.inf, x)),
    "IsInf": lambda x: op.equal(absolute(x), like(math.inf, x)),
    "IsNan": op.is_nan,
    "Log10": lambda x: op.divide(op.log(x), like(math.log(10), x)),
    "Log1p": lambda x: op.log(op.add(x, like(1.0, x))),
    "Log2": lambda x: op.divide(op.log(x), like(math.log(2), x)),
    "LogSigmoid": _log_sigmoid,
    "MishExt": op.mish,
    **dict.fromkeys(("Inv", "Reciprocal"), lambda x: op.divide(like(1.0, x), x)),
    "Rsqrt": lambda x: op.divide(like(1.0, x), op.sqrt(x)),
    "SiLU": op.swish,
}
_INTEGERS_STAY: dict[str, Build] = {
    "Ceil": op.ceiling,
    "Floor": op.floor,
    "Rint": lambda x: op.round(x, "half_to_even"),
    "Trunc": lambda x: op.multiply(op.sign(x), op.floor(absolute(x))),
}


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
    """Apply PReLU with a common slope, or a slope for each channel (axis 1)."""
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
    **{name: _of(build) for name, build in _PLAIN.items()},
    **{name: _of(build, as_float) for name, build in _FLOATS.items()},
    **dict.fromkeys(_NOTHING, _of(lambda x: x)),
    **{name: _of(_keep_integers(build)) for name, build in _INTEGERS_STAY.items()},
    "Load": lambda value, *_: read(value),
    "Logit": _logit,
    "NanToNum": _nan_to_num,
    "Round": _rounded,
    "CeLU": _celu,
    **dict.fromkeys(("Elu", "EluExt"), _elu),
    "GLU": _glu,
    "GeluExt": _gelu_ext,
    "HShrink": _hard_shrink,
    "Hardtanh": _hardtanh,
    "LeakyReLU": _leaky,
    "LeakyReLUExt": _leaky_relu,
    "PReLU": _prelu,
    **dict.fromkeys(("SeLU", "SeLUExt"), _selu),
    "SoftShrink": _softshrink,
    "SoftplusExt": _softplus,
    "Swiglu": _swiglu,
    "Threshold": _threshold,
}
