"""Transposed convolutions."""

from typing import Any

import openvino as ov
from openvino import opset16 as op

from mindspore_serving.mindir.operators.convolution import (
    PAD,
    SAME,
    VALID,
    conv_ext,
    padding_mode,
    pairs,
    pairs_of_one,
    spatial,
    with_bias,
)
from mindspore_serving.mindir.operators.enumerations import check_channels_first
from mindspore_serving.mindir.tensors import (
    Int,
    Ints,
    Operator,
    Tensor,
    cast,
    dims,
    ints_of,
    known,
    like,
    rank,
    reshape,
    size_of,
    tensor,
)
from mindspore_serving.mindir.values import Value, read

Steps = tuple[tuple[int, ...], tuple[int, ...]]
"""Strides and dilations."""
Size = Any
"""A number, or a 1-D tensor of one int64."""


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
    y = _backward(x, weight, (stride, dilation), groups, pads, more)
    return with_bias(y, bias, count)


def _conv2d_transpose(
    x: Tensor,
    weight: Tensor,
    input_sizes: Value,
    *,
    pad_mode: Value = VALID,
    pad_list: Ints = (0,),
    stride: Ints = (1,),
    dilation: Ints = (1,),
    groups: Int = 1,
    format: Value = None,
    data_format: Value = None,
) -> Any:
    """The weight is (in, out / groups, height, width); `input_sizes` is the shape of the result."""
    check_channels_first(format, "nchw", "ncdhw")
    check_channels_first(data_format, "nchw", "ncdhw")
    count = rank(weight) - 2
    begin = _begin(pad_mode, pad_list, count)
    return _shaped(x, weight, (stride, dilation), groups, begin, _lengths(input_sizes, count))


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
    format: Value = None,
    data_format: Value = None,
) -> Any:
    check_channels_first(format, "nchw", "ncdhw")
    check_channels_first(data_format, "nchw", "ncdhw")
    count = rank(weight) - 2
    begin, mode = _begin(pad_mode, pad_list, count), padding_mode(pad_mode)
    if mode == PAD:
        more = spatial(output_padding, count)
        return _backward(x, weight, (strides, dilations), groups, pairs(pad_list, count), more)
    lengths = []
    for number, step in enumerate(spatial(strides, count)):
        size = _times(x, number + 2, step)
        over = max(_extents(weight, dilations)[number] - step, 0) if mode == VALID else 0
        lengths.append(size + over if isinstance(size, int) else _plus(size, over))
    return _shaped(x, weight, (strides, dilations), groups, begin, lengths)


def _begin(pad_mode: Value, pad_list: tuple[int, ...], count: int) -> list[int] | None:
    """How many are cut off before each axis, None for the smaller half of what is over."""
    mode = padding_mode(pad_mode)
    if mode == SAME:
        return None
    return pairs(pad_list, count)[0] if mode == PAD else [0] * count


def _lengths(sizes: Value, count: int) -> list[Size]:
    """The last `count` of the sizes, as far as they are known."""
    array = known(sizes)
    if array is not None:
        return [int(size) for size in array.ravel()[-count:]]
    sizes = read(sizes)
    if not isinstance(sizes, tuple):
        whole = cast(tensor(sizes), ov.Type.i64)
        parts = [op.gather(whole, ints_of([place]), ints_of([0])) for place in range(-count, 0)]
        return [part.output(0) for part in parts]
    return [
        size if isinstance(size, int) else reshape(cast(tensor(size), ov.Type.i64), (1,))
        for size in sizes[-count:]
    ]


def _extents(weight: Any, dilation: tuple[int, ...]) -> list[int]:
    """How far a kernel reaches, by axis."""
    sizes = dims(weight)[2:]
    return [
        (size - 1) * step + 1
        for size, step in zip(sizes, spatial(dilation, len(sizes)), strict=True)
    ]


def _times(x: Any, axis: int, factor: int) -> Size:
    size = dims(x)[axis]
    return (
        size * factor if size >= 0 else op.multiply(size_of(x, axis), ints_of([factor])).output(0)
    )


def _plus(size: Size, more: int) -> Size:
    return size + more if isinstance(size, int) else op.add(size, ints_of([more])).output(0)


def _shaped(
    x: Any,
    weight: Any,
    steps: Steps,
    groups: int,
    begin: list[int] | None,
    lengths: list[Size],
) -> Any:
    """What all inputs give, cut off before `begin` and behind `lengths`; zeros where it is shorter.

    The convolution itself cuts where all sizes are known.
    """
    strides, extents = spatial(steps[0], len(lengths)), _extents(weight, steps[1])
    full = [
        _plus(_times(x, number + 2, step), extent - step)
        for number, (step, extent) in enumerate(zip(strides, extents, strict=True))
    ]
    if all(isinstance(size, int) for size in (*full, *lengths)):
        over = [size - length for size, length in zip(full, lengths, strict=True)]
        before = [max(one, 0) // 2 for one in over] if begin is None else begin
        behind = [one - first for one, first in zip(over, before, strict=True)]
        pads = before, [max(one, 0) for one in behind]
        return _longer(_backward(x, weight, steps, groups, pads), behind)
    y = _backward(x, weight, steps, groups)
    for number, length in enumerate(lengths):
        first = None if begin is None else begin[number]
        y = _cut(y, number + 2, first, ints_of([length]) if isinstance(length, int) else length)
    return y


def _longer(y: Any, behind: list[int]) -> Any:
    """With zeros behind, where that many are to be cut off and it is a negative number."""
    if min(behind) >= 0:
        return y
    end = ints_of([0, 0, *(max(-one, 0) for one in behind)])
    return op.pad(y, ints_of([0] * rank(y)), end, "constant", like(0, y)).output(0)


def _cut(y: Any, axis: int, first: int | None, length: Any) -> Any:
    """The same for one axis of open size."""
    over = op.subtract(size_of(y, axis), length)
    none = ints_of([0])
    half = op.divide(op.maximum(over, none), ints_of([2]))
    begin = half if first is None else ints_of([first])
    end = op.add(begin, length)
    zeros = [none] * rank(y)
    zeros[axis] = op.maximum(op.subtract(end, size_of(y, axis)), none).output(0)
    longer = op.pad(y, ints_of([0] * rank(y)), op.concat(zeros, 0), "constant", like(0, y))
    return op.slice(longer, begin, end, ints_of([1]), ints_of([axis])).output(0)


def _backward(
    x: Any,
    weight: Any,
    steps: Steps,
    groups: int,
    pads: tuple[list[int], list[int]] | None = None,
    more: list[int] | None = None,
) -> Any:
    """`pads` are cut off, `more` are added behind."""
    count = rank(weight) - 2
    strides, dilations = (spatial(one, count) for one in steps)
    build = op.convolution_backprop_data
    if groups > 1:
        first, *rest = dims(weight)
        weight = reshape(weight, (groups, first // groups, *rest))
        build = op.group_convolution_backprop_data
    pads = pads or ([0] * count, [0] * count)
    return build(x, weight, strides, None, *pads, dilations, "explicit", more).output(0)


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
    "Conv3DTranspose": _conv3d_transpose,
    "ConvTranspose2D": _transposed,
    "Convolution": _convolution,
}
