"""Operators of two tensors, element by element; shapes are broadcast as numpy does."""

from collections.abc import Callable
from functools import partial, reduce
from typing import Any

import openvino as ov
from openvino import opset16 as op

from mindspore_serving.mindir.operators import integers
from mindspore_serving.mindir.operators.enumerations import FORMAT, ROUNDING
from mindspore_serving.mindir.operators.integers import wrapping
from mindspore_serving.mindir.operators.types import as_float, common
from mindspore_serving.mindir.tensors import (
    Bool,
    Float,
    Operator,
    Tensor,
    UnsupportedTensor,
    absolute,
    cast,
    like,
    rank,
    reshape,
    tensor,
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


def _with_alpha(build: Build, input: Value, other: Value, alpha: Float = 1.0) -> Any:
    first, second = common(input, other)
    if alpha != 1:
        second = wrapping(lambda x: op.multiply(x, like(alpha, x)), second)
    return wrapping(build, first, second)


def _div_mode(input: Value, other: Value, rounding_mode: Value = None) -> Any:
    """Divide, and round the quotient if there is a mode."""
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
    """Compute atan2 by the half-angle formula, which keeps the quadrant; 0 or pi on the axis."""
    length = op.sqrt(op.add(op.multiply(first, first), op.multiply(second, second)))
    angle = op.multiply(op.atan(op.divide(first, op.add(length, second))), like(2.0, first))
    is_axis = op.equal(first, like(0.0, first))
    on_axis = op.select(
        op.less(second, like(0.0, second)), like(3.141592653589793, first), like(0.0, first)
    )
    return op.select(is_axis, on_axis, angle)


def _logaddexp(first: Any, second: Any) -> Any:
    largest = op.maximum(first, second)
    difference = op.negative(absolute(op.subtract(first, second)))
    return op.add(largest, op.log(op.add(op.exp(difference), like(1.0, first))))


def _bitwise(logical: Build, bitwise: Build, first: Any, second: Any) -> Any:
    is_logical = first.get_element_type() == ov.Type.boolean
    return (logical if is_logical else bitwise)(first, second)


def _bias_add(input_x: Tensor, bias: Tensor, data_format: Value = None) -> Any:
    """Add a bias to axis 1, or to the last axis of channels-last formats."""
    name = "nchw" if data_format is None else data_format
    layout = FORMAT.name("data_format", name, "nchw", "ncdhw", "nhwc")
    if rank(input_x) > 2 and layout != "nhwc":
        bias = reshape(bias, [1, -1, *[1] * (rank(input_x) - 2)])
    return wrapping(op.add, input_x, bias)


def _lerp(input: Tensor, end: Tensor, weight: Value) -> Any:
    _, factor = common(input, weight)
    return op.add(input, op.multiply(factor, op.subtract(end, input)))


def _addcmul(input: Tensor, tensor1: Tensor, tensor2: Tensor, value: Value = 1) -> Any:
    product, factor = common(wrapping(op.multiply, tensor1, tensor2), value)
    return wrapping(op.add, input, wrapping(op.multiply, product, factor))


def _addcdiv(input: Tensor, tensor1: Tensor, tensor2: Tensor, value: Value = 1) -> Any:
    quotient, factor = common(op.divide(tensor1, tensor2).output(0), value)
    return op.add(input, op.multiply(quotient, factor))


def _add_n(x: Value) -> Any:
    return reduce(partial(wrapping, op.add), map(tensor, x))


def _clamp(input: Tensor, min: Value = None, max: Value = None) -> Any:
    if min is not None:
        input, low = common(input, min)
        input = op.maximum(input, low).output(0)
    if max is not None:
        input, high = common(input, max)
        input = op.minimum(input, high).output(0)
    return input


def _is_close(
    input: Tensor, other: Tensor, rtol: Float = 1e-5, atol: Float = 1e-8, equal_nan: Bool = False
) -> Any:
    if equal_nan:
        raise UnsupportedTensor("equal_nan")
    space = op.add(like(atol, other), op.multiply(like(rtol, other), absolute(other)))
    return op.less_equal(absolute(op.subtract(input, other)), space)


def _masked_fill(input_x: Tensor, mask: Tensor, value: Value) -> Any:
    _, filling = common(input_x, value)
    return op.select(
        cast(mask, ov.Type.boolean), cast(filling, input_x.get_element_type()), input_x
    )


def _select(condition: Tensor, input: Value, other: Value) -> Any:
    first, second = common(input, other)
    return op.select(cast(condition, ov.Type.boolean), first, second)


_AND = partial(_bitwise, op.logical_and, op.bitwise_and)
_OR = partial(_bitwise, op.logical_or, op.bitwise_or)
_XOR = partial(_bitwise, op.logical_xor, op.bitwise_xor)

_PLAIN: dict[str, Build] = {
    **dict.fromkeys(("BitwiseAnd", "BitwiseAndScalar", "BitwiseAndTensor"), _AND),
    **dict.fromkeys(("BitwiseOr", "BitwiseOrScalar", "BitwiseOrTensor"), _OR),
    **dict.fromkeys(("BitwiseXor", "BitwiseXorScalar", "BitwiseXorTensor"), _XOR),
    **dict.fromkeys(("Add", "AddV2"), partial(wrapping, op.add)),
    **dict.fromkeys(("EqScalar", "Equal"), integers.equal),
    **dict.fromkeys(("FloorDiv", "FloorDivScalar"), integers.floor_div),
    **dict.fromkeys(("FloorMod", "RemainderScalarTensor"), integers.floor_mod),
    **dict.fromkeys(("RemainderTensorScalar", "RemainderTensorTensor"), integers.floor_mod),
    **dict.fromkeys(("FmodScalar", "FmodTensor", "Mod", "TruncateMod"), integers.trunc_mod),
    **dict.fromkeys(("GreaterEqual", "GreaterEqualScalar"), integers.greater_equal),
    **dict.fromkeys(("Less", "LessScalar"), integers.less),
    **dict.fromkeys(("Mul", "Muls"), partial(wrapping, op.multiply)),
    **dict.fromkeys(("Pow", "PowScalarTensor", "PowTensorScalar"), integers.power),
    "DivNoNan": _div_no_nan,
    "Greater": integers.greater,
    "LeftShift": op.bitwise_left_shift,
    "LessEqual": integers.less_equal,
    "Maximum": op.maximum,
    "Minimum": op.minimum,
    "NotEqual": integers.not_equal,
    "RightShift": op.bitwise_right_shift,
    "SquaredDifference": partial(wrapping, op.squared_difference),
    "Sub": partial(wrapping, op.subtract),
    "TruncateDiv": integers.trunc_div,
}
_FLOATS: dict[str, Build] = {
    **dict.fromkeys(("Atan2", "Atan2Ext"), _atan2),
    **dict.fromkeys(("Div", "Divs", "RealDiv"), op.divide),
    "LogAddExp": _logaddexp,
    "Xdivy": partial(_zero_where_first_is, op.divide),
    "Xlogy": partial(_zero_where_first_is, lambda x, y: op.multiply(x, op.log(y))),
}
_ADD, _SUBTRACT = (partial(_with_alpha, build) for build in (op.add, op.subtract))

OPERATORS: dict[str, Operator] = {
    **{name: partial(_plain, build) for name, build in _PLAIN.items()},
    **{name: partial(_of_floats, build) for name, build in _FLOATS.items()},
    **dict.fromkeys(("AddExt", "AddScalar"), _ADD),
    **dict.fromkeys(("SubExt", "SubScalar"), _SUBTRACT),
    **dict.fromkeys(("DivMod", "DivMods"), _div_mode),
    **dict.fromkeys(("Addcdiv", "AddcdivExt"), _addcdiv),
    **dict.fromkeys(("Addcmul", "AddcmulExt"), _addcmul),
    **dict.fromkeys(("ClampScalar", "ClampTensor"), _clamp),
    **dict.fromkeys(("Lerp", "LerpScalar"), _lerp),
    **dict.fromkeys(("MaskedFill", "MaskedFillScalar"), _masked_fill),
    **dict.fromkeys(("Select", "SelectV2"), _select),
    "AddN": _add_n,
    "BiasAdd": _bias_add,
    "IsClose": _is_close,
    "LogicalAnd": partial(_of_booleans, op.logical_and),
    "LogicalOr": partial(_of_booleans, op.logical_or),
    "LogicalXor": partial(_of_booleans, op.logical_xor),
}
