"""Convolutions, forward and transposed, of one to three dimensions."""

from typing import Any

from openvino import opset16 as op

from mindspore_serving.mindir.operators.enumerations import PAD_MODE, check_channels_first
from mindspore_serving.mindir.tensors import (
    Int,
    Ints,
    Operator,
    Tensor,
    dims,
    ints_of,
    rank,
    reshape,
)
from mindspore_serving.mindir.values import Value

SAME, VALID = "same", "valid"
PAD = "pad"


def padding_mode(mode: Value, *accepted: str) -> str:
    """ "same", "valid" or "pad", unless fewer are accepted."""
    return PAD_MODE.name("padding mode", mode, *(accepted or (PAD, SAME, VALID)))


def spatial(numbers: tuple[int, ...], count: int) -> list[int]:
    """The last `count` of numbers, which may begin with batch and channel, or be one for all."""
    return list(numbers * count if len(numbers) == 1 else numbers[-count:])


def pairs(pads: tuple[int, ...], count: int) -> tuple[list[int], list[int]]:
    """Pads written as (begin, end) by axis, or one for both, or one for all."""
    if len(pads) == 2 * count:
        return list(pads[::2]), list(pads[1::2])
    return (both := spatial(pads, count)), both


def _convolve(
    x: Any,
    weight: Any,
    padding: tuple[str, tuple[list[int], list[int]]],
    steps: tuple[tuple[int, ...], tuple[int, ...]],
    groups: int,
) -> Any:
    """`steps` are strides and dilations; "same" puts the odd one behind."""
    mode, (begin, end) = padding
    auto = {SAME: "same_upper", VALID: "valid"}.get(mode, "explicit")
    strides, dilations = (spatial(one, rank(weight) - 2) for one in steps)
    if groups == 1:
        return op.convolution(x, weight, strides, begin, end, dilations, auto)
    out, *rest = dims(weight)
    weight = reshape(weight, (groups, out // groups, *rest))
    return op.group_convolution(x, weight, strides, begin, end, dilations, auto)


def _conv(
    x: Tensor,
    weight: Tensor,
    *,
    pad_mode: Value = VALID,
    pad: Ints = (0,),
    stride: Ints = (1,),
    strides: Ints | None = None,
    dilation: Ints = (1,),
    dilations: Ints | None = None,
    groups: Int = 1,
    format: Value = None,
    data_format: Value = None,
) -> Any:
    """Conv3D has strides and dilations where Conv2D has a stride and a dilation."""
    check_channels_first(format, "nchw", "ncdhw")
    check_channels_first(data_format, "nchw", "ncdhw")
    mode, count = padding_mode(pad_mode), rank(weight) - 2
    pads = pairs(pad, count) if mode == "pad" else pairs_of_one((0,), count)
    steps = (strides or stride, dilations or dilation)
    return _convolve(x, weight, (mode, pads), steps, groups)


def _depthwise(
    x: Tensor,
    weight: Tensor,
    *,
    pad_mode: Value = VALID,
    pad: Ints = (0,),
    stride: Ints = (1,),
    dilation: Ints = (1,),
    format: Value = None,
    data_format: Value = None,
) -> Any:
    """The weight is (1, channels, height, width)."""
    check_channels_first(format)
    check_channels_first(data_format)
    _, channels, *rest = dims(weight)
    weight = reshape(weight, (channels, 1, *rest))
    steps = {"stride": stride, "dilation": dilation}
    return _conv(x, weight, pad_mode=pad_mode, pad=pad, **steps, groups=channels)


def conv_ext(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Ints = (1,),
    padding: Ints = (0,),
    dilation: Ints = (1,),
    groups: Int = 1,
) -> Any:
    pads = pairs_of_one(padding, rank(weight) - 2)
    return _convolve_any(x, weight, bias, ("pad", pads), (stride, dilation), groups)


def _conv_padding(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Ints = (1,),
    padding: Value = VALID,
    dilation: Ints = (1,),
    groups: Int = 1,
) -> Any:
    pads = (padding_mode(padding, SAME, VALID), pairs_of_one((0,), rank(weight) - 2))
    return _convolve_any(x, weight, bias, pads, (stride, dilation), groups)


def pairs_of_one(padding: tuple[int, ...], count: int) -> tuple[list[int], list[int]]:
    """The same before and behind, one for each axis or one for all."""
    both = spatial(padding, count)
    return both, both


def _convolve_any(
    x: Any,
    weight: Any,
    bias: Any,
    padding: tuple[str, tuple[list[int], list[int]]],
    steps: tuple[tuple[int, ...], tuple[int, ...]],
    groups: int,
) -> Any:
    """Also of one example that has no axis for a batch."""
    count = rank(weight) - 2
    is_one = rank(x) < count + 2
    batch = op.unsqueeze(x, ints_of([0])).output(0) if is_one else x
    y = with_bias(_convolve(batch, weight, padding, steps, groups), bias, count)
    return op.squeeze(y, ints_of([0])) if is_one else y


def with_bias(y: Any, bias: Any, count: int) -> Any:
    return y if bias is None else op.add(y, reshape(bias, (1, -1, *[1] * count)))


OPERATORS: dict[str, Operator] = {
    "Conv1DExt": conv_ext,
    "Conv1DPadding": _conv_padding,
    "Conv2D": _conv,
    "Conv2DExt": conv_ext,
    "Conv2DPadding": _conv_padding,
    "Conv3D": _conv,
    "Conv3DExt": conv_ext,
    "Conv3DPadding": _conv_padding,
    "DepthwiseConv2dNative": _depthwise,
}
