"""Transposed convolutions."""

from typing import Any

from openvino import opset16 as op

from mindspore_serving.mindir.operators.convolution import (
    SAME,
    VALID,
    check_channels_first,
    conv_ext,
    padding_mode,
    pairs,
    pairs_of_one,
    spatial,
    with_bias,
)
from mindspore_serving.mindir.tensors import (
    Int,
    Ints,
    Operator,
    Shape,
    Tensor,
    dims,
    ints_of,
    rank,
    reshape,
)
from mindspore_serving.mindir.values import Value


def _transposed(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Ints = (1,),
    padding: Ints = (0,),
    output_padding: Ints = (0,),
    groups: Int = 1,
    dilation: Ints = (1,),
) -> Any:
    """The weight is (in, out / groups, ...)."""
    count = rank(weight) - 2
    pads, more = pairs_of_one(padding, count), spatial(output_padding, count)
    y = _backward(x, weight, pads, (stride, dilation), groups, more=more)
    return with_bias(y, bias, count)


def _conv2d_transpose(
    x: Tensor,
    weight: Tensor,
    input_sizes: Shape,
    *,
    pad_mode: Value = VALID,
    pad_list: Ints = (0,),
    stride: Ints = (1,),
    dilation: Ints = (1,),
    groups: Int = 1,
    format: Value = None,
) -> Any:
    """The weight is (in, out / groups, height, width); `input_sizes` is the shape of the result."""
    check_channels_first(format)
    count = rank(weight) - 2
    mode = padding_mode(pad_mode)
    pads = pairs(pad_list, count) if mode == "pad" else pairs_of_one((0,), count)
    shape = op.slice(input_sizes, ints_of([2]), ints_of([2 + count]), ints_of([1]))
    auto = {SAME: "same_upper", VALID: "valid"}.get(mode, "explicit")
    return _backward(x, weight, pads, (stride, dilation), groups, shape=shape, auto=auto)


def _backward(
    x: Any,
    weight: Any,
    pads: tuple[list[int], list[int]],
    steps: tuple[tuple[int, ...], tuple[int, ...]],
    groups: int,
    **how: Any,
) -> Any:
    strides, dilations = (spatial(one, rank(weight) - 2) for one in steps)
    build = op.convolution_backprop_data
    if groups > 1:
        first, *rest = dims(weight)
        weight = reshape(weight, (groups, first // groups, *rest))
        build = op.group_convolution_backprop_data
    return build(
        x,
        weight,
        strides,
        how.get("shape"),
        *pads,
        dilations,
        how.get("auto", "explicit"),
        how.get("more"),
    )


def _conv3d_transpose(
    x: Tensor,
    weight: Tensor,
    *,
    pad_mode: Value = VALID,
    pad_list: Ints = (0,),
    strides: Ints = (1,),
    dilations: Ints = (1,),
    groups: Int = 1,
    output_padding: Ints = (0,),
) -> Any:
    count = rank(weight) - 2
    pads, more = pairs(pad_list, count), spatial(output_padding, count)
    return _backward(x, weight, pads, (strides, dilations), groups, more=more)


def _convolution(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Ints = (1,),
    padding: Ints = (0,),
    dilation: Ints = (1,),
    transposed: Int = 0,
    output_padding: Ints = (0,),
    groups: Int = 1,
) -> Any:
    if transposed:
        return _transposed(x, weight, bias, stride, padding, output_padding, groups, dilation)
    return conv_ext(x, weight, bias, stride, padding, dilation, groups)


OPERATORS: dict[str, Operator] = {
    "Conv2DBackpropInput": _conv2d_transpose,
    "Conv2DTranspose": _conv2d_transpose,
    "Convolution": _convolution,
    "Conv3DTranspose": _conv3d_transpose,
    "ConvTranspose2D": _transposed,
}
