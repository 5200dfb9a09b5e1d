"""Operators that move elements: shapes, axes, slices, joining, padding."""

from collections.abc import Callable
from functools import partial
from typing import Any

import openvino as ov
from openvino import opset16 as op

from mindspore_serving.mindir.operators.enumerations import check_channels_first
from mindspore_serving.mindir.operators.types import element_type
from mindspore_serving.mindir.tensors import (
    Int,
    Ints,
    Operator,
    Shape,
    Tensor,
    cast,
    dims,
    ints_of,
    rank,
    reshape,
    size_of,
    sizes_of,
    tensor,
)
from mindspore_serving.mindir.values import Value, is_number

_END = 2**31 - 1


def shape_of(x: Tensor) -> Any:
    """The sizes as a tuple of numbers; those that are open depend on the data."""
    return tuple(
        size if size >= 0 else reshape(size_of(x, axis), ()) for axis, size in enumerate(dims(x))
    )


def _reshape(x: Tensor, shape: Shape) -> Any:
    return op.reshape(x, shape, False)


def _flatten(x: Tensor) -> Any:
    return op.reshape(x, ints_of([0, -1]), True)


def _flatten_ext(x: Tensor, start_dim: Int = 0, end_dim: Int = -1) -> Any:
    count = rank(x)
    if not count:
        return reshape(x, (1,))
    start, end = start_dim % count, end_dim % count
    parts = [size_of(x, axis) for axis in (*range(start), *range(end + 1, count))]
    return op.reshape(x, op.concat([*parts[:start], ints_of([-1]), *parts[start:]], 0), False)


def _expand_dims(x: Tensor, axis: Ints) -> Any:
    return op.unsqueeze(x, ints_of(axis))


def _squeeze(x: Tensor, axis: Ints | None = None) -> Any:
    if not axis:
        axis = tuple(place for place, size in enumerate(dims(x)) if size == 1)
    axis = tuple(one for one in axis if dims(x)[one] in (1, -1))
    return op.squeeze(x, ints_of(axis)) if axis else x


def _transpose(x: Tensor, perm: Ints) -> Any:
    return op.transpose(x, ints_of([axis % rank(x) for axis in perm]))


def _swap(x: Tensor, dim0: Int, dim1: Int) -> Any:
    order = list(range(rank(x)))
    order[dim0], order[dim1] = order[dim1], order[dim0]
    return op.transpose(x, ints_of(order))


def _turned(x: Tensor) -> Any:
    return op.transpose(x, ints_of(list(range(rank(x)))[::-1]))


def _concat(tensors: Value, axis: Int = 0) -> Any:
    parts = [tensor(part) for part in tensors]
    return op.concat(parts, axis % rank(parts[0]))


def _stack(tensors: Value, axis: Int = 0) -> Any:
    if isinstance(tensors, ov.Output):
        return tensors
    parts = [op.unsqueeze(tensor(part), ints_of([axis])) for part in tensors]
    return op.concat(parts, axis % rank(parts[0].output(0)))


def _broadcast_to(x: Tensor, shape: Value) -> Any:
    """A size of -1 stays as it is."""
    wanted = list(shape) if isinstance(shape, tuple) else None
    if wanted is None:
        return op.broadcast(x, cast(tensor(shape), ov.Type.i64), broadcast_spec="BIDIRECTIONAL")
    ahead = len(wanted) - rank(x)
    parts = [
        size_of(x, axis - ahead)
        if size == -1 and is_number(size) and axis >= ahead
        else reshape(cast(tensor(size), ov.Type.i64), (1,))
        for axis, size in enumerate(wanted)
    ]
    return op.broadcast(x, op.concat(parts, 0), broadcast_spec="BIDIRECTIONAL") if parts else x


def _like_shape(x: Tensor, other: Tensor) -> Any:
    return op.broadcast(x, sizes_of(other), broadcast_spec="BIDIRECTIONAL")


def _view_as(x: Tensor, other: Tensor) -> Any:
    return op.reshape(x, sizes_of(other), False)


def _tile(x: Tensor, dims: Shape) -> Any:
    return op.tile(x, dims)


def _repeat_interleave(
    x: Tensor, repeats: Int, dim: Int | None = None, output_size: Value = None
) -> Any:
    """Each element along `dim` so many times, one after another."""
    if dim is None:
        x, dim = reshape(x, (-1,)), 0
    count = rank(x)
    axis = dim % count
    times = [1] * (count + 1)
    times[axis + 1] = repeats
    tiled = op.tile(op.unsqueeze(x, ints_of([axis + 1])), ints_of(times))
    parts = [size_of(x, place) for place in range(count)]
    parts[axis] = op.multiply(parts[axis], ints_of([repeats])).output(0)
    return op.reshape(tiled, op.concat(parts, 0), False)


def _reverse(x: Tensor, axis: Ints) -> Any:
    for one in axis:
        x = op.slice(x, ints_of([-1]), ints_of([-_END]), ints_of([-1]), ints_of([one])).output(0)
    return x


def _roll(x: Tensor, shifts: Ints, dims: Ints | None = None) -> Any:
    if not dims:
        flat = op.roll(reshape(x, (-1,)), ints_of(shifts), ints_of([0]))
        return op.reshape(flat, sizes_of(x), False)
    return op.roll(x, ints_of(shifts), ints_of(dims))


def _blocks(
    build: Callable[..., Any], x: Tensor, block_size: Int, *, data_format: Value = None
) -> Any:
    check_channels_first(data_format)
    return build(x, "blocks_first", block_size)


def _pixel_shuffle(x: Tensor, upscale_factor: Int) -> Any:
    return op.depth_to_space(x, "depth_first", upscale_factor)


def _channel_shuffle(x: Tensor, group: Int) -> Any:
    return op.shuffle_channels(x, 1, group)


def _to_type(x: Tensor, dtype: Int | None = None) -> Any:
    return x if dtype is None else cast(x, element_type(dtype))


def _type_as(x: Tensor, other: Tensor) -> Any:
    return cast(x, other.get_element_type())


OPERATORS: dict[str, Operator] = {
    **dict.fromkeys(("Reshape", "View"), _reshape),
    **dict.fromkeys(("ExpandDims", "ExpandDimsView", "Unsqueeze"), _expand_dims),
    **dict.fromkeys(("Transpose", "TransposeView"), _transpose),
    **dict.fromkeys(("BroadcastTo", "BroadcastToView", "DynamicBroadcastTo"), _broadcast_to),
    **dict.fromkeys(("Tile", "Repeat"), _tile),
    "Cast": _to_type,
    "ChannelShuffle": _channel_shuffle,
    "Concat": _concat,
    "DepthToSpace": partial(_blocks, op.depth_to_space),
    "ExpandAs": _like_shape,
    "Flatten": _flatten,
    "FlattenExt": _flatten_ext,
    "PixelShuffle": _pixel_shuffle,
    "RepeatInterleaveInt": _repeat_interleave,
    "ReverseV2": _reverse,
    "Roll": _roll,
    "SpaceToDepth": partial(_blocks, op.space_to_depth),
    "Squeeze": _squeeze,
    "Stack": _stack,
    "StackExt": _stack,
    "TExt": _turned,
    "ToDtype": _to_type,
    "TransposeExtView": _swap,
    "TypeAs": _type_as,
    "ViewAs": _view_as,
}
