"""Operators that read or write elements by their positions."""

from functools import partial
from typing import Any

import numpy as np
import openvino as ov
from openvino import opset16 as op

from mindspore_serving.mindir.operators.enumerations import REDUCE
from mindspore_serving.mindir.operators.types import common, element_type
from mindspore_serving.mindir.tensors import (
    Bool,
    Int,
    Operator,
    Shape,
    Tensor,
    UnsupportedTensor,
    cast,
    counting,
    dims,
    ints_of,
    like,
    rank,
    reshape,
    size_of,
    sizes_of,
    slice_of,
    tensor,
    unsqueeze,
)
from mindspore_serving.mindir.values import Value


def _gather(x: Tensor, indices: Tensor, axis: Int, batch_dims: Int = 0) -> Any:
    return op.gather(x, indices, op.constant(axis), batch_dims)


def _index_select(x: Tensor, dim: Int, index: Tensor) -> Any:
    return op.gather(x, index, op.constant(dim))


def _embedding(
    x: Tensor, weight: Tensor, padding_idx: Value = None, max_norm: Value = None, *_: Value
) -> Any:
    """Look up rows of `weight`; `padding_idx` and inputs after `max_norm` affect gradients only."""
    if max_norm is not None:
        raise UnsupportedTensor("max_norm, which changes the rows that it reads")
    return op.gather(weight, x, op.constant(0))


def _embedding_lookup(x: Tensor, indices: Tensor, offset: Int = 0) -> Any:
    """Look up rows of `x`; an index out of range gives zeros."""
    positions = op.subtract(indices, like(offset, indices)).output(0)
    wide, count = cast(positions, ov.Type.i64), size_of(x, 0)
    is_inside = op.logical_and(op.greater_equal(wide, ints_of([0])), op.less(wide, count)).output(0)
    rows = op.gather(x, op.select(is_inside, wide, ints_of([0])), op.constant(0)).output(0)
    shape = [*([0] * rank(positions)), *([1] * (rank(x) - 1))]
    mask = op.reshape(is_inside, ints_of(shape), True)
    return op.select(mask, rows, like(0, rows))


def _gather_elements(x: Tensor, dim: Int, index: Tensor) -> Any:
    return op.gather_elements(x, counted_from_start(x, index, dim), dim % rank(x))


def counted_from_start(x: Any, index: Any, axis: int) -> Any:
    """Convert indices that count from the end to ones from the start."""
    wide = cast(index, ov.Type.i64)
    return op.select(op.less(wide, ints_of([0])), op.add(wide, size_of(x, axis)), wide).output(0)


def _gather_nd(x: Tensor, indices: Tensor) -> Any:
    return op.gather_nd(x, indices)


def _take(x: Tensor, index: Tensor) -> Any:
    return op.gather(reshape(x, (-1,)), index, op.constant(0))


def _index(x: Tensor, indices: Value) -> Any:
    """Compute x[i, j, ...] with tensors as indices of the first axes."""
    if len(indices) == 1 and tensor(indices[0]).get_element_type() != ov.Type.boolean:
        return op.gather(x, tensor(indices[0]), op.constant(0))
    return op.gather_nd(x, positions_of(indices))


def positions_of(indices: Value) -> Any:
    """Return the positions of x[i, j, ...] on the first axes of x, as the last axis of a tensor."""
    positions = [tensor(index) for index in indices]
    if any(index.get_element_type() == ov.Type.boolean for index in positions):
        if len(positions) == 1:
            return true_positions(positions[0])
        raise UnsupportedTensor("a mask beside other indices")
    shape = sizes_of(positions[0])
    for index in positions[1:]:
        shape = sizes_of(_broadcast(index, shape))
    wide = (_broadcast(cast(index, ov.Type.i64), shape) for index in positions)
    return op.concat([unsqueeze(index, -1) for index in wide], -1).output(0)


def _broadcast(x: Any, sizes: Any) -> Any:
    """Broadcast `x` to `sizes`, which may themselves be smaller in other axes."""
    return op.broadcast(x, sizes, broadcast_spec="BIDIRECTIONAL").output(0)


def true_positions(x: Tensor) -> Any:
    """Return the positions of non-zero elements, a row for each."""
    return op.transpose(op.non_zero(x), ints_of([1, 0])).output(0)


