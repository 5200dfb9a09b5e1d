"""Pooling: maxima and means of windows, positions of maxima, and windows that adapt to a size."""

from collections.abc import Callable
from functools import partial
from math import prod
from typing import Any

import openvino as ov
from openvino import opset14
from openvino import opset16 as op

from mindspore_serving.mindir.operators.convolution import (
    VALID,
    Geometry,
    in_batch,
    spatial,
    with_mode,
    with_pads,
)
from mindspore_serving.mindir.operators.enumerations import check_channels_first
from mindspore_serving.mindir.tensors import (
    Bool,
    Int,
    Ints,
    Operator,
    Tensor,
    UnsupportedTensor,
    cast,
    ints_of,
    known,
    like,
    rank,
    size_of,
)
from mindspore_serving.mindir.values import Lost, Value, read

_ROUNDING = {False: "floor", True: "ceil_torch"}  # of sizes, by ceil_mode
_INT64, _INT32 = (4, 35, "int64"), (3, 34, "int32")  # as a primitive's number, a dtype, a name


def _maximum(x: Any, kernel: tuple[int, ...], moves: Geometry, ceil_mode: bool = False) -> Any:
    """Build the maxima, and their positions in the flattened spatial axes."""
    return op.max_pool(
        x,
        moves.strides,
        moves.dilations,
        moves.begin,
        moves.end,
        spatial(kernel, rank(x) - 2),
        _ROUNDING[ceil_mode],
        moves.auto_pad,
        "i64",
        2,
    )


def _mean(
    x: Any,
    kernel: tuple[int, ...],
    moves: Geometry,
    ceil_mode: bool = False,
    *,
    counts_pads: bool = False,
    divisor: int | None = None,
) -> Any:
    """Build the means, or the sums by `divisor` in place of the window's size."""
    size = spatial(kernel, rank(x) - 2)
    # That of opset 16 ends the process on a CPU in OpenVINO 2026.4.
    y = opset14.avg_pool(
        x,
        moves.strides,
        moves.begin,
        moves.end,
        size,
        not counts_pads,
        _ROUNDING[ceil_mode],
        moves.auto_pad,
    )
    return op.multiply(y, like(prod(size) / divisor, y.output(0))) if divisor else y


def _pool(
    build: Callable[[Any, tuple[int, ...], Geometry], Any],
    x: Tensor,
    kernel_size: Ints = (1,),
    strides: Ints = (1,),
    pad_mode: Value = VALID,
    data_format: Value = None,
) -> Any:
    check_channels_first(data_format)
    moves = with_mode(rank(x) - 2, pad_mode, None, strides or kernel_size)
    return build(x, kernel_size, moves).output(0)


def _pool_3d(
    is_mean: bool,
    x: Tensor,
    *,
    kernel_size: Ints,
    strides: Ints,
    pad_mode: Value = VALID,
    pad_list: Ints = (0,),
    ceil_mode: Bool = False,
    count_include_pad: Bool = True,
    divisor_override: Int = 0,
    data_format: Value = None,
) -> Any:
    """Pool volumes; `count_include_pad` and `divisor_override` are of means alone."""
    check_channels_first(data_format, accepted=("ncdhw",))
    moves = with_mode(3, pad_mode, pad_list, strides or kernel_size)
    rounds_up = bool(ceil_mode)  # None is no
    if not is_mean:
        return _maximum(x, kernel_size, moves, rounds_up).output(0)
    return _mean(
        x,
        kernel_size,
        moves,
        rounds_up,
        counts_pads=count_include_pad,
        divisor=divisor_override,
    )


def _avg_pool_ext(
    count: int,
    x: Tensor,
    kernel_size: Ints,
    stride: Ints | None = None,
    padding: Ints = (0,),
    ceil_mode: Bool = False,
    count_include_pad: Bool = True,
    divisor_override: Int | None = None,
) -> Any:
    moves = with_pads(count, padding, stride or kernel_size)

    def build(batch: Any) -> Any:
        return _mean(
            batch,
            kernel_size,
            moves,
            ceil_mode,
            counts_pads=count_include_pad,
            divisor=divisor_override,
        )

    return in_batch(x, count, build)


