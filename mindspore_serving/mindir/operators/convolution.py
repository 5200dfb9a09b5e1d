"""Convolutions of one to three dimensions, forward and transposed; how a window moves."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import openvino as ov
from openvino import opset16 as op

from mindspore_serving.mindir.operators.enumerations import PAD_MODE, check_channels_first
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
    squeeze,
    tensor,
    unsqueeze,
)
from mindspore_serving.mindir.values import Value, read

PAD, SAME, VALID = "pad", "same", "valid"
_AUTO_PAD = {PAD: "explicit", SAME: "same_upper", VALID: "valid"}
_OF_LAYERS = ("nchw", "ncdhw")
Size = Any
"""A number, or a 1-D tensor of one int64."""


@dataclass(frozen=True, slots=True)
class Geometry:
    """Movement of a window over the spatial axes; lists have a number for each axis.

    `begin` and `end` are pads of mode "pad"; with "same" an odd pad goes behind.
    """

    mode: str
    strides: list[int]
    dilations: list[int]
    begin: list[int]
    end: list[int]

    @property
    def auto_pad(self) -> str:
        """OpenVINO's name of the mode."""
        return _AUTO_PAD[self.mode]


def with_pads(
    count: int, pads: tuple[int, ...], strides: tuple[int, ...], dilations: tuple[int, ...] = (1,)
) -> Geometry:
    """Read a geometry over `count` axes with the same pads before and behind."""
    both = spatial(pads, count)
    return Geometry(PAD, spatial(strides, count), spatial(dilations, count), both, both)


def with_mode(
    count: int,
    mode: Value,
    pads: tuple[int, ...] | None,
    strides: tuple[int, ...],
    dilations: tuple[int, ...] = (1,),
) -> Geometry:
    """Read a geometry over `count` axes; `pads` are (begin, end) by axis, or one for both or all.

    Without `pads` the mode "pad" is refused.
    """
    accepted = (SAME, VALID) if pads is None else (PAD, SAME, VALID)
    name = PAD_MODE.name("padding mode", mode, *accepted)
    geometry = with_pads(count, pads if pads and name == PAD else (0,), strides, dilations)
    if pads and name == PAD and len(pads) == 2 * count:
        geometry = replace(geometry, begin=list(pads[::2]), end=list(pads[1::2]))
    return replace(geometry, mode=name)


def spatial(numbers: tuple[int, ...], count: int) -> list[int]:
    """Return the last `count` numbers (without batch and channel), or a single one for all."""
    return list(numbers * count if len(numbers) == 1 else numbers[-count:])


def in_batch(x: Any, count: int, build: Callable[[Any], Any]) -> Any:
    """Call `build` with `x`, in a batch if it is an example of `count` spatial axes without one."""
    if rank(x) != count + 1:
        return build(x)
    results = build(unsqueeze(x, 0))
    if isinstance(results, tuple):
        return tuple(squeeze(result, 0) for result in results)
    return squeeze(results, 0)


def _convolve(x: Any, weight: Any, geometry: Geometry, groups: int) -> Any:
    build = op.convolution
    if groups != 1:
        weight, build = _grouped(weight, groups), op.group_convolution
    return build(
        x,
        weight,
        geometry.strides,
        geometry.begin,
        geometry.end,
        geometry.dilations,
        geometry.auto_pad,
    )


