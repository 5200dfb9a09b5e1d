"""Functions of one tensor, element by element."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import openvino as ov
from openvino import opset16 as op

from mindspore_serving.mindir.operators import integers
from mindspore_serving.mindir.operators.types import as_float, is_float
from mindspore_serving.mindir.tensors import (
    Float,
    Int,
    Operator,
    Tensor,
    absolute,
    cast,
    like,
    tensor,
)
from mindspore_serving.mindir.values import read

Build = Callable[[Any], Any]


def _of(build: Build, convert: Build = lambda x: x) -> Operator:
    """An operator of what `convert` makes of its input: floats of integers, or itself."""
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
    most = 65504.0 if x.get_element_type() == ov.Type.f16 else 3.4028234663852886e38
    x = op.select(op.is_nan(x), like(nan or 0.0, x), x).output(0)
    high, low = posinf if posinf is not None else most, neginf if neginf is not None else -most
    x = op.select(op.equal(x, like(math.inf, x)), like(high, x), x).output(0)
    return op.select(op.equal(x, like(-math.inf, x)), like(low, x), x)


def _log_sigmoid(x: Any) -> Any:
    """The result, and what training alone needs."""
    return op.negative(op.softplus(op.negative(x))), op.exp(op.negative(absolute(x)))


_NOTHING = ("Clone", "Contiguous", "Copy", "Detach", "Identity", "StopGradient", "TensorMove")
_PLAIN: dict[str, Build] = {
    "Abs": partial(integers.wrapping, absolute),
    "BitwiseNot": op.bitwise_not,
    "LogicalNot": lambda x: op.logical_not(cast(x, ov.Type.boolean)),
    "Neg": integers.negative,
    "ReLU": integers.positive,
    "ReLUV3": integers.positive,
    "ReLU6": lambda x: op.clamp(x, 0.0, 6.0),
    "Sign": op.sign,
    "Square": partial(integers.wrapping, lambda x: op.multiply(x, x)),
}
_FLOATS: dict[str, Build] = {
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
    "Exp2": lambda x: op.power(like(2.0, x), x),
    "Expm1": lambda x: op.subtract(op.exp(x), like(1.0, x)),
    "FastGeLU": lambda x: op.multiply(x, op.sigmoid(op.multiply(x, like(1.702, x)))),
    "GeLU": lambda x: op.gelu(x, "tanh"),
    "HSigmoid": op.hsigmoid,
    "HSwish": op.hswish,
    "Inv": lambda x: op.divide(like(1.0, x), x),
    "IsFinite": lambda x: op.less(absolute(x), like(math.inf, x)),
    "IsInf": lambda x: op.equal(absolute(x), like(math.inf, x)),
    "IsNan": op.is_nan,
    "Log": op.log,
    "Log10": lambda x: op.divide(op.log(x), like(math.log(10), x)),
    "Log1p": lambda x: op.log(op.add(x, like(1.0, x))),
    "Log2": lambda x: op.divide(op.log(x), like(math.log(2), x)),
    "LogSigmoid": _log_sigmoid,
    "Mish": op.mish,
    "MishExt": op.mish,
    "Reciprocal": lambda x: op.divide(like(1.0, x), x),
    "Rsqrt": lambda x: op.divide(like(1.0, x), op.sqrt(x)),
    "SiLU": op.swish,
    "Sigmoid": op.sigmoid,
    "Sin": op.sin,
    "Sinh": op.sinh,
    "Softplus": op.softplus,
    "Softsign": op.softsign,
    "Sqrt": op.sqrt,
    "Tan": op.tan,
    "Tanh": op.tanh,
}
_INTEGERS_STAY: dict[str, Build] = {
    "Ceil": op.ceiling,
    "Floor": op.floor,
    "Rint": lambda x: op.round(x, "half_to_even"),
    "Trunc": lambda x: op.multiply(op.sign(x), op.floor(absolute(x))),
}

OPERATORS: dict[str, Operator] = {
    **{name: _of(build) for name, build in _PLAIN.items()},
    **{name: _of(build, as_float) for name, build in _FLOATS.items()},
    **dict.fromkeys(_NOTHING, _of(lambda x: x)),
    **{name: _of(_keep_integers(build)) for name, build in _INTEGERS_STAY.items()},
    "Load": lambda value, *_: read(value),
    "Logit": _logit,
    "NanToNum": _nan_to_num,
    "Round": _rounded,
}
