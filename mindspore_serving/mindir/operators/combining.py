"""Operators of several tensors, and of masks."""

from typing import Any

import openvino as ov
from openvino import opset16 as op

from mindspore_serving.mindir.operators.enumerations import FORMAT
from mindspore_serving.mindir.operators.integers import wrapping
from mindspore_serving.mindir.operators.types import common
from mindspore_serving.mindir.tensors import (
    Bool,
    Float,
    Operator,
    Tensor,
    Unsupported,
    absolute,
    cast,
    like,
    rank,
    tensor,
)
from mindspore_serving.mindir.values import Value


def _bias_add(input_x: Tensor, bias: Tensor, data_format: Value = None) -> Any:
    """Adds to axis 1, or to the last one."""
    given = "nchw" if data_format is None else data_format
    layout = FORMAT.name("data_format", given, "nchw", "ncdhw", "nhwc")
    if rank(input_x) > 2 and layout != "nhwc":
        shape = [1, -1, *[1] * (rank(input_x) - 2)]
        bias = op.reshape(bias, op.constant(shape), False).output(0)
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
    first, *rest = x
    total = tensor(first)
    for part in rest:
        total = wrapping(op.add, total, tensor(part))
    return total


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
        raise Unsupported("equal_nan")
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


OPERATORS: dict[str, Operator] = {
    "AddN": _add_n,
    "Addcdiv": _addcdiv,
    "AddcdivExt": _addcdiv,
    "Addcmul": _addcmul,
    "AddcmulExt": _addcmul,
    "BiasAdd": _bias_add,
    "ClampScalar": _clamp,
    "ClampTensor": _clamp,
    "IsClose": _is_close,
    "Lerp": _lerp,
    "LerpScalar": _lerp,
    "MaskedFill": _masked_fill,
    "MaskedFillScalar": _masked_fill,
    "Select": _select,
    "SelectV2": _select,
}
