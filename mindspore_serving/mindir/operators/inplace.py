"""Operators that change their first input; they return its new content.

Those with a plain operator of the same meaning compute as that one does.  Random ones
(InplaceNormal, InplaceUniform, ...), those of several devices (InplaceToDevice) and those that
write another input (InplaceMatmulAdd, InplaceGroupedMatmulAdd) have no row.
"""

from collections.abc import Callable, Mapping
from functools import partial
from math import prod
from typing import Any

import openvino as ov
from openvino import opset16 as op

from mindspore_serving.mindir.operators import algebra, binary, indexing, unary
from mindspore_serving.mindir.operators.integers import wrapping
from mindspore_serving.mindir.operators.shape import shape_of
from mindspore_serving.mindir.tensors import (
    Bool,
    Int,
    Ints,
    Operator,
    Shape,
    Tensor,
    UnsupportedTensor,
    cast,
    dims,
    ints_of,
    known_dims,
    rank,
    reshape,
    size_of,
    sizes_of,
    tensor,
    with_part,
)
from mindspore_serving.mindir.values import Lost, Value, is_number

_NAMED_ALIKE = (
    *("AddExt", "Addmm", "ClampScalar", "ClampTensor", "Div", "DivMod", "DivMods", "Divs", "Exp"),
    *("Floor", "Hardtanh", "IndexAddExt", "Log", "MaskedFillScalar", "Mul", "Muls", "ReLU"),
    *("RemainderTensorScalar", "RemainderTensorTensor", "ScatterValue", "SiLU", "Sigmoid", "Sign"),
    *("SubExt", "SubScalar", "Tanh", "Threshold"),
)
_PLAIN = {
    **{f"Inplace{name}": name for name in _NAMED_ALIKE},
    "InplaceAddsExt": "AddExt",
    "InplaceElu": "EluExt",
    "InplaceFloorDivide": "FloorDiv",
    "InplaceFloorDivides": "FloorDivScalar",
    "InplaceMaskedFillTensor": "MaskedFill",
    "InplaceScatterAdd": "ScatterAddExt",
    "InplaceScatterSrc": "Scatter",
    "InplaceScatterSrcReduce": "Scatter",
    "InplaceScatterValueReduce": "ScatterValue",
}
_FAMILIES = (algebra, binary, indexing, unary)
_ROWS: Mapping[str, Operator] = {
    name: operator for family in _FAMILIES for name, operator in family.OPERATORS.items()
}


def _assigned(change: Callable[[Any, Any], Any], variable: Tensor, value: Tensor) -> Any:
    return change(variable, cast(value, variable.get_element_type()))


def _filled(x: Tensor, value: Value, non_blocking: Value = None) -> Any:
    """Broadcast `value` to the shape of `x`, in its type."""
    return op.broadcast(cast(tensor(value), x.get_element_type()), sizes_of(x))


def _zeros(x: Tensor) -> Any:
    return _filled(x, 0)


def _index_put(x: Tensor, indices: Value, values: Tensor, accumulate: Bool = False) -> Any:
    """Assign x[i, j, ...] = values, with tensors as indices of the first axes."""
    positions = indexing.positions_of(indices)
    columns = positions.get_partial_shape()[-1].get_length()
    ahead = op.slice(sizes_of(positions), ints_of([0]), ints_of([-1]), ints_of([1]))
    behind = op.slice(sizes_of(x), ints_of([columns]), ints_of([rank(x)]), ints_of([1]))
    shape = op.concat([ahead, behind], 0)
    updates = op.broadcast(cast(values, x.get_element_type()), shape)
    return op.scatter_nd_update(x, positions, updates, "sum" if accumulate else "none")


def _index_copy(x: Tensor, dim: Int, index: Tensor, source: Tensor) -> Any:
    return op.scatter_update(x, indexing.counted_from_start(x, index, dim), source, ints_of([dim]))


def _index_fill(x: Tensor, dim: Int, index: Tensor, value: Value) -> Any:
    """Fill the elements whose position on axis `dim` is in `index`."""
    axis = dim % rank(x)
    positions = reshape(indexing.counted_from_start(x, index, axis), (-1,))
    sizes = op.scatter_update(sizes_of(x), ints_of([axis]), sizes_of(positions), ints_of([0]))
    filling = op.broadcast(cast(tensor(value), x.get_element_type()), sizes)
    return op.scatter_update(x, positions, filling, ints_of([axis]))


def _put(x: Tensor, index: Tensor, source: Tensor, accumulate: Bool = False) -> Any:
    """Write at positions of the flattened tensor."""
    flat = reshape(x, (-1,))
    positions = reshape(indexing.counted_from_start(flat, index, 0), (-1, 1))
    updates = reshape(source, (-1,))
    new = op.scatter_nd_update(flat, positions, updates, "sum" if accumulate else "none").output(0)
    return reshape(new, sizes_of(x))


def _fill_diagonal(x: Tensor, fill_value: Value, wrap: Bool = False) -> Any:
    """Fill x[i, i, ...]; with `wrap` it starts anew below the last column of a tall matrix."""
    sizes = known_dims(x)
    step = sum(prod(sizes[axis + 1 :]) for axis in range(len(sizes)))
    end = prod(sizes) if wrap and len(sizes) == 2 else min(sizes) * step
    positions = ints_of(range(0, min(end, prod(sizes)), step))
    filling = op.broadcast(cast(tensor(fill_value), x.get_element_type()), sizes_of(positions))
    new = op.scatter_update(reshape(x, (-1,)), positions, filling, ints_of([0])).output(0)
    return reshape(new, sizes)


