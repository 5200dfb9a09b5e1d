"""Operators of two tensors, element by element; shapes are broadcast as numpy does."""

from collections.abc import Callable
from functools import partial
from typing import Any

import openvino as ov
from openvino import opset16 as op

from mindspore_serving.mindir.operators import integers
from mindspore_serving.mindir.operators.enumerations import ROUNDING
from mindspore_serving.mindir.operators.types import as_float, common
from mindspore_serving.mindir.tensors import (
    Float,
    Operator,
    Tensor,
    absolute,
    cast,
    like,
)
from mindspore_serving.mindir.values import Value

Build = Callable[[Any, Any], Any]


def _plain(build: Build, input: Value, other: Value) -> Any:
    return build(*common(input, other))


def _of_floats(build: Build, input: Value, other: Value) -> Any:
    first, second = common(input, other)
    return build(as_float(first), as_float(second))


def _of_booleans(build: Build, x: Tensor, y: Tensor) -> Any:
    return build(cast(x, ov.Type.boolean), cast(y, ov.Type.boolean))


def _wrapping(build: Build) -> Build:
    return partial(integers.wrapping, build)


def _multiply_by(number: float) -> Callable[[Any], Any]:
    return lambda x: op.multiply(x, like(number, x))


def _with_alpha(build: Build, input: Value, other: Value, alpha: Float = 1.0) -> Any:
    first, second = common(input, other)
    if alpha != 1:
        second = integers.wrapping(_multiply_by(alpha), second)
    return integers.wrapping(build, first, second)


def _div_mode(input: Value, other: Value, rounding_mode: Value = None) -> Any:
    """Not rounded without a mode."""
    first, second = common(input, other)
    if rounding_mode is None:
        return op.divide(as_float(first), as_float(second))
    mode = ROUNDING.name("rounding_mode", rounding_mode, "trunc", "floor")
    build = integers.trunc_div if mode == "trunc" else integers.floor_div
    return build(first, second)


def _div_no_nan(first: Any, second: Any) -> Any:
    is_zero = op.equal(second, like(0, second))
    safe = op.select(is_zero, like(1, second), second)
    return op.select(is_zero, like(0, first), op.divide(first, safe))


def _zero_where_first_is(build: Build, first: Any, second: Any) -> Any:
    return op.select(op.equal(first, like(0, first)), like(0, first), build(first, second))


def _atan2(first: Any, second: Any) -> Any:
    """By the half-angle formula, which keeps the quadrant; 0 and pi on the axis itself."""
    length = op.sqrt(op.add(op.multiply(first, first), op.multiply(second, second)))
    angle = op.multiply(op.atan(op.divide(first, op.add(length, second))), like(2.0, first))
    is_axis = op.equal(first, like(0.0, first))
    on_axis = op.select(
        op.less(second, like(0.0, second)), like(3.141592653589793, first), like(0.0, first)
    )
    return op.select(is_axis, on_axis, angle)


def _logaddexp(first: Any, second: Any) -> Any:
    most = op.maximum(first, second)
    difference = op.negative(absolute(op.subtract(first, second)))
    return op.add(most, op.log(op.add(op.exp(difference), like(1.0, first))))


def _bitwise(logical: Build, bitwise: Build, first: Any, second: Any) -> Any:
    is_logical = first.get_element_type() == ov.Type.boolean
    return (logical if is_logical else bitwise)(first, second)


_AND = partial(_bitwise, op.logical_and, op.bitwise_and)
_OR = partial(_bitwise, op.logical_or, op.bitwise_or)
_XOR = partial(_bitwise, op.logical_xor, op.bitwise_xor)

_PLAIN: dict[str, Build] = {
    **dict.fromkeys(("BitwiseAnd", "BitwiseAndScalar", "BitwiseAndTensor"), _AND),
    **dict.fromkeys(("BitwiseOr", "BitwiseOrScalar", "BitwiseOrTensor"), _OR),
    **dict.fromkeys(("BitwiseXor", "BitwiseXorScalar", "BitwiseXorTensor"), _XOR),
    "Add": _wrapping(op.add),
    "AddV2": _wrapping(op.add),
    "DivNoNan": _div_no_nan,
    "EqScalar": integers.equal,
    "Equal": integers.equal,
    "FloorDiv": integers.floor_div,
    "FloorDivScalar": integers.floor_div,
    "FloorMod": integers.floor_mod,
    "FmodScalar": integers.trunc_mod,
    "FmodTensor": integers.trunc_mod,
    "Greater": integers.greater,
    "GreaterEqual": integers.greater_equal,
    "GreaterEqualScalar": integers.greater_equal,
    "LeftShift": op.bitwise_left_shift,
    "Less": integers.less,
    "LessEqual": integers.less_equal,
    "LessScalar": integers.less,
    "Maximum": op.maximum,
    "Minimum": op.minimum,
    "Mod": integers.trunc_mod,
    "Mul": _wrapping(op.multiply),
    "Muls": _wrapping(op.multiply),
    "NotEqual": integers.not_equal,
    "Pow": integers.power,
    "PowScalarTensor": integers.power,
    "PowTensorScalar": integers.power,
    "RemainderScalarTensor": integers.floor_mod,
    "RemainderTensorScalar": integers.floor_mod,
    "RemainderTensorTensor": integers.floor_mod,
    "RightShift": op.bitwise_right_shift,
    "SquaredDifference": _wrapping(op.squared_difference),
    "Sub": _wrapping(op.subtract),
    "TruncateDiv": integers.trunc_div,
    "TruncateMod": integers.trunc_mod,
}
_FLOATS: dict[str, Build] = {
    "Atan2": _atan2,
    "Atan2Ext": _atan2,
    "Div": op.divide,
    "Divs": op.divide,
    "LogAddExp": _logaddexp,
    "RealDiv": op.divide,
    "Xdivy": partial(_zero_where_first_is, op.divide),
    "Xlogy": partial(
        _zero_where_first_is, lambda first, second: op.multiply(first, op.log(second))
    ),
}


OPERATORS: dict[str, Operator] = {
    **{name: partial(_plain, build) for name, build in _PLAIN.items()},
    **{name: partial(_of_floats, build) for name, build in _FLOATS.items()},
    "AddExt": partial(_with_alpha, op.add),
    "AddScalar": partial(_with_alpha, op.add),
    "DivMod": _div_mode,
    "DivMods": _div_mode,
    "LogicalAnd": partial(_of_booleans, op.logical_and),
    "LogicalOr": partial(_of_booleans, op.logical_or),
    "LogicalXor": partial(_of_booleans, op.logical_xor),
    "SubExt": partial(_with_alpha, op.subtract),
    "SubScalar": partial(_with_alpha, op.subtract),
}
