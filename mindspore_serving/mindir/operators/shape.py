"""Operators that move elements: shapes, axes, slices, joining, padding."""

from collections.abc import Callable
from functools import partial
from itertools import chain
from typing import Any

import openvino as ov
from openvino import opset16 as op

from mindspore_serving.mindir.operators.enumerations import PADDING_MODE, check_channels_first
from mindspore_serving.mindir.operators.types import in_type
from mindspore_serving.mindir.tensors import (
    END,
    Float,
    Int,
    Ints,
    Operator,
    Shape,
    Tensor,
    UnsupportedTensor,
    cast,
    dims,
    ints_of,
    known,
    like,
    rank,
    reshape,
    size_of,
    sizes_of,
    slice_of,
    squeeze,
    tensor,
)
from mindspore_serving.mindir.values import Value, is_number

_MAX_STRIDE = 2**31 - 1


def shape_of(x: Tensor) -> Any:
    """Return the sizes as a tuple of numbers, or of tensors for open sizes."""
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
        axis = tuple(number for number, size in enumerate(dims(x)) if size == 1)
    axis = tuple(number for number in axis if dims(x)[number] in (1, -1))
    return op.squeeze(x, ints_of(axis)) if axis else x


def _transpose(x: Tensor, perm: Ints) -> Any:
    return op.transpose(x, ints_of([axis % rank(x) for axis in perm]))


def _swap(x: Tensor, dim0: Int, dim1: Int) -> Any:
    order = list(range(rank(x)))
    order[dim0], order[dim1] = order[dim1], order[dim0]
    return op.transpose(x, ints_of(order))


def _turned(x: Tensor) -> Any:
    return op.transpose(x, ints_of(range(rank(x))[::-1]))


def _concat(tensors: Value, axis: Int = 0) -> Any:
    parts = [tensor(part) for part in tensors]
    return op.concat(parts, axis % rank(parts[0]))


def _stack(tensors: Value, axis: Int = 0) -> Any:
    if isinstance(tensors, ov.Output):
        return tensors
    parts = [op.unsqueeze(tensor(part), ints_of([axis])) for part in tensors]
    return op.concat(parts, axis % rank(parts[0].output(0)))