def _masked_select(x: Tensor, mask: Tensor) -> Any:
    wide = _broadcast(mask, sizes_of(x))
    return op.gather_nd(_broadcast(x, sizes_of(wide)), true_positions(wide))


def _one_hot(
    indices: Tensor, depth: Int, on_value: Tensor, off_value: Tensor, axis: Int = -1
) -> Any:
    on_value, off_value = reshape(on_value, ()), reshape(off_value, ())
    return op.one_hot(indices, op.constant(depth), on_value, off_value, axis)


def _triangle(is_lower: bool, x: Tensor, diagonal: Int = 0) -> Any:
    rows, columns = (counting(size_of(x, axis)) for axis in (-2, -1))
    row, column = unsqueeze(rows, 1), unsqueeze(op.subtract(columns, op.constant(diagonal)), 0)
    keep = op.less_equal(column, row) if is_lower else op.greater_equal(column, row)
    return op.select(keep, x, like(0, x))


def _search_sorted(
    sorted_sequence: Tensor,
    values: Tensor,
    sorter: Value = None,
    dtype: Int = 35,
    right: Bool = False,
) -> Any:
    if sorter is not None:
        raise UnsupportedTensor("sorter")
    kind = element_type(dtype)
    if kind not in (ov.Type.i32, ov.Type.i64):
        raise UnsupportedTensor(f"dtype {dtype}, accepted: 34 (int32), 35 (int64)")
    return cast(op.search_sorted(sorted_sequence, values, right).output(0), kind)


def _reverse_sequence(x: Tensor, seq_lengths: Tensor, *, seq_dim: Int, batch_dim: Int = 0) -> Any:
    return op.reverse_sequence(x, seq_lengths, batch_dim, seq_dim)


def _sequence_mask(lengths: Tensor, maxlen: Int) -> Any:
    positions = op.constant(list(range(maxlen)))
    return op.less(positions, op.unsqueeze(cast(lengths, ov.Type.i64), ints_of([-1])))


def diagonal(x: Tensor, offset: Int = 0, dim1: Int = 0, dim2: Int = 1) -> Any:
    """Return the diagonal of two axes, as the last axis."""
    count = rank(x)
    first, second = dim1 % count, dim2 % count
    rows, columns = dims(x)[first], dims(x)[second]
    if min(rows, columns) < 0:
        raise UnsupportedTensor("an axis of open size")
    length = max(0, min(rows + min(offset, 0), columns - max(offset, 0)))
    positions = [(max(-offset, 0) + i) * columns + max(offset, 0) + i for i in range(length)]
    kept = [axis for axis in range(count) if axis not in (first, second)]
    turned = op.transpose(x, ints_of([*kept, first, second]))
    flat = op.reshape(turned, ints_of([*[0] * len(kept), rows * columns]), True)
    if not positions:  # a gather of nothing crashes the process
        return slice_of(flat, len(kept), 0, 0)
    return op.gather(flat, ints_of(positions), op.constant(len(kept)))


_REDUCTIONS = {"none": "none", "add": "sum", "multiply": "prod"}


def _scatter_nd_with(reduction: str, x: Tensor, indices: Tensor, updates: Tensor) -> Any:
    return op.scatter_nd_update(x, indices, updates, reduction)


def _scatter_nd(indices: Tensor, updates: Tensor, shape: Shape) -> Any:
    """Add updates up in a tensor of zeros."""
    zeros = op.broadcast(like(0, updates), shape)
    return op.scatter_nd_update(zeros, indices, updates, "sum")


def _scatter_elements(
    x: Tensor, indices: Tensor, updates: Tensor, axis: Int = 0, reduce: Value = 0
) -> Any:
    return _scattered(x, axis, indices, updates, reduce)


def _scatter(x: Tensor, dim: Int, index: Tensor, src: Value, reduce: Value = 0) -> Any:
    _, source = common(x, src)
    if rank(source) == 0:
        source = op.broadcast(source, sizes_of(index)).output(0)
    return _scattered(x, dim, index, source, reduce)


def _scatter_add(x: Tensor, dim: Int, index: Tensor, src: Tensor) -> Any:
    return _scattered(x, dim, index, src, 1)


