"""Pooling: windows, and windows that adapt to a size."""

from typing import Any

from openvino import opset14
from openvino import opset16 as op

from mindspore_serving.mindir.operators.convolution import (
    SAME,
    VALID,
    padding_mode,
    pairs,
    pairs_of_one,
    spatial,
)
from mindspore_serving.mindir.operators.enumerations import check_channels_first
from mindspore_serving.mindir.tensors import (
    Bool,
    Int,
    Ints,
    Operator,
    Tensor,
    ints_of,
    like,
    rank,
)
from mindspore_serving.mindir.values import Value

_ROUNDING = {False: "floor", True: "ceil_torch"}  # of sizes, by ceil_mode
Window = tuple[list[int], list[int], list[int], list[int]]  # kernel, strides, begin, end


def window_of(
    x: Any, kernel: tuple[int, ...], strides: tuple[int, ...], pads: tuple[list[int], list[int]]
) -> Window:
    """A window over the spatial axes of `x`; without strides it moves by its own size."""
    count = rank(x) - 2
    return spatial(kernel, count), spatial(strides or kernel, count), *pads


def _auto(mode: str) -> str:
    return {"same": "same_upper", "valid": "valid"}.get(mode, "explicit")


def max_pool(
    x: Any,
    window: Window,
    auto: str = "explicit",
    ceil_mode: bool = False,
    dilation: list[int] | None = None,
) -> Any:
    kernel, strides, begin, end = window
    one = dilation or [1] * len(kernel)
    rounding = _ROUNDING[ceil_mode]
    return op.max_pool(x, strides, one, begin, end, kernel, rounding, auto, "i64", 2)


def _average(
    x: Any, window: Window, auto: str, ceil_mode: bool = False, excludes: bool = True
) -> Any:
    kernel, strides, begin, end = window
    # That of opset 16 ends the process on a CPU in OpenVINO 2026.4.
    return opset14.avg_pool(x, strides, begin, end, kernel, excludes, _ROUNDING[ceil_mode], auto)


def _none(x: Any) -> tuple[list[int], list[int]]:
    count = rank(x) - 2
    return [0] * count, [0] * count


def _max_pool(
    x: Tensor,
    kernel_size: Ints = (1,),
    strides: Ints = (1,),
    pad_mode: Value = "valid",
    data_format: Value = None,
) -> Any:
    check_channels_first(data_format)
    window = window_of(x, kernel_size, strides, _none(x))
    return max_pool(x, window, _auto(padding_mode(pad_mode, SAME, VALID))).output(0)


def _max_pool_3d(
    x: Tensor,
    *,
    kernel_size: Ints,
    strides: Ints,
    pad_mode: Value = "valid",
    pad_list: Ints = (0,),
    ceil_mode: Value = None,
    data_format: Value = None,
) -> Any:
    check_channels_first(data_format, "ncdhw")
    mode = padding_mode(pad_mode)
    pads = pairs(pad_list, 3) if mode == "pad" else _none(x)
    return max_pool(
        x, window_of(x, kernel_size, strides, pads), _auto(mode), bool(ceil_mode)
    ).output(0)


def _avg_pool(
    x: Tensor,
    kernel_size: Ints = (1,),
    strides: Ints = (1,),
    pad_mode: Value = "valid",
    data_format: Value = None,
) -> Any:
    check_channels_first(data_format)
    window = window_of(x, kernel_size, strides, _none(x))
    return _average(x, window, _auto(padding_mode(pad_mode, SAME, VALID)))


def _avg_pool_3d(
    x: Tensor,
    *,
    kernel_size: Ints,
    strides: Ints,
    pad_mode: Value = "valid",
    pad_list: Ints = (0,),
    ceil_mode: Bool = False,
    count_include_pad: Bool = True,
    divisor_override: Int = 0,
    data_format: Value = None,
) -> Any:
    check_channels_first(data_format, "ncdhw")
    mode = padding_mode(pad_mode)
    pads = pairs(pad_list, 3) if mode == "pad" else _none(x)
    window = window_of(x, kernel_size, strides, pads)
    y = _average(x, window, _auto(mode), ceil_mode, not count_include_pad)
    return _divided(y, window, divisor_override)


def _avg_pool_ext(
    x: Tensor,
    kernel_size: Ints,
    stride: Ints | None = None,
    padding: Ints = (0,),
    ceil_mode: Bool = False,
    count_include_pad: Bool = True,
    divisor_override: Int | None = None,
) -> Any:
    count = len(kernel_size) if len(kernel_size) > 1 else rank(x) - 2
    window = window_of(x, kernel_size, stride or (), pairs_of_one(padding, count))
    y = _average(x, window, "explicit", ceil_mode, not count_include_pad)
    return _divided(y, window, divisor_override or 0)


def _avg_pool_1d(
    x: Tensor,
    kernel_size: Ints,
    stride: Ints | None = None,
    padding: Ints = (0,),
    ceil_mode: Bool = False,
    count_include_pad: Bool = True,
) -> Any:
    if rank(x) == 2:
        batch = op.unsqueeze(x, ints_of([0])).output(0)
        y = _avg_pool_ext(batch, kernel_size, stride, padding, ceil_mode, count_include_pad)
        return op.squeeze(y, ints_of([0]))
    return _avg_pool_ext(x, kernel_size, stride, padding, ceil_mode, count_include_pad)


def _divided(y: Any, window: Window, divisor: int) -> Any:
    """The sum of a window by `divisor`, if one is given in place of the window's size."""
    if not divisor:
        return y
    size = 1
    for length in window[0]:
        size *= length
    return op.multiply(y, like(size / divisor, y.output(0)))


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


OPERATORS: dict[str, Operator] = {
    "AvgPool": _avg_pool,
    "AvgPool1D": _avg_pool_1d,
    "AvgPool2D": _avg_pool_ext,
    "AvgPool3D": _avg_pool_3d,
    "AvgPool3DExt": _avg_pool_ext,
    "LRN": _lrn,
    "MaxPool": _max_pool,
    "MaxPool3D": _max_pool_3d,
}
