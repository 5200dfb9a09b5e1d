"""Operators that cut and pad."""

from functools import partial
from typing import Any

import openvino as ov
from openvino import opset16 as op

from mindspore_serving.mindir.operators.enumerations import PADDING_MODE
from mindspore_serving.mindir.tensors import (
    Float,
    Int,
    Ints,
    Operator,
    Shape,
    Tensor,
    Unsupported,
    cast,
    dims,
    ints_of,
    known,
    like,
    rank,
    sizes_of,
    tensor,
)
from mindspore_serving.mindir.values import Value


def _unstack(x: Tensor, axis: Int = 0) -> Any:
    return tuple(op.squeeze(part, ints_of([axis])) for part in _split(x, axis, dims(x)[axis]))


_END = 2**31 - 1


def _split(x: Tensor, axis: Int = 0, output_num: Int = 1) -> Any:
    if output_num < 1:
        raise Unsupported("an axis of open size")
    return tuple(op.split(x, op.constant(axis), output_num).outputs())


def _split_sizes(x: Tensor, split_size: Ints, dim: Int = 0) -> Any:
    return tuple(op.variadic_split(x, op.constant(dim), ints_of(split_size)).outputs())


def _split_v(x: Tensor, *, size_splits: Ints, split_dim: Int) -> Any:
    return _split_sizes(x, size_splits, split_dim)


def _split_by(x: Tensor, split_size: Int, dim: Int = 0) -> Any:
    """Parts of `split_size`, the last one with the rest."""
    total = dims(x)[dim]
    if total < 0:
        raise Unsupported("an axis of open size")
    sizes = [min(split_size, total - start) for start in range(0, total, split_size)]
    return _split_sizes(x, tuple(sizes), dim)


def _chunk(x: Tensor, chunks: Int, dim: Int = 0) -> Any:
    return _split_by(x, -(-dims(x)[dim] // chunks), dim)


def _bits(mask: int, count: int) -> list[int]:
    return [mask >> place & 1 for place in range(count)]


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
    """A bit of a mask is about one entry of `begin`."""
    count = dims(begin)[0]
    steps = known(strides)
    if steps is not None and (0 in steps or (abs(steps.astype(float)) > _END).any()):
        raise Unsupported(f"strides {steps.tolist()}")  # OpenVINO would divide by 0
    begin_bits, end_bits, ellipsis, new, shrink = (
        _bits(mask, count)
        for mask in (begin_mask, end_mask, ellipsis_mask, new_axis_mask, shrink_axis_mask)
    )
    return op.strided_slice(x, begin, end, strides, begin_bits, end_bits, new, shrink, ellipsis)


def _slice(x: Tensor, begin: Shape, size: Shape) -> Any:
    """A size of -1 takes what is left."""
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


def _pads(x: Any, pairs: list[int]) -> tuple[Any, Any]:
    """(begin, end) of all axes; `pairs` starts at the last axis."""
    begin, end = [0] * rank(x), [0] * rank(x)
    for place in range(len(pairs) // 2):
        begin[-1 - place], end[-1 - place] = pairs[2 * place], pairs[2 * place + 1]
    return ints_of(begin), ints_of(end)


def _pad_last(mode: str, x: Tensor, padding: Ints) -> Any:
    return op.pad(x, *_pads(x, list(padding)), mode)


def _constant_pad(x: Tensor, padding: Ints, value: Float = 0.0) -> Any:
    return op.pad(x, *_pads(x, list(padding)), "constant", like(value, x))


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
        paddings = tuple(
            one for pair in zip(paddings[:half], paddings[half:], strict=True) for one in pair
        )
    begin, end = _pads(x, list(paddings))
    mode = PADDING_MODE.name("mode", mode, "constant", "reflect", "edge", "circular")
    if mode == "circular":
        return _circular(x, list(paddings))
    if mode == "constant":
        return op.pad(x, begin, end, "constant", like(constant_value, x))
    return op.pad(x, begin, end, mode)


def _circular(x: Any, pairs: list[int]) -> Any:
    for place in range(len(pairs) // 2):
        axis, before, behind = ints_of([-1 - place]), pairs[2 * place], pairs[2 * place + 1]
        one = ints_of([1])
        parts = [x]
        if before:
            parts.insert(0, op.slice(x, ints_of([-before]), ints_of([_END]), one, axis).output(0))
        if behind:
            parts.append(op.slice(x, ints_of([0]), ints_of([behind]), one, axis).output(0))
        x = op.concat(parts, rank(x) - 1 - place).output(0)
    return x


def _pad(x: Tensor, *, paddings: Ints) -> Any:
    """(begin, end) for each axis, from the first."""
    return op.pad(x, ints_of(paddings[::2]), ints_of(paddings[1::2]), "constant", like(0, x))


def _mirror_pad(x: Tensor, paddings: Tensor, *, mode: Value = "REFLECT") -> Any:
    begin, end = (op.gather(paddings, op.constant(side), op.constant(1)) for side in (0, 1))
    return op.pad(x, begin, end, PADDING_MODE.name("mode", mode, "reflect", "symmetric"))


OPERATORS: dict[str, Operator] = {
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
    "Unstack": _unstack,
    "UnstackExtView": _unstack,
}