def _broadcast_to(x: Tensor, shape: Value) -> Any:
    """Broadcast to `shape`; -1 keeps the size of an axis."""
    sizes = list(shape) if isinstance(shape, tuple) else None
    if sizes is None:
        return op.broadcast(x, cast(tensor(shape), ov.Type.i64), broadcast_spec="BIDIRECTIONAL")
    ahead = len(sizes) - rank(x)
    parts = [
        size_of(x, axis - ahead)
        if size == -1 and is_number(size) and axis >= ahead
        else reshape(cast(tensor(size), ov.Type.i64), (1,))
        for axis, size in enumerate(sizes)
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
    """Repeat each element along `dim` `repeats` times in a row."""
    if dim is None:
        x, dim = reshape(x, (-1,)), 0
    count = rank(x)
    axis = dim % count
    times = [1] * (count + 1)
    times[axis + 1] = repeats
    tiled = op.tile(op.unsqueeze(x, ints_of([axis + 1])), ints_of(times))
    parts = [size_of(x, number) for number in range(count)]
    parts[axis] = op.multiply(parts[axis], ints_of([repeats])).output(0)
    return op.reshape(tiled, op.concat(parts, 0), False)


def _reverse(x: Tensor, axis: Ints) -> Any:
    for number in axis:
        x = slice_of(x, number, -1, -END, -1)
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
    return in_type(x, dtype)


def _type_as(x: Tensor, other: Tensor) -> Any:
    return cast(x, other.get_element_type())


def _unstack(x: Tensor, axis: Int = 0) -> Any:
    return tuple(squeeze(part, axis) for part in _split(x, axis, dims(x)[axis]))


def _split(x: Tensor, axis: Int = 0, output_num: Int = 1) -> Any:
    if output_num < 1:
        raise UnsupportedTensor("an axis of open size")
    return tuple(op.split(x, op.constant(axis), output_num).outputs())


def _split_sizes(x: Tensor, split_size: Ints, dim: Int = 0) -> Any:
    return tuple(op.variadic_split(x, op.constant(dim), ints_of(split_size)).outputs())


def _split_v(x: Tensor, *, size_splits: Ints, split_dim: Int) -> Any:
    return _split_sizes(x, size_splits, split_dim)


def _split_by(x: Tensor, split_size: Int, dim: Int = 0) -> Any:
    """Split into parts of `split_size`, the last one with the rest."""
    total = dims(x)[dim]
    if total < 0:
        raise UnsupportedTensor("an axis of open size")
    sizes = [min(split_size, total - start) for start in range(0, total, split_size)]
    return _split_sizes(x, tuple(sizes), dim)


def _chunk(x: Tensor, chunks: Int, dim: Int = 0) -> Any:
    return _split_by(x, -(-dims(x)[dim] // chunks), dim)


def _strided_slice(
    x: Tensor,
    begin: Shape,
    end: Shape,
    strides: Shape,
    begin_mask: Int = 0,
    end_mask: Int = 0,
    ellipsis_mask: Int = 0,
    new_axis_mask: Int = 0,
    shrink_axis_mask: Int = 0,
) -> Any:
    """Slice with strides; bit i of a mask belongs to entry i of `begin`."""
    count = dims(begin)[0]
    steps = known(strides)
    if steps is not None and (0 in steps or (abs(steps.astype(float)) > _MAX_STRIDE).any()):
        raise UnsupportedTensor(f"strides {steps.tolist()}")  # OpenVINO would divide by zero
    masks = (begin_mask, end_mask, new_axis_mask, shrink_axis_mask, ellipsis_mask)
    bits = ([mask >> bit & 1 for bit in range(count)] for mask in masks)
    return op.strided_slice(x, begin, end, strides, *bits)


def _slice(x: Tensor, begin: Shape, size: Shape) -> Any:
    """Slice by begin and size; a size of -1 extends to the end."""
    rest = op.equal(size, ints_of([-1]))
    end = op.select(rest, sizes_of(x), op.add(begin, size))
    count = rank(x)
    return op.slice(x, begin, end, ints_of([1] * count), ints_of(range(count)))


def _slice_ext(x: Tensor, dim: Int, start: Shape, end: Shape, step: Shape) -> Any:
    return op.slice(x, start, end, step, ints_of([dim]))


def _narrow(x: Tensor, dim: Int, start: Shape, length: Shape) -> Any:
    return op.slice(x, start, op.add(start, length), ints_of([1]), ints_of([dim]))


def _select_at(x: Tensor, dim: Int, index: Value) -> Any:
    return op.gather(x, cast(tensor(index), ov.Type.i64), ints_of([dim]))


def _pads(x: Any, pairs: tuple[int, ...]) -> tuple[Any, Any]:
    """Return begin and end pads of all axes; `pairs` starts at the last axis."""
    zeros = [0] * (rank(x) - len(pairs) // 2)
    begin, end = (ints_of([*zeros, *pairs[side::2][::-1]]) for side in (0, 1))
    return begin, end


def _pad_last(mode: str, x: Tensor, padding: Ints) -> Any:
    return op.pad(x, *_pads(x, padding), mode)


def _constant_pad(x: Tensor, padding: Ints, value: Float = 0.0) -> Any:
    return op.pad(x, *_pads(x, padding), "constant", like(value, x))


def _pad_v3(
    x: Tensor,
    paddings: Ints,
    constant_value: Float = 0.0,
    *,
    mode: Value = "constant",
    paddings_contiguous: Int = 1,
) -> Any:
    if not paddings_contiguous:
        half = len(paddings) // 2
        paddings = tuple(chain(*zip(paddings[:half], paddings[half:], strict=True)))
    begin, end = _pads(x, paddings)
    mode = PADDING_MODE.name("mode", mode, "constant", "reflect", "edge", "circular")
    if mode == "circular":
        return _circular(x, paddings)
    if mode == "constant":
        return op.pad(x, begin, end, "constant", like(constant_value, x))
    return op.pad(x, begin, end, mode)


def _circular(x: Any, pairs: tuple[int, ...]) -> Any:
    for axis, before, behind in zip(range(rank(x))[::-1], pairs[::2], pairs[1::2], strict=False):
        parts = [slice_of(x, axis, -before)] if before else []
        parts += [x, slice_of(x, axis, 0, behind)] if behind else [x]
        x = op.concat(parts, axis).output(0)
    return x


def _pad(x: Tensor, *, paddings: Ints) -> Any:
    """Pad with zeros by (begin, end) of each axis, from the first."""
    return op.pad(x, ints_of(paddings[::2]), ints_of(paddings[1::2]), "constant", like(0, x))


def _mirror_pad(x: Tensor, paddings: Tensor, *, mode: Value = "REFLECT") -> Any:
    begin, end = (op.gather(paddings, op.constant(side), op.constant(1)) for side in (0, 1))
    return op.pad(x, begin, end, PADDING_MODE.name("mode", mode, "reflect", "symmetric"))


OPERATORS: dict[str, Operator] = {
    **dict.fromkeys(("Reshape", "View"), _reshape),
    **dict.fromkeys(("ExpandDims", "ExpandDimsView", "Unsqueeze"), _expand_dims),
    **dict.fromkeys(("Transpose", "TransposeView"), _transpose),
    **dict.fromkeys(("BroadcastTo", "BroadcastToView", "DynamicBroadcastTo"), _broadcast_to),
    **dict.fromkeys(("Tile", "Repeat"), _tile),
    **dict.fromkeys(("Cast", "ToDtype"), _to_type),
    **dict.fromkeys(("Stack", "StackExt"), _stack),
    **dict.fromkeys(("Unstack", "UnstackExtView"), _unstack),
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
    "TExt": _turned,
    "TransposeExtView": _swap,
    "TypeAs": _type_as,
    "ViewAs": _view_as,
    **dict.fromkeys(("SplitWithSize", "SplitWithSizeView"), _split_sizes),
    **dict.fromkeys(("SplitTensor", "SplitTensorView"), _split_by),
    **dict.fromkeys(("Chunk", "ChunkView"), _chunk),
    **dict.fromkeys(("SliceExt", "SliceExtView"), _slice_ext),
    **dict.fromkeys(("Narrow", "NarrowView"), _narrow),
    **{f"ReflectionPad{count}D": partial(_pad_last, "reflect") for count in (1, 2, 3)},
    **{f"ReplicationPad{count}D": partial(_pad_last, "edge") for count in (1, 2, 3)},
    "ConstantPadND": _constant_pad,
    "MirrorPad": _mirror_pad,
    "Pad": _pad,
    "PadV3": _pad_v3,
    "SelectExtView": _select_at,
    "Slice": _slice,
    "Split": _split,
    "SplitV": _split_v,
    "StridedSlice": _strided_slice,
}