def _scattered(x: Any, axis: int, index: Any, source: Any, reduce: Value) -> Any:
    name = _REDUCTIONS[REDUCE.name("reduce", reduce, *_REDUCTIONS)]
    positions = counted_from_start(x, index, axis)
    count = rank(index)
    if dims(source) != dims(index) or -1 in dims(source):  # the index covers a part of the source
        begin, step = ints_of([0] * count), ints_of([1] * count)
        source = op.slice(source, begin, sizes_of(index), step).output(0)
    return op.scatter_elements_update(x, positions, source, op.constant(axis), name)


def _index_add(x: Tensor, dim: Int, index: Tensor, source: Tensor, alpha: Value = 1) -> Any:
    product, factor = common(source, alpha)
    source = op.multiply(product, factor).output(0)
    axis = dim % rank(x)
    shape = [1] * rank(x)
    shape[axis] = -1
    positions = op.broadcast(reshape(index, shape), sizes_of(source)).output(0)
    return op.scatter_elements_update(x, positions, source, op.constant(axis), "sum")


def _segments(reduction: str, x: Tensor, segment_ids: Tensor, num_segments: Int) -> Any:
    """Reduce the elements of each segment by sum, product or extreme.

    `segment_ids` are over the first axes of `x`; elements of a negative segment are left out.
    """
    ahead = rank(segment_ids)
    tail = list(dims(x)[ahead:])
    if -1 in tail:
        raise UnsupportedTensor("an axis of open size")
    flat = reshape(x, (-1, *tail))
    empty = op.broadcast(_neutral(reduction, x), ints_of([num_segments, *tail]))
    positions = op.reshape(segment_ids, ints_of([-1, 1]), False)
    return op.scatter_nd_update(empty, positions, flat, reduction)


def _neutral(reduction: str, x: Any) -> Any:
    """Return the value of an empty segment: 0, 1, or the least or largest number of the type."""
    if reduction in ("sum", "prod"):
        return like(int(reduction == "prod"), x)
    kind = x.get_element_type().to_dtype()
    limits = np.finfo(kind) if np.issubdtype(kind, np.floating) else np.iinfo(kind)
    return like(np.array(limits.min if reduction == "max" else limits.max).item(), x)


OPERATORS: dict[str, Operator] = {
    **dict.fromkeys(("Diagonal", "DiagonalView"), diagonal),
    **dict.fromkeys(("Gather", "SparseGatherV2"), _gather),
    **dict.fromkeys(("GatherNd", "GatherNdExt"), _gather_nd),
    **dict.fromkeys(("NonZero", "NonZeroExt"), true_positions),
    **dict.fromkeys(("OneHot", "OneHotExt"), _one_hot),
    **dict.fromkeys(("Scatter", "ScatterValue"), _scatter),
    **dict.fromkeys(("Tril", "TrilExt"), partial(_triangle, True)),
    "Embedding": _embedding,
    "EmbeddingLookup": _embedding_lookup,
    "GatherD": _gather_elements,
    "Index": _index,
    "IndexAddExt": _index_add,
    "IndexSelect": _index_select,
    "MaskedSelect": _masked_select,
    "ReverseSequence": _reverse_sequence,
    "ScatterAddExt": _scatter_add,
    "ScatterNd": _scatter_nd,
    "SearchSorted": _search_sorted,
    "SequenceMask": _sequence_mask,
    "Take": _take,
    "TensorScatterAdd": partial(_scatter_nd_with, "sum"),
    "TensorScatterElements": _scatter_elements,
    "TensorScatterMax": partial(_scatter_nd_with, "max"),
    "TensorScatterMin": partial(_scatter_nd_with, "min"),
    "TensorScatterMul": partial(_scatter_nd_with, "prod"),
    "TensorScatterSub": partial(_scatter_nd_with, "sub"),
    "TensorScatterUpdate": partial(_scatter_nd_with, "none"),
    "Triu": partial(_triangle, False),
    "UnsortedSegmentMax": partial(_segments, "max"),
    "UnsortedSegmentMin": partial(_segments, "min"),
    "UnsortedSegmentProd": partial(_segments, "prod"),
    "UnsortedSegmentSum": partial(_segments, "sum"),
}
