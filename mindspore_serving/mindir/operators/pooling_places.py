"""Maxima of windows, with the places where they are: positions in the flattened spatial axes."""

from typing import Any

import openvino as ov

from mindspore_serving.mindir.operators.convolution import pairs_of_one, spatial
from mindspore_serving.mindir.operators.enumerations import check_channels_first
from mindspore_serving.mindir.operators.pooling import max_pool, window_of
from mindspore_serving.mindir.tensors import (
    Bool,
    Ints,
    Operator,
    Tensor,
    Unsupported,
    cast,
    rank,
)
from mindspore_serving.mindir.values import Lost, Value

_INT64, _INT32 = (4, 35, "int64"), (3, 34, "int32")  # as a primitive's number, a dtype, a name


def _with_places(
    x: Tensor,
    kernel_size: Ints,
    strides: Ints | None = None,
    pads: Ints = (0,),
    dilation: Ints = (1,),
    ceil_mode: Bool = False,
    argmax_type: Value = "int64",
) -> Any:
    if argmax_type not in (*_INT64, *_INT32):
        raise Unsupported(f"argmax_type {argmax_type!r}")
    count = rank(x) - 2
    window = window_of(x, kernel_size, strides or (), pairs_of_one(pads, count))
    node = max_pool(x, window, "explicit", ceil_mode, spatial(dilation, count))
    kind = ov.Type.i64 if argmax_type in _INT64 else ov.Type.i32
    return node.output(0), cast(node.output(1), kind)


def _with_mask(
    x: Tensor,
    kernel_size: Ints,
    strides: Ints | None = None,
    pads: Ints = (0,),
    dilation: Ints = (1,),
    ceil_mode: Bool = False,
    argmax_type: Value = "int64",
) -> Any:
    """The mask is for gradients, in a layout of the device."""
    values, _ = _with_places(x, kernel_size, strides, pads, dilation, ceil_mode, argmax_type)
    return values, Lost("the mask of MaxPoolWithMask")


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
        raise Unsupported("return_indices")
    return _with_places(x, kernel_size, stride, padding, dilation, ceil_mode)[0]


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
    check_channels_first(format, "nchw", "ncdhw")
    return _with_places(x, ksize, strides, pads, dilation, ceil_mode, argmax_type)


OPERATORS: dict[str, Operator] = {
    "FuncMaxPool2D": _func_max_pool,
    "MaxPool3DWithArgmax": _with_argmax_3d,
    "MaxPoolWithArgmaxV2": _with_places,
    "MaxPoolWithIndices": _with_places,
    "MaxPoolWithMask": _with_mask,
}