def _masked_scatter(x: Tensor, mask: Tensor, source: Tensor) -> Any:
    """Replace the elements where `mask` is true with the first elements of `source`, in order."""
    wide = op.broadcast(cast(mask, ov.Type.boolean), sizes_of(x))
    positions = indexing.true_positions(wide)
    updates = op.slice(reshape(source, (-1,)), ints_of([0]), size_of(positions, 0), ints_of([1]))
    return op.scatter_nd_update(x, positions, updates, "none")


_SLICE, _NOTHING = 15, 0  # kinds of an index in brackets
_ORDINARY = -1  # in place of the marks for assignments of nothing and of everything


def _count(kinds: tuple[int, ...]) -> int:
    """Return the number of slices among the indices.  Raises Unsupported for other indices."""
    used = [kind for kind in kinds if kind != _NOTHING]
    if any(kind != _SLICE for kind in used):
        raise UnsupportedTensor(
            "an assignment by other indices than slices, to a tensor of open sizes"
        )
    return len(used)


def _slice_to_indices(
    x: Tensor,
    start: Int,
    stop: Int,
    step: Int,
    *,
    tuple_index_types: Ints,
    init_by_none: Ints,
    tuple_index_axis: Int = 0,
    expand_dims_mask: Int = 0,
) -> Any:
    """Return positions on the axis, assigned shape, start, stop, step, and a flag for None."""
    is_alone = not _count(tuple_index_types)
    if expand_dims_mask or step <= 0:
        raise UnsupportedTensor(
            "an assignment by a new axis or from the end, to a tensor of open sizes"
        )
    axis = 0 if is_alone else tuple_index_axis
    size: Any = dims(x)[axis]
    size = size if size >= 0 else reshape(size_of(x, axis), ())
    first = 0 if init_by_none[0] else _bounded(start, size)
    last = size if init_by_none[1] else _bounded(stop, size)
    positions = op.range(tensor(first), tensor(last), tensor(step), "i64").output(0)
    if not is_alone:
        return positions, *[Lost("bounds of a slice among others")] * 4, 0
    count = reshape(sizes_of(positions), ())
    shape = (count, *shape_of(x)[1:])
    return op.unsqueeze(positions, ints_of([1])).output(0), shape, first, last, step, 0


def _bounded(index: int, size: Any) -> Any:
    """Limit `index`, which may count from the end, to an axis of `size`."""
    if is_number(size):
        return min(max(index + size if index < 0 else index, 0), size)
    if index < 0:
        return op.maximum(op.add(size, tensor(index)), tensor(0)).output(0)
    return op.minimum(size, tensor(index)).output(0)


_NO_INDEX = Lost("the shape of an index that there is not")


def _tuple_index_info(
    x: Tensor,
    fancy_position: Value,
    *indices: Value,
    tuple_index_types: Ints,
    tuple_index_info_type: Value,
) -> Any:
    """Return 0, (), the shape of a tensor index, of all positions, and of each index.

    Entries without an index have no meaning.
    """
    count = _count(tuple_index_types)
    lengths = [reshape(sizes_of(tensor(index)), (-1,)) for index in indices[:count]]
    if tuple_index_info_type == "pre_setitem_by_tuple":
        return 0, (), *[_NO_INDEX] * 10
    final = tuple(reshape(length, ()) for length in lengths)
    shapes = [
        tuple(final[axis] if axis == number else 1 for axis in range(count))
        for number in range(count)
    ]
    return 0, (), (1,) * count, final, *shapes, *[_NO_INDEX] * (8 - count)


def _remove_expanded_dims(
    x: Tensor,
    value: Tensor,
    has_false: Int,
    broadcast_shape: Value,
    idx_advanced: Int,
    *,
    tuple_index_types: Ints,
) -> Any:
    """Return the kind of the assignment, the shape of the value, the position of tensor indices."""
    _count(tuple_index_types)
    return _ORDINARY, shape_of(value), 0


def _copy_slices(x: Tensor, value: Tensor, begin: Shape, end: Shape, strides: Shape) -> Any:
    """Replace a slice of the first axes of `x` with `value`."""

    def part(whole: Any) -> Any:
        axes = ints_of(range(dims(begin)[0]))
        return op.slice(whole, begin, end, strides, axes).output(0)

    wide = op.broadcast(cast(value, x.get_element_type()), sizes_of(part(x))).output(0)
    return with_part(x, part, wide)


WRITERS: dict[str, Operator] = {
    **{name: _ROWS[plain] for name, plain in _PLAIN.items()},
    **dict.fromkeys(("InplaceCopy", "InplaceFillScalar", "InplaceFillTensor"), _filled),
    **dict.fromkeys(("InplaceIndexFillScalar", "InplaceIndexFillTensor"), _index_fill),
    "Assign": partial(_assigned, lambda _, value: value),
    "AssignAdd": partial(_assigned, partial(wrapping, op.add)),
    "AssignSub": partial(_assigned, partial(wrapping, op.subtract)),
    "InplaceFillDiagonal": _fill_diagonal,
    "InplaceIndexCopy": _index_copy,
    "InplaceIndexPut": _index_put,
    "InplaceMaskedScatter": _masked_scatter,
    "InplacePut": _put,
    "InplaceZero": _zeros,
}
"""Those whose result is what their first input holds from then on."""
ASSIGNMENTS: dict[str, Operator] = {
    "GetTupleIndexInfo": _tuple_index_info,
    "RemoveExpandedDims": _remove_expanded_dims,
    "SliceToIndices": _slice_to_indices,
    "TensorCopySlices": _copy_slices,
}
"""What an assignment by slices, such as x[:, 1:3] = y, becomes where a size of x is open."""
OPERATORS: dict[str, Operator] = {**WRITERS, **ASSIGNMENTS}