def _grouped(weight: Any, groups: int) -> Any:
    first, *rest = dims(weight)
    return reshape(weight, (groups, first // groups, *rest))


def _conv(
    is_depthwise: bool,
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
    """Compute a convolution; Conv2D has `stride` and `dilation`, Conv3D `strides` and `dilations`.

    Of a depthwise convolution the weight is (1, channels, height, width).
    """
    check_channels_first(format, data_format, accepted=_OF_LAYERS)
    if is_depthwise:
        _, groups, *rest = dims(weight)
        weight = reshape(weight, (groups, 1, *rest))
    strides, dilations = strides or stride, dilations or dilation
    geometry = with_mode(rank(weight) - 2, pad_mode, pad, strides, dilations)
    return _convolve(x, weight, geometry, groups)


def _conv_ext(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Ints = (1,),
    padding: Ints = (0,),
    dilation: Ints = (1,),
    groups: Int = 1,
) -> Any:
    geometry = with_pads(rank(weight) - 2, padding, stride, dilation)
    return _convolve_any(x, weight, bias, geometry, groups)


def _conv_padding(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Ints = (1,),
    padding: Value = VALID,
    dilation: Ints = (1,),
    groups: Int = 1,
) -> Any:
    geometry = with_mode(rank(weight) - 2, padding, None, stride, dilation)
    return _convolve_any(x, weight, bias, geometry, groups)


def _convolve_any(x: Any, weight: Any, bias: Any, geometry: Geometry, groups: int) -> Any:
    count = rank(weight) - 2

    def build(batch: Any) -> Any:
        return _with_bias(_convolve(batch, weight, geometry, groups), bias, count)

    return in_batch(x, count, build)


def _with_bias(y: Any, bias: Any, count: int) -> Any:
    return y if bias is None else op.add(y, reshape(bias, (1, -1, *[1] * count)))


def _conv_transpose(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Ints = (1,),
    padding: Ints = (0,),
    output_padding: Ints = (0,),
    groups: Int = 1,
    dilation: Ints = (1,),
) -> Any:
    """Convolve transposed; the weight is (in, out / groups, ...)."""
    count = rank(weight) - 2
    geometry = with_pads(count, padding, stride, dilation)
    y = _backward(x, weight, geometry, groups, spatial(output_padding, count))
    return _with_bias(y, bias, count)


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
    """Convolve transposed to the shape `input_sizes`.

    The weight is (in, out / groups, height, width).
    """
    check_channels_first(format, data_format, accepted=_OF_LAYERS)
    count = rank(weight) - 2
    geometry = with_mode(count, pad_mode, pad_list, stride, dilation)
    return _shaped(x, weight, geometry, groups, _lengths(input_sizes, count))


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
    check_channels_first(format, data_format, accepted=_OF_LAYERS)
    count = rank(weight) - 2
    geometry = with_mode(count, pad_mode, pad_list, strides, dilations)
    if geometry.mode == PAD:
        return _backward(x, weight, geometry, groups, spatial(output_padding, count))
    lengths = []
    for number, (step, extent) in enumerate(_reaches(weight, geometry)):
        over = max(extent - step, 0) if geometry.mode == VALID else 0
        lengths.append(_scaled(x, number + 2, step, over))
    return _shaped(x, weight, geometry, groups, lengths)


def _lengths(sizes: Value, count: int) -> list[Size]:
    """Return the last `count` sizes: numbers, or tensors if they depend on the data."""
    array = known(sizes)
    if array is not None:
        return [int(size) for size in array.ravel()[-count:]]
    sizes = read(sizes)
    if not isinstance(sizes, tuple):
        whole = cast(tensor(sizes), ov.Type.i64)
        parts = [op.gather(whole, ints_of([axis]), ints_of([0])) for axis in range(-count, 0)]
        return [part.output(0) for part in parts]
    return [
        size if isinstance(size, int) else reshape(cast(tensor(size), ov.Type.i64), (1,))
        for size in sizes[-count:]
    ]


def _reaches(weight: Any, geometry: Geometry) -> list[tuple[int, int]]:
    """Return (stride, how far the kernel reaches) by axis."""
    rows = zip(dims(weight)[2:], geometry.strides, geometry.dilations, strict=True)
    return [(step, (size - 1) * dilation + 1) for size, step, dilation in rows]


def _scaled(x: Any, axis: int, factor: int, more: int) -> Size:
    """Multiply the size of an axis by `factor`, and add `more`."""
    size = dims(x)[axis]
    if size >= 0:
        return size * factor + more
    product = op.multiply(size_of(x, axis), ints_of([factor]))
    return op.add(product, ints_of([more])).output(0)


def _shaped(x: Any, weight: Any, geometry: Geometry, groups: int, lengths: list[Size]) -> Any:
    """Convolve transposed without pads, then cut off the pads, and cut or pad to `lengths`.

    With mode "same" the smaller half of the surplus is cut off before.  If all sizes are known, the
    convolution itself cuts.
    """
    reaches = _reaches(weight, geometry)
    full = [
        _scaled(x, number + 2, step, extent - step) for number, (step, extent) in enumerate(reaches)
    ]
    is_halved = geometry.mode == SAME
    if all(isinstance(size, int) for size in (*full, *lengths)):
        over = [size - length for size, length in zip(full, lengths, strict=True)]
        before = [max(surplus, 0) // 2 for surplus in over] if is_halved else geometry.begin
        behind = [surplus - first for surplus, first in zip(over, before, strict=True)]
        pads = replace(geometry, begin=before, end=[max(count, 0) for count in behind])
        return _longer(_backward(x, weight, pads, groups), behind)
    none = [0] * len(lengths)
    y = _backward(x, weight, replace(geometry, begin=none, end=none), groups)
    for number, length in enumerate(lengths):
        first = None if is_halved else geometry.begin[number]
        y = _cut(y, number + 2, first, ints_of([length]) if isinstance(length, int) else length)
    return y


def _longer(y: Any, behind: list[int]) -> Any:
    """Append zeros to the axes for which `behind` is negative."""
    if min(behind) >= 0:
        return y
    end = ints_of([0, 0, *(max(-count, 0) for count in behind)])
    return op.pad(y, ints_of([0] * rank(y)), end, "constant", like(0, y)).output(0)


def _cut(y: Any, axis: int, first: int | None, length: Any) -> Any:
    """Cut or pad one axis of open size to `length`, from `first`, or centred if it is None."""
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
    x: Any, weight: Any, geometry: Geometry, groups: int, more: list[int] | None = None
) -> Any:
    """Convolve transposed; pads are cut off, `more` elements are computed behind."""
    build = op.convolution_backprop_data
    if groups != 1:
        weight, build = _grouped(weight, groups), op.group_convolution_backprop_data
    y = build(
        x,
        weight,
        geometry.strides,
        None,
        geometry.begin,
        geometry.end,
        geometry.dilations,
        "explicit",
        more,
    )
    return y.output(0)


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
        return _conv_transpose(x, weight, bias, stride, padding, output_padding, groups, dilation)
    return _conv_ext(x, weight, bias, stride, padding, dilation, groups)


OPERATORS: dict[str, Operator] = {
    **{f"Conv{count}DExt": _conv_ext for count in (1, 2, 3)},
    **{f"Conv{count}DPadding": _conv_padding for count in (1, 2, 3)},
    **dict.fromkeys(("Conv2D", "Conv3D"), partial(_conv, False)),
    **dict.fromkeys(("Conv2DBackpropInput", "Conv2DTranspose"), _conv2d_transpose),
    "Conv3DTranspose": _conv3d_transpose,
    "ConvTranspose2D": _conv_transpose,
    "Convolution": _convolution,
    "DepthwiseConv2dNative": partial(_conv, True),
}
