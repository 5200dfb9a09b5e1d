"""The table of operators of MindSpore Lite: number in the schema -> name and its OpenVINO form.

A function gets a `LiteCall`.  Numbers of fields are slots of the operator's table in the schema.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import openvino as ov
from openvino import opset16 as op

from mindspore_serving.errors import StartError
from mindspore_serving.mindir.lite import layers
from mindspore_serving.mindir.lite.call import Build, LiteCall, activated, axis_of, const, like
from mindspore_serving.mindir.lite.graph import DTYPES


@dataclass(frozen=True, slots=True)
class LiteOperator:
    """An operator: its name, and the function that builds it."""

    name: str
    build: Build


def _activation(call: LiteCall) -> Any:
    return activated(call.x, call.number(4, "<b"), call)


def _unary(build: Callable[[Any], Any]) -> Build:
    return lambda call: build(call.x)


def _binary(build: Callable[[Any, Any], Any], slot: int | None = None) -> Build:
    """Return the function of a binary operator, with a fused activation in field `slot`."""

    def apply(call: LiteCall) -> Any:
        y = build(*call.inputs[:2])
        return y if slot is None else activated(y, call.number(slot, "<b"))

    return apply


def _divided(x: Any, y: Any) -> Any:
    return op.divide(x, y)


def _softmax(call: LiteCall) -> Any:
    (axis,) = call.fields.ints(4) or [-1]
    return op.softmax(call.x, axis_of(call.x, axis))


def _reshape(call: LiteCall) -> Any:
    return op.reshape(call.x, call.inputs[1], True)


def _flatten(call: LiteCall) -> Any:
    axis = call.number(4, "<q", 1)
    if axis != 1:
        raise StartError(f"its axis is {axis}, expected 1")
    return op.reshape(call.x, const([0, -1]), True)


def _reduce(call: LiteCall) -> Any:
    builds = (
        *(op.reduce_mean, op.reduce_max, op.reduce_min, op.reduce_prod, op.reduce_sum),
        lambda x, axes, keep: op.reduce_sum(op.multiply(x, x), axes, keep),
        lambda x, axes, keep: op.reduce_sum(op.abs(x), axes, keep),
        op.reduce_logical_and,
        op.reduce_l2,
    )
    mode, keep = call.number(6, "<b"), call.number(4, "<?", False)
    if not 0 <= mode < len(builds) or call.number(8, "<?", False):
        raise StartError(f"its reduction {mode} is not supported")
    axes = call.ints(1)
    rank = call.x.get_partial_shape().rank.get_length()
    y = builds[mode](call.x, const(axes or list(range(rank))), keep)
    coefficient = call.number(10, "<f", 1.0)
    return y if coefficient in (0.0, 1.0) else op.multiply(y, like(coefficient, y))


def _pad(call: LiteCall) -> Any:
    numbers = call.ints(1)
    mode = {0: "constant", 1: "reflect", 2: "symmetric"}.get(call.number(6, "<b"))
    if mode is None:
        raise StartError("its padding mode is not supported")
    value = like(call.number(8, "<f"), call.x)
    return op.pad(call.x, const(numbers[::2]), const(numbers[1::2]), mode, value)


def _strided_slice(call: LiteCall) -> Any:
    masks = [call.number(slot, "<q") for slot in (4, 6, 8, 10, 12)]
    begin, end, ellipsis, new, shrink = ([mask >> i & 1 for i in range(8)] for mask in masks)
    if len(call.inputs) == 5:  # with axes
        starts, ends, axes, steps = (call.inputs[i] for i in (1, 2, 3, 4))
        return op.slice(call.x, starts, ends, steps, axes)
    count = len(call.ints(1))
    cut = [bits[:count] for bits in (begin, end, new, shrink, ellipsis)]
    return op.strided_slice(call.x, *call.inputs[1:4], *cut)


def _slice(call: LiteCall) -> Any:
    """Cut out a region: inputs 1 and 2 are its begin and its size along the axes."""
    begin, size = call.ints(1), call.ints(2)
    axes = call.fields.ints(4) or list(range(len(begin)))
    ends = [np.iinfo(np.int32).max if n < 0 else b + n for b, n in zip(begin, size, strict=True)]
    return op.slice(call.x, const(begin), const(ends), const([1] * len(begin)), const(axes))


def _gather(call: LiteCall) -> Any:
    axis = call.ints(2)[0] if len(call.inputs) > 2 else 0
    return op.gather(call.x, call.inputs[1], const(axis))


def _split(call: LiteCall) -> Any:
    axis = const(axis_of(call.x, call.number(8, "<q")))
    sizes = call.fields.ints(6)
    if not sizes or any(size < 0 for size in sizes[:-1]):
        return op.split(call.x, axis, call.num_outputs).outputs()
    return op.variadic_split(call.x, axis, const(sizes)).outputs()


def _stack(call: LiteCall) -> Any:
    axis = call.number(4, "<q")
    return op.concat([op.unsqueeze(x, const(axis)) for x in call.inputs], axis)


def _power(call: LiteCall) -> Any:
    scale, shift = call.number(4, "<f", 1.0), call.number(6, "<f", 0.0)
    x = op.add(op.multiply(call.x, like(scale, call.x)), like(shift, call.x))
    return op.power(x, op.convert_like(call.inputs[1], x))


def _exp(call: LiteCall) -> Any:
    base, scale, shift = (
        call.number(slot, "<f", default) for slot, default in ((4, -1.0), (6, 1.0), (8, 0.0))
    )
    x = op.add(op.multiply(call.x, like(scale, call.x)), like(shift, call.x))
    return op.exp(x) if base == -1.0 else op.power(like(base, x), x)


def _clip(call: LiteCall) -> Any:
    return op.clamp(call.x, call.number(6, "<f"), call.number(4, "<f"))


def _squeeze(call: LiteCall) -> Any:
    axes = call.fields.ints(4)
    return op.squeeze(call.x, const(axes)) if axes else op.squeeze(call.x)


def _argument(is_max: bool, call: LiteCall) -> Any:
    if call.number(6, "<q", 1) not in (0, 1) or call.number(10, "<?", False):
        raise StartError("it returns several indices, or values")
    axis = axis_of(call.x, call.number(4, "<q"))
    mode = "max" if is_max else "min"
    indices = op.topk(call.x, const(1), axis, mode, "value", "i32").output(1)
    return indices if call.number(8, "<?", False) else op.squeeze(indices, const([axis]))


def _cast(call: LiteCall) -> Any:
    (number,) = call.ints(1)
    if number not in DTYPES:
        raise StartError(f"its element type {number} is not supported")
    return op.convert(call.x, ov.Type(np.dtype(DTYPES[number])))


def _topk(call: LiteCall) -> Any:
    """Return the largest values and their indices; the converter omits the default of `largest`."""
    axis = axis_of(call.x, call.number(6, "<q"))
    (k,) = call.ints(1)
    return op.topk(call.x, const(k), axis, "max", "value", "i32").outputs()


def _select(call: LiteCall) -> Any:
    condition, x, y = call.inputs
    return op.select(op.convert(condition, "boolean"), x, y)


def _filled(call: LiteCall) -> Any:
    return op.broadcast(call.x, call.inputs[1])


def _broadcast(call: LiteCall) -> Any:
    shape = call.inputs[1] if len(call.inputs) > 1 else const(call.fields.ints(4))
    return op.broadcast(call.x, shape, broadcast_spec="BIDIRECTIONAL")


def _sum(call: LiteCall) -> Any:
    y = call.x
    for x in call.inputs[1:]:
        y = op.add(y, x)
    return y


ROWS = {
    1: LiteOperator("Abs", _unary(op.abs)),
    2: LiteOperator("Activation", _activation),
    5: LiteOperator("AddFusion", _binary(op.add, 4)),
    8: LiteOperator("AddN", _sum),
    11: LiteOperator("ArgMaxFusion", partial(_argument, True)),
    12: LiteOperator("ArgMinFusion", partial(_argument, False)),
    17: LiteOperator("AvgPoolFusion", partial(layers.pooling, False)),
    19: LiteOperator("BatchNorm", partial(layers.batch_norm, 4, 0.0)),
    23: LiteOperator("BiasAdd", _binary(op.add)),
    27: LiteOperator("BroadcastTo", _broadcast),
    28: LiteOperator("Cast", _cast),
    29: LiteOperator("Ceil", _unary(op.ceiling)),
    30: LiteOperator("Clip", _clip),
    31: LiteOperator("Concat", lambda call: op.concat(list(call.inputs), call.number(4, "<q"))),
    35: LiteOperator("Conv2DFusion", layers.convolution),
    36: LiteOperator("Conv2dTransposeFusion", layers.transposed_convolution),
    37: LiteOperator("Cos", _unary(op.cos)),
    47: LiteOperator("DivFusion", _binary(_divided, 4)),
    51: LiteOperator("Elu", lambda call: op.elu(call.x, call.number(4, "<f"))),
    53: LiteOperator("Equal", _binary(op.equal)),
    55: LiteOperator("ExpFusion", _exp),
    56: LiteOperator("ExpandDims", lambda call: op.unsqueeze(call.x, call.inputs[1])),
    61: LiteOperator("Flatten", _flatten),
    63: LiteOperator("Floor", _unary(op.floor)),
    66: LiteOperator("Fill", _filled),
    67: LiteOperator("FullConnection", layers.full_connection),
    68: LiteOperator("FusedBatchNorm", partial(layers.batch_norm, 4, 1e-4)),
    69: LiteOperator("Gather", _gather),
    70: LiteOperator("GatherNd", lambda call: op.gather_nd(call.x, call.inputs[1])),
    71: LiteOperator("Greater", _binary(op.greater)),
    72: LiteOperator("GreaterEqual", _binary(op.greater_equal)),
    74: LiteOperator("InstanceNorm", layers.instance_norm),
    75: LiteOperator("LayerNormFusion", layers.layer_norm),
    76: LiteOperator(
        "LeakyRelu", lambda call: op.prelu(call.x, like(call.number(4, "<f"), call.x))
    ),
    77: LiteOperator("Less", _binary(op.less)),
    78: LiteOperator("LessEqual", _binary(op.less_equal)),
    79: LiteOperator("Log", _unary(op.log)),
    81: LiteOperator("LogicalAnd", _binary(op.logical_and)),
    82: LiteOperator("LogicalNot", _unary(op.logical_not)),
    83: LiteOperator("LogicalOr", _binary(op.logical_or)),
    89: LiteOperator("MatMulFusion", layers.matmul),
    90: LiteOperator("Maximum", _binary(op.maximum)),
    92: LiteOperator("MaxPoolFusion", partial(layers.pooling, True)),
    96: LiteOperator("Minimum", _binary(op.minimum)),
    98: LiteOperator("Mod", _binary(op.mod)),
    99: LiteOperator("MulFusion", _binary(op.multiply, 4)),
    101: LiteOperator("Neg", _unary(op.negative)),
    103: LiteOperator("NotEqual", _binary(op.not_equal)),
    107: LiteOperator("PadFusion", _pad),
    110: LiteOperator("PowFusion", _power),
    112: LiteOperator("PReLUFusion", layers.prelu),
    116: LiteOperator("Reciprocal", lambda call: op.divide(like(1.0, call.x), call.x)),
    117: LiteOperator("RealDiv", _binary(_divided)),
    118: LiteOperator("ReduceFusion", _reduce),
    119: LiteOperator("Reshape", _reshape),
    120: LiteOperator("Resize", layers.resize),
    125: LiteOperator("Round", lambda call: op.round(call.x, "half_to_even")),
    126: LiteOperator("Rsqrt", lambda call: op.divide(like(1.0, call.x), op.sqrt(call.x))),
    127: LiteOperator("ScaleFusion", layers.scale),
    130: LiteOperator("Shape", lambda call: op.shape_of(call.x, "i32")),
    133: LiteOperator("Sin", _unary(op.sin)),
    135: LiteOperator("SliceFusion", _slice),
    138: LiteOperator("Softmax", _softmax),
    145: LiteOperator("Split", _split),
    146: LiteOperator("Sqrt", _unary(op.sqrt)),
    147: LiteOperator("Squeeze", _squeeze),
    148: LiteOperator("Square", lambda call: op.multiply(call.x, call.x)),
    149: LiteOperator("SquaredDifference", _binary(op.squared_difference)),
    150: LiteOperator("Stack", _stack),
    151: LiteOperator("StridedSlice", _strided_slice),
    152: LiteOperator("SubFusion", _binary(op.subtract, 4)),
    160: LiteOperator("TileFusion", lambda call: op.tile(call.x, call.inputs[1])),
    161: LiteOperator("TopKFusion", _topk),
    162: LiteOperator("Transpose", lambda call: op.transpose(call.x, call.inputs[1])),
    165: LiteOperator("Unsqueeze", lambda call: op.unsqueeze(call.x, const(call.fields.ints(4)))),
    168: LiteOperator("Where", _select),
    170: LiteOperator("Select", _select),
    178: LiteOperator("Erf", _unary(op.erf)),
    189: LiteOperator("LogSoftmax", lambda c: op.log_softmax(c.x, axis_of(c.x, c.number(4, "<q")))),
}
