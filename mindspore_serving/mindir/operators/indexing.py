"""Operators that read or write elements by their positions."""

from functools import partial
from typing import Any

import openvino as ov
from openvino import opset16 as op

from mindspore_serving.mindir.operators.types import element_type
from mindspore_serving.mindir.tensors import (
    Bool,
    Int,
    Operator,
    Tensor,
    Unsupported,
    cast,
    dims,
    ints_of,
    like,
    rank,
    reshape,
    sizes_of,
    tensor,
)
from mindspore_serving.mindir.values import Value


def _gather(x: Tensor, indices: Tensor, axis: Int, batch_dims: Int = 0) -> Any:
    return op.gather(x, indices, op.constant(axis), batch_dims)


def _index_select(x: Tensor, dim: Int, index: Tensor) -> Any:
    return op.gather(x, index, op.constant(dim))


def _embedding(
    x: Tensor, weight: Tensor, padding_idx: Value = None, max_norm: Value = None, *_: Value
) -> Any:
    """Rows of `weight`; what follows `max_norm`, and `padding_idx`, is for gradients."""
    if max_norm is not None:
        raise Unsupported("max_norm, which changes the rows that it reads")
    return op.gather(weight, x, op.constant(0))


def _embedding_lookup(x: Tensor, indices: Tensor, offset: Int = 0) -> Any:
    """Rows of `x`; an index that is outside gives zeros."""
    places = op.subtract(indices, like(offset, indices)).output(0)
    count = op.gather(sizes_of(x), ints_of([0]), ints_of([0]))
    wide = cast(places, ov.Type.i64)
    is_inside = op.logical_and(op.greater_equal(wide, ints_of([0])), op.less(wide, count)).output(0)
    rows = op.gather(x, op.select(is_inside, wide, ints_of([0])), op.constant(0)).output(0)
    shape = [*([0] * rank(places)), *([1] * (rank(x) - 1))]
    mask = op.reshape(is_inside, ints_of(shape), True)
    return op.select(mask, rows, like(0, rows))


def _gather_elements(x: Tensor, dim: Int, index: Tensor) -> Any:
    return op.gather_elements(x, counted_from_start(x, index, dim), dim % rank(x))


def counted_from_start(x: Any, index: Any, axis: int) -> Any:
    """Indices from the end counted from the start."""
    wide = cast(index, ov.Type.i64)
    size = op.gather(sizes_of(x), ints_of([axis % rank(x)]), ints_of([0]))
    return op.select(op.less(wide, ints_of([0])), op.add(wide, size), wide).output(0)


def _gather_nd(x: Tensor, indices: Tensor) -> Any:
    return op.gather_nd(x, indices)


def _take(x: Tensor, index: Tensor) -> Any:
    return op.gather(reshape(x, (-1,)), index, op.constant(0))


def _index(x: Tensor, indices: Value) -> Any:
    """x[i, j, ...] with tensors for the first axes."""
    if len(indices) == 1 and tensor(indices[0]).get_element_type() != ov.Type.boolean:
        return op.gather(x, tensor(indices[0]), op.constant(0))
    return op.gather_nd(x, places_of(indices))


def places_of(indices: Value) -> Any:
    """The positions that x[i, j, ...] has on the first axes of x, as the last axis of a tensor."""
    places = [tensor(one) for one in indices]
    if any(one.get_element_type() == ov.Type.boolean for one in places):
        if len(places) == 1:
            return _true_places(places[0])
        raise Unsupported("a mask beside other indices")
    shape = sizes_of(places[0])
    for one in places[1:]:
        shape = sizes_of(op.broadcast(one, shape, broadcast_spec="BIDIRECTIONAL").output(0))
    columns = [
        op.unsqueeze(
            op.broadcast(cast(one, ov.Type.i64), shape, broadcast_spec="BIDIRECTIONAL"),
            ints_of([-1]),
        )
        for one in places
    ]
    return op.concat(columns, -1).output(0)


def _true_places(mask: Any) -> Any:
    return op.transpose(op.non_zero(mask), ints_of([1, 0])).output(0)


def _masked(x: Any, mask: Any) -> Any:
    return op.gather_nd(x, _true_places(mask))


