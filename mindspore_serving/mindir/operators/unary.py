"""Functions of one tensor, element by element."""

import math
from collections.abc import Callable
from typing import Any

import openvino as ov
from openvino import opset16 as op

from mindspore_serving.mindir.operators.types import as_float, is_float
from mindspore_serving.mindir.tensors import (
    Float,
    Int,
    Operator,
    Tensor,
    cast,
    like,
)


def _plain(build: Callable[[Any], Any]) -> Operator:
    """An operator whose result has the type of its input."""

    def convert(x: Tensor) -> Any:
        return build(x)

    return convert


def _of_floats(build: Callable[[Any], Any]) -> Operator:
    """An operator that gives floats also of integers."""

    def convert(x: Tensor) -> Any:
        return build(as_float(x))

    return convert


def _same(x: Tensor) -> Any:
    return x


def _rounded(x: Tensor, decimals: Int = 0) -> Any:
    if not is_float(x):
        return x
    scale = like(10.0**decimals, x)
    return op.divide(op.round(op.multiply(x, scale), "half_to_even"), scale)


def _keep_integers(build: Callable[[Any], Any]) -> Operator:
    def convert(x: Tensor) -> Any:
        return build(x) if is_float(x) else x

    return convert


def _trunc(x: Any) -> Any:
    return op.multiply(op.sign(x), op.floor(op.abs(x)))


def _rsqrt(x: Any) -> Any:
    return op.divide(like(1.0, x), op.sqrt(x))


def _fast_gelu(x: Any) -> Any:
    return op.multiply(x, op.sigmoid(op.multiply(x, like(1.702, x))))


def _clamped(low: float, high: float) -> Callable[[Any], Any]:
    return lambda x: op.clamp(x, low, high)


def _log_of(base: float) -> Callable[[Any], Any]:
    return lambda x: op.multiply(op.log(x), like(1 / math.log(base), x))


def _exp2(x: Any) -> Any:
    return op.power(like(2.0, x), x)


def _expm1(x: Any) -> Any:
    return op.subtract(op.exp(x), like(1.0, x))


def _log1p(x: Any) -> Any:
    return op.log(op.add(x, like(1.0, x)))


def _logit(x: Tensor, eps: Float = -1.0) -> Any:
    if eps >= 0:
        x = op.clamp(x, eps, 1 - eps).output(0)
    return op.log(op.divide(x, op.subtract(like(1.0, x), x)))


def _log_sigmoid(x: Any) -> Any:
    return op.negative(op.softplus(op.negative(x)))


def _swish(x: Any) -> Any:
    return op.swish(x)


def _nan_to_num(
    x: Tensor, nan: Float | None = None, posinf: Float | None = None, neginf: Float | None = None
) -> Any:
    most = 65504.0 if x.get_element_type() == ov.Type.f16 else 3.4028234663852886e38
    x = op.select(op.is_nan(x), like(nan or 0.0, x), x).output(0)
    high, low = posinf if posinf is not None else most, neginf if neginf is not None else -most
    x = op.select(op.equal(x, like(math.inf, x)), like(high, x), x).output(0)
    return op.select(op.equal(x, like(-math.inf, x)), like(low, x), x)


def _is_inf(x: Any) -> Any:
    return op.equal(op.abs(x), like(math.inf, x))


def _is_finite(x: Any) -> Any:
    return op.less(op.abs(x), like(math.inf, x))


def _bitwise_not(x: Tensor) -> Any:
    return op.bitwise_not(x)


def _logical_not(x: Tensor) -> Any:
    return op.logical_not(cast(x, ov.Type.boolean))


def _hsigmoid(x: Any) -> Any:
    return op.hsigmoid(x)


def _square(x: Any) -> Any:
    return op.multiply(x, x)


_PLAIN: dict[str, Callable[[Any], Any]] = {
    "Abs": op.abs,
    "Neg": op.negative,
    "ReLU": op.relu,
    "ReLUV3": op.relu,
    "ReLU6": _clamped(0.0, 6.0),
    "Sign": op.sign,
    "Square": _square,
}
_FLOATS: dict[str, Callable[[Any], Any]] = {
    "ACos": op.acos,
    "AcosExt": op.acos,
    "Acosh": op.acosh,
    "AcoshExt": op.acosh,
    "Asin": op.asin,
    "AsinExt": op.asin,
    "Asinh": op.asinh,
    "AsinhExt": op.asinh,
    "Atan": op.atan,
    "AtanExt": op.atan,
    "Atanh": op.atanh,
    "Cos": op.cos,
    "Cosh": op.cosh,
    "Erf": op.erf,
    "Erfc": lambda x: op.subtract(like(1.0, x), op.erf(x)),
    "Exp": op.exp,
    "Exp2": _exp2,
    "Expm1": _expm1,
    "FastGeLU": _fast_gelu,
    "GeLU": lambda x: op.gelu(x, "tanh"),
    "HSigmoid": _hsigmoid,
    "HSwish": op.hswish,
    "Inv": lambda x: op.divide(like(1.0, x), x),
    "IsFinite": _is_finite,
    "IsInf": _is_inf,
    "IsNan": op.is_nan,
    "Log": op.log,
    "Log10": _log_of(10),
    "Log1p": _log1p,
    "Log2": _log_of(2),
    "LogSigmoid": _log_sigmoid,
    "Mish": op.mish,
    "MishExt": op.mish,
    "Reciprocal": lambda x: op.divide(like(1.0, x), x),
    "Rsqrt": _rsqrt,
    "SiLU": _swish,
    "Sigmoid": op.sigmoid,
    "Sin": op.sin,
    "Sinh": op.sinh,
    "Softplus": op.softplus,
    "Softsign": op.softsign,
    "Sqrt": op.sqrt,
    "Tan": op.tan,
    "Tanh": op.tanh,
}
_INTEGERS_STAY: dict[str, Callable[[Any], Any]] = {
    "Ceil": op.ceiling,
    "Floor": op.floor,
    "Rint": lambda x: op.round(x, "half_to_even"),
    "Trunc": _trunc,
}
_NOTHING = ("Clone", "Contiguous", "Copy", "Detach", "Identity", "StopGradient")

OPERATORS: dict[str, Operator] = {
    **{name: _plain(build) for name, build in _PLAIN.items()},
    **{name: _of_floats(build) for name, build in _FLOATS.items()},
    **{name: _keep_integers(build) for name, build in _INTEGERS_STAY.items()},
    **dict.fromkeys(_NOTHING, _same),
    "BitwiseNot": _bitwise_not,
    "LogicalNot": _logical_not,
    "Logit": _logit,
    "NanToNum": _nan_to_num,
    "Round": _rounded,
}