def _with_positions(
    count: int,
    has_mask: bool,
    x: Tensor,
    kernel_size: Ints,
    strides: Ints | None = None,
    pads: Ints = (0,),
    dilation: Ints = (1,),
    ceil_mode: Bool = False,
    argmax_type: Value = "int64",
) -> Any:
    """Return maxima, and their positions or a mask for gradients in the device's layout."""
    if argmax_type not in (*_INT64, *_INT32):
        raise UnsupportedTensor(f"argmax_type {argmax_type!r}")
    kind = ov.Type.i64 if argmax_type in _INT64 else ov.Type.i32
    moves = with_pads(count, pads, strides or kernel_size, dilation)

    def build(batch: Any) -> Any:
        node = _maximum(batch, kernel_size, moves, ceil_mode)
        return node.output(0), cast(node.output(1), kind)

    values, positions = in_batch(x, count, build)
    return values, Lost("the mask of MaxPoolWithMask") if has_mask else positions


def _func_max_pool(
    x: Tensor,
    kernel_size: Ints,
    stride: Ints | None = None,
    padding: Ints = (0,),
    dilation: Ints = (1,),
    ceil_mode: Bool = False,
    return_indices: Bool = False,
) -> Any:
    if return_indices:
        raise UnsupportedTensor("return_indices")
    return _with_positions(2, False, x, kernel_size, stride, padding, dilation, ceil_mode)[0]


def _with_argmax_3d(
    x: Tensor,
    *,
    ksize: Ints,
    strides: Ints,
    pads: Ints = (0,),
    dilation: Ints = (1,),
    ceil_mode: Bool = False,
    format: Value = None,
    argmax_type: Value = "int64",
) -> Any:
    check_channels_first(format, accepted=("nchw", "ncdhw"))
    return _with_positions(3, False, x, ksize, strides, pads, dilation, ceil_mode, argmax_type)


def _lrn(
    x: Tensor,
    *,
    depth_radius: Int = 5,
    bias: Value = 1.0,
    alpha: Value = 1.0,
    beta: Value = 0.5,
) -> Any:
    size = 2 * depth_radius + 1
    return op.lrn(x, ints_of([1]), alpha * size, beta, bias, size)


def _adaptive(
    build: Callable[[Any, list[Any]], Any], count: int, x: Tensor, output_size: Value
) -> Any:
    """Call `build` with the input in a batch and the sizes; None or -1 keeps a size."""
    sizes = read(output_size)
    sizes = sizes if isinstance(sizes, tuple) else (sizes,)
    sizes = sizes * count if len(sizes) == 1 else sizes
    targets = [
        size_of(x, axis - count) if size in (None, -1) else ints_of([int(size)])
        for axis, size in enumerate(sizes)
    ]
    return in_batch(x, count, lambda batch: build(batch, targets))


def _adaptive_mean(x: Any, sizes: list[Any]) -> Any:
    if all(known(size) == 1 for size in sizes):
        return op.reduce_mean(x, ints_of(range(2, rank(x))), True)
    return op.adaptive_avg_pool(x, op.concat(sizes, 0))


def _adaptive_maximum(x: Any, sizes: list[Any]) -> Any:
    node = op.adaptive_max_pool(x, op.concat(sizes, 0), "i32")
    return node.output(0), cast(node.output(1), ov.Type.i64)


_MEANS_2D, _MEANS_3D = (partial(_adaptive, _adaptive_mean, count) for count in (2, 3))
_POSITIONS_2D, _MASK_2D = (partial(_with_positions, 2, has_mask) for has_mask in (False, True))

OPERATORS: dict[str, Operator] = {
    "AdaptiveAvgPool1D": partial(_adaptive, _adaptive_mean, 1),
    **dict.fromkeys(("AdaptiveAvgPool2D", "AdaptiveAvgPool2DExt"), _MEANS_2D),
    **dict.fromkeys(("AdaptiveAvgPool3D", "AdaptiveAvgPool3DExt"), _MEANS_3D),
    **{f"AdaptiveMaxPool{n}D": partial(_adaptive, _adaptive_maximum, n) for n in (1, 2)},
    "AvgPool": partial(_pool, _mean),
    "AvgPool1D": partial(_avg_pool_ext, 1),
    "AvgPool2D": partial(_avg_pool_ext, 2),
    "AvgPool3D": partial(_pool_3d, True),
    "AvgPool3DExt": partial(_avg_pool_ext, 3),
    "FuncMaxPool2D": _func_max_pool,
    "LRN": _lrn,
    "MaxPool": partial(_pool, _maximum),
    "MaxPool3D": partial(_pool_3d, False),
    "MaxPool3DWithArgmax": _with_argmax_3d,
    **dict.fromkeys(("MaxPoolWithArgmaxV2", "MaxPoolWithIndices"), _POSITIONS_2D),
    "MaxPoolWithMask": _MASK_2D,
}