def _masked_select(x: Tensor, mask: Tensor) -> Any:
    shape = sizes_of(x)
    wide = op.broadcast(mask, shape, broadcast_spec="BIDIRECTIONAL").output(0)
    x = op.broadcast(x, sizes_of(wide), broadcast_spec="BIDIRECTIONAL").output(0)
    return _masked(x, wide)


def _non_zero(x: Tensor) -> Any:
    return op.transpose(op.non_zero(x), ints_of([1, 0]))


def _one_hot(
    indices: Tensor, depth: Int, on_value: Tensor, off_value: Tensor, axis: Int = -1
) -> Any:
    return op.one_hot(
        indices, op.constant(depth), reshape(on_value, ()), reshape(off_value, ()), axis
    )


def _triangle(is_lower: bool, x: Tensor, diagonal: Int = 0) -> Any:
    count = rank(x)
    sizes = sizes_of(x)
    rows, columns = (
        op.range(
            op.constant(0),
            reshape(op.gather(sizes, ints_of([axis]), ints_of([0])).output(0), ()),
            op.constant(1),
            "i64",
        )
        for axis in (count - 2, count - 1)
    )
    row = op.unsqueeze(rows, ints_of([1]))
    column = op.unsqueeze(op.subtract(columns, op.constant(diagonal)), ints_of([0]))
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
        raise Unsupported("sorter")
    kind = element_type(dtype)
    if kind not in (ov.Type.i32, ov.Type.i64):
        raise Unsupported(f"dtype {dtype}, accepted: 34 (int32), 35 (int64)")
    return cast(op.search_sorted(sorted_sequence, values, right).output(0), kind)


def _reverse_sequence(x: Tensor, seq_lengths: Tensor, *, seq_dim: Int, batch_dim: Int = 0) -> Any:
    return op.reverse_sequence(x, seq_lengths, batch_dim, seq_dim)


def _sequence_mask(lengths: Tensor, maxlen: Int) -> Any:
    places = op.constant(list(range(maxlen)))
    return op.less(places, op.unsqueeze(cast(lengths, ov.Type.i64), ints_of([-1])))


def diagonal(x: Tensor, offset: Int = 0, dim1: Int = 0, dim2: Int = 1) -> Any:
    """The diagonal of two axes, as the last axis."""
    count = rank(x)
    first, second = dim1 % count, dim2 % count
    rows, columns = dims(x)[first], dims(x)[second]
    if min(rows, columns) < 0:
        raise Unsupported("an axis of open size")
    length = max(0, min(rows + min(offset, 0), columns - max(offset, 0)))
    places = [(max(-offset, 0) + i) * columns + max(offset, 0) + i for i in range(length)]
    others = [axis for axis in range(count) if axis not in (first, second)]
    turned = op.transpose(x, ints_of([*others, first, second]))
    flat = op.reshape(turned, ints_of([*[0] * len(others), rows * columns]), True)
    if not places:  # to gather nothing ends the process
        ends = [ints_of([number]) for number in (0, 0, 1, len(others))]
        return op.slice(flat, *ends)
    return op.gather(flat, ints_of(places), op.constant(len(others)))


OPERATORS: dict[str, Operator] = {
    "Diagonal": diagonal,
    "DiagonalView": diagonal,
    "Embedding": _embedding,
    "EmbeddingLookup": _embedding_lookup,
    "Gather": _gather,
    "GatherD": _gather_elements,
    "GatherNd": _gather_nd,
    "GatherNdExt": _gather_nd,
    "Index": _index,
    "IndexSelect": _index_select,
    "MaskedSelect": _masked_select,
    "NonZero": _non_zero,
    "NonZeroExt": _non_zero,
    "OneHot": _one_hot,
    "OneHotExt": _one_hot,
    "ReverseSequence": _reverse_sequence,
    "SearchSorted": _search_sorted,
    "SequenceMask": _sequence_mask,
    "SparseGatherV2": _gather,
    "Take": _take,
    "Tril": partial(_triangle, True),
    "TrilExt": partial(_triangle, True),
    "Triu": partial(_triangle, False),
}
