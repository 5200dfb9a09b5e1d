"""What an assignment by slices, such as x[:, 1:3] = y, becomes where a size of x is open."""

from typing import Any

from openvino import opset16 as op

from mindspore_serving.mindir.operators.shape import shape_of
from mindspore_serving.mindir.tensors import (
    Int,
    Ints,
    Operator,
    Shape,
    Tensor,
    Unsupported,
    cast,
    dims,
    ints_of,
    reshape,
    size_of,
    sizes_of,
    tensor,
)
from mindspore_serving.mindir.values import Lost, Value, is_number

_SLICE, _NOTHING = 15, 0  # kinds of an index in brackets
_ORDINARY = -1  # in place of the marks for assignments of nothing and of everything


def _count(kinds: tuple[int, ...]) -> int:
    """The number of slices in brackets.  Raises Unsupported: there are other indices."""
    used = [kind for kind in kinds if kind != _NOTHING]
    if any(kind != _SLICE for kind in used):
        raise Unsupported("an assignment by other indices than slices, to a tensor of open sizes")
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
    """(the places on the axis, the shape that is assigned, start, stop, step, whether none)."""
    is_alone = not _count(tuple_index_types)
    if expand_dims_mask or step <= 0:
        raise Unsupported("an assignment by a new axis or from the end, to a tensor of open sizes")
    axis = 0 if is_alone else tuple_index_axis
    size: Any = dims(x)[axis]
    size = size if size >= 0 else reshape(size_of(x, axis), ())
    first = 0 if init_by_none[0] else _bounded(start, size)
    last = size if init_by_none[1] else _bounded(stop, size)
    places = op.range(tensor(first), tensor(last), tensor(step), "i64").output(0)
    if not is_alone:
        return places, *[Lost("bounds of a slice among others")] * 4, 0
    count = reshape(sizes_of(places), ())
    shape = (count, *shape_of(x)[1:])
    return op.unsqueeze(places, ints_of([1])).output(0), shape, first, last, step, 0


def _bounded(place: int, size: Any) -> Any:
    """`place`, counted from the start, within an axis of `size`."""
    if is_number(size):
        return min(max(place + size if place < 0 else place, 0), size)
    if place < 0:
        return op.maximum(op.add(size, tensor(place)), tensor(0)).output(0)
    return op.minimum(size, tensor(place)).output(0)


_NO_INDEX = Lost("the shape of an index that there is not")


def _tuple_index_info(
    x: Tensor,
    fancy_position: Value,
    *indices: Value,
    tuple_index_types: Ints,
    tuple_index_info_type: Value,
) -> Any:
    """(0, (), shape of a tensor index, shape of all places, shape of each index); what there is no
    index for has no meaning."""
    count = _count(tuple_index_types)
    lengths = [reshape(sizes_of(tensor(one)), (-1,)) for one in indices[:count]]
    if tuple_index_info_type == "pre_setitem_by_tuple":
        return 0, (), *[_NO_INDEX] * 10
    final = tuple(reshape(length, ()) for length in lengths)
    shapes = [
        tuple(final[place] if place == number else 1 for place in range(count))
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
    """(what is special, the shape of the value, the position of tensor indices)."""
    _count(tuple_index_types)
    return _ORDINARY, shape_of(value), 0


def _copy_slices(x: Tensor, value: Tensor, begin: Shape, end: Shape, strides: Shape) -> Any:
    """`x` with `value` in place of a slice of its first axes."""
    sizes = sizes_of(x)
    count = op.reduce_prod(sizes, ints_of([0]), False)
    numbers = reshape(op.range(tensor(0), count, tensor(1), "i64").output(0), sizes)
    axes = ints_of(range(dims(begin)[0]))
    places = op.slice(numbers, begin, end, strides, axes).output(0)
    wide = op.broadcast(cast(value, x.get_element_type()), sizes_of(places)).output(0)
    flat = [reshape(part, (-1,)) for part in (x, places, wide)]
    return reshape(op.scatter_elements_update(*flat, op.constant(0)).output(0), sizes)


OPERATORS: dict[str, Operator] = {
    "GetTupleIndexInfo": _tuple_index_info,
    "RemoveExpandedDims": _remove_expanded_dims,
    "SliceToIndices": _slice_to_indices,
    "TensorCopySlices": _copy_slices,
}
