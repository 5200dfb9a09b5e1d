"""Layers of MindSpore Lite: convolutions, pooling, products, norms, resizing."""

from typing import Any

from openvino import opset14
from openvino import opset16 as op

from mindspore_serving.errors import StartError
from mindspore_serving.mindir.lite.call import LiteCall, activated, axis_of, const, like, permute

_TO_NCHW, _TO_NHWC = [0, 3, 1, 2], [0, 2, 3, 1]
_SAME, _VALID = 1, 2  # modes of pads; 0 has numbers


def _pads(call: LiteCall, mode_slot: int, pads_slot: int) -> tuple[str, list[int], list[int]]:
    """Return OpenVINO's mode, and pads before and behind; the file has up, down, left, right."""
    mode = call.number(mode_slot, "<b")
    pads = call.fields.ints(pads_slot) or [0] * 4
    if mode == _SAME:
        return "same_upper", [0, 0], [0, 0]
    if mode == _VALID:
        return "valid", [0, 0], [0, 0]
    if len(pads) != 4:
        raise StartError(f"its pads are {pads}, expected 4 numbers")
    return "explicit", pads[::2], pads[1::2]


def convolution(call: LiteCall) -> Any:
    """Convolve an NHWC image; the weight is (out, height, width, in / groups)."""
    auto_pad, begin, end = _pads(call, 12, 14)
    strides, dilations = call.fields.ints(8), call.fields.ints(10) or [1, 1]
    groups = call.number(18, "<q") or 1
    x, weight = permute(call.x, _TO_NCHW), permute(call.inputs[1], _TO_NCHW)
    if groups == 1:
        y = op.convolution(x, weight, strides, begin, end, dilations, auto_pad)
    else:
        count, *rest = list(weight.get_output_shape(0))
        weight = op.reshape(weight, const([groups, count // groups, *rest]), False)
        y = op.group_convolution(x, weight, strides, begin, end, dilations, auto_pad)
    y = permute(y, _TO_NHWC)
    if len(call.inputs) > 2:
        y = op.add(y, call.inputs[2])
    return activated(y, call.number(24, "<b"))


def pooling(is_max: bool, call: LiteCall) -> Any:
    """Build the largest or the mean of each window of an NHWC image."""
    auto_pad, begin, end = _pads(call, 10, 8)
    x = permute(call.x, _TO_NCHW)
    if call.number(16, "<?", False):  # global
        reduce = op.reduce_max if is_max else op.reduce_mean
        y = reduce(x, const([2, 3]), True)
    else:
        kernel, strides = call.fields.ints(4), call.fields.ints(6)
        rounding = "ceil" if call.number(12, "<b") else "floor"
        if is_max:
            y = op.max_pool(x, strides, [1, 1], begin, end, kernel, rounding, auto_pad).output(0)
        else:
            # The operator of opset 16 crashes OpenVINO 2026.4 on a CPU.
            y = opset14.avg_pool(x, strides, begin, end, kernel, True, rounding, auto_pad)
    return activated(permute(y, _TO_NHWC), call.number(18, "<b"))


def matmul(call: LiteCall) -> Any:
    """Multiply matrices, and add a bias."""
    transpose_a, transpose_b = (call.number(slot, "<?", False) for slot in (4, 6))
    y = op.matmul(call.x, call.inputs[1], transpose_a, transpose_b)
    if len(call.inputs) > 2:
        y = op.add(y, call.inputs[2])
    return activated(y, call.number(8, "<b"))


def full_connection(call: LiteCall) -> Any:
    """Multiply by the transposed weight, and add a bias."""
    x = call.x
    if call.number(6, "<?", False):
        axis = call.number(8, "<q")
        shape = op.concat([*[const([0])] * axis, const([-1])], 0)
        x = op.reshape(x, shape, True)
    elif x.get_partial_shape().rank.get_length() > 2:
        x = op.reshape(x, const([-1, call.inputs[1].get_shape()[-1]]), False)
    y = op.matmul(x, call.inputs[1], False, True)
    if len(call.inputs) > 2:
        y = op.add(y, call.inputs[2])
    return activated(y, call.number(10, "<b"))


def scale(call: LiteCall) -> Any:
    """Multiply and add along an axis: scale and offset have its size."""
    x = call.x
    axis = axis_of(x, call.number(4, "<q"))
    trailing = x.get_partial_shape().rank.get_length() - axis
    results = x
    for value, build in zip(call.inputs[1:], (op.multiply, op.add), strict=False):
        rank = value.get_partial_shape().rank.get_length()
        padding = [1] * (trailing - rank)
        shaped = (
            op.reshape(value, const([*value.get_shape(), *padding]), False) if padding else value
        )
        results = build(results, shaped)
    return activated(results, call.number(6, "<b"))


def layer_norm(call: LiteCall) -> Any:
    """Normalize the axes from one on."""
    x, epsilon = call.x, call.number(6, "<f", 1e-5)
    rank = x.get_partial_shape().rank.get_length()
    axes = const(range(axis_of(x, call.number(4, "<q")), rank))
    y = op.mvn(x, axes, True, epsilon, "inside_sqrt")
    if len(call.inputs) > 1:
        y = op.multiply(y, call.inputs[1])
    return op.add(y, call.inputs[2]) if len(call.inputs) > 2 else y


def batch_norm(slot: int, default: float, call: LiteCall) -> Any:
    """Normalize channels, the last axis, by (scale, offset, mean, variance), or by the last two."""
    *affine, mean, variance = call.inputs[1:]
    deviation = op.sqrt(op.add(variance, like(call.number(slot, "<f", default), variance)))
    y = op.divide(op.subtract(call.x, mean), deviation)
    if affine:
        y = op.add(op.multiply(y, affine[0]), affine[1])
    return y


def transposed_convolution(call: LiteCall) -> Any:
    """Convolve backwards; the weight is (in, height, width, out / groups)."""
    auto_pad, begin, end = _pads(call, 12, 16)
    strides, dilations = call.fields.ints(8), call.fields.ints(10) or [1, 1]
    groups, more = call.number(20, "<q") or 1, call.fields.ints(28) or [0, 0]
    if groups != 1:
        raise StartError(f"it has {groups} groups, expected 1")
    x, weight = permute(call.x, _TO_NCHW), permute(call.inputs[1], _TO_NCHW)
    y = op.convolution_backprop_data(
        x, weight, strides, None, begin, end, dilations, auto_pad, more
    )
    y = permute(y, _TO_NHWC)
    if len(call.inputs) > 2:
        y = op.add(y, call.inputs[2])
    return activated(y, call.number(26, "<b"))


_COORDINATES = ("asymmetric", "align_corners", "half_pixel")
_NEAREST = ("", "round_prefer_floor", "round_prefer_ceil", "floor", "ceil")


def resize(call: LiteCall) -> Any:
    """Resize an image by the sizes or scales of input 1, else to the sizes of the fields."""
    method, coordinates, nearest = (call.number(slot, "<b") for slot in (6, 14, 22))
    if method not in (0, 1) or not (0 <= coordinates < 3 and 0 <= nearest < len(_NEAREST)):
        raise StartError(f"its method {method} with coordinates {coordinates} is not supported")
    rounding = _NEAREST[nearest] or ("floor" if coordinates == 0 else "round_prefer_floor")
    target = (
        call.inputs[1]
        if len(call.inputs) > 1
        else const([call.number(8, "<q"), call.number(10, "<q")])
    )
    is_scale = len(call.inputs) > 1 and target.get_element_type().is_real()
    y = op.interpolate(
        permute(call.x, _TO_NCHW),
        target,
        "linear_onnx" if method == 0 else "nearest",
        "scales" if is_scale else "sizes",
        [0] * 4,
        [0] * 4,
        _COORDINATES[coordinates],
        rounding,
        axes=const([2, 3]),
    )
    return permute(y, _TO_NHWC)


def instance_norm(call: LiteCall) -> Any:
    """Normalize each channel of an NCHW image."""
    x, scale, offset = call.inputs
    rank = x.get_partial_shape().rank.get_length()
    y = op.mvn(x, const(range(2, rank)), True, call.number(4, "<f"), "inside_sqrt")
    shape = const([1, -1, *[1] * (rank - 2)])
    y = op.multiply(y, op.reshape(scale, shape, False))
    return op.add(y, op.reshape(offset, shape, False))


def prelu(call: LiteCall) -> Any:
    """Scale negative numbers by a slope for each channel, the last axis."""
    return op.prelu(call.x, op.reshape(call.inputs[1], const([-1]), False))
