"""Extremes with their positions, sorting."""

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
    UnsupportedTensor,
    cast,
    ints_of,
    like,
    rank,
    reshape,
    size_of,
    sizes_of,
    squeeze,
    tensor,
)
from mindspore_serving.mindir.values import Value


def _position(mode: str, x: Tensor, axis: Int | None = -1, output_type: Int = 34) -> Any:
    """Compute ArgMin or ArgMax; without an axis of the flattened tensor."""
    return cast(_extreme(x, axis, mode, False)[1], element_type(output_type))


def _position_ext(mode: str, x: Tensor, dim: Int | None = None, keepdim: Bool = False) -> Any:
    if dim is None:
        x, dim = reshape(x, (-1,)), 0
    return cast(_extreme(x, dim, mode, keepdim)[1], ov.Type.i64)


def _extreme(x: Any, axis: int | None, mode: str, keep: bool) -> tuple[Any, Any]:
    """Return value and position of the extreme along `axis`, the first of equal ones."""
    axis = -1 if axis is None else axis
    shape = x
    if x.get_element_type() == ov.Type.boolean:
        x = cast(x, ov.Type.i32)
    if rank(shape) == 0:
        return x, cast(op.multiply(x, like(0, x)).output(0), ov.Type.i32)
    node = op.topk(x, op.constant(1), axis % rank(x), mode, "value", "i32", stable=True)
    values, positions = node.output(0), node.output(1)
    return (values, positions) if keep else (squeeze(values, axis), squeeze(positions, axis))


def _with_value(mode: str, x: Tensor, axis: Int = 0, keep_dims: Bool = False) -> Any:
    value, position = _extreme(x, axis, mode, keep_dims)
    return cast(position, ov.Type.i64), value


def _dim_extreme(mode: str, x: Tensor, dim: Int, keepdim: Bool = False) -> Any:
    value, position = _extreme(x, dim, mode, keepdim)
    return value, cast(position, ov.Type.i64)


def _top_k(x: Tensor, k: Value, sorted: Bool = True) -> Any:
    return _ordered(x, k, -1, True, "i32")


def _top_k_ext(
    x: Tensor, k: Value, dim: Int = -1, largest: Bool = True, sorted: Bool = True
) -> Any:
    return _ordered(x, k, dim, largest)


def _ordered(x: Any, count: Value, axis: int, largest: bool, kind: str = "i64") -> Any:
    """Give the `count` largest or smallest elements along `axis` in order, and their positions."""
    number = reshape(cast(tensor(count), ov.Type.i64), ())
    mode = "max" if largest else "min"
    node = op.topk(x, number, axis % rank(x), mode, "value", kind, stable=True)
    return node.output(0), node.output(1)


def _sort(x: Tensor, axis: Int = -1, descending: Bool = False) -> Any:
    values, positions = _sorted(x, axis, descending)
    return values, cast(positions, ov.Type.i32)


def _sort_ext(x: Tensor, dim: Int = -1, descending: Bool = False, stable: Bool = False) -> Any:
    return _sorted(x, dim, descending)


def _arg_sort(x: Tensor, dim: Int = -1, descending: Bool = False, stable: Bool = False) -> Any:
    return _sorted(x, dim, descending)[1]


def _sorted(x: Any, axis: int, descending: bool) -> Any:
    return _ordered(x, size_of(x, axis), axis, descending)


def _median_at(x: Any, axis: int, keep: bool) -> tuple[Any, Any]:
    """Return the lower median and its position; NaN if there is any."""
    if rank(x) == 0:
        return _extreme(x, None, "max", keep)
    values, positions = _sorted(x, axis, False)
    size = size_of(x, axis)
    middle = op.divide(op.subtract(size, ints_of([1])), ints_of([2])).output(0)
    where = middle if keep else reshape(middle, ())
    return tuple(op.gather(x, where, op.constant(axis)).output(0) for x in (values, positions))


def _median_dim(x: Tensor, dim: Int = -1, keepdim: Bool = False) -> Any:
    value, position = _median_at(x, dim, keepdim)
    return value, cast(position, ov.Type.i64)


def _median_ext(x: Tensor) -> Any:
    return _median_at(reshape(x, (-1,)), 0, False)[0]


def _median(
    x: Tensor,
    *,
    global_median: Bool = False,
    axis: Int = 0,
    keep_dims: Bool = False,
    ignore_nan: Bool = False,
) -> Any:
    if ignore_nan:
        raise UnsupportedTensor("ignore_nan")
    if global_median:
        return _median_at(reshape(x, (-1,)), 0, False)
    return _median_dim(x, axis, keep_dims)


def _unique(x: Tensor) -> Any:
    """Return the unique elements in order of appearance, and for each element of `x` its index."""
    node = op.unique(x, None, False, "i32", "i32")
    return node.output(0), reshape(node.output(2), sizes_of(x))


def _unique2(
    x: Tensor, sorted: Bool = True, return_inverse: Bool = False, return_counts: Bool = False
) -> Any:
    """Return the unique elements sorted, the index of each element of `x`, and their counts."""
    node = op.unique(x, None, True, "i64", "i64")
    return node.output(0), reshape(node.output(2), sizes_of(x)), node.output(3)


def _unique_dim(x: Tensor, sorted: Bool = True, return_inverse: Bool = False, dim: Int = 0) -> Any:
    node = op.unique(x, op.constant(dim % rank(x)), True, "i64", "i64")
    return node.output(0), node.output(2), node.output(3)


OPERATORS: dict[str, Operator] = {
    "ArgMaxExt": partial(_position_ext, "max"),
    "ArgMaxWithValue": partial(_with_value, "max"),
    "ArgMinExt": partial(_position_ext, "min"),
    "ArgMinWithValue": partial(_with_value, "min"),
    "ArgSort": _arg_sort,
    "Argmax": partial(_position, "max"),
    "Argmin": partial(_position, "min"),
    "MaxDim": partial(_dim_extreme, "max"),
    "Median": _median,
    "MedianDim": _median_dim,
    "MedianExt": _median_ext,
    "MinDim": partial(_dim_extreme, "min"),
    "Sort": _sort,
    "SortExt": _sort_ext,
    "TopK": _top_k,
    "TopkExt": _top_k_ext,
    "Unique": _unique,
    "Unique2": _unique2,
    "UniqueDim": _unique_dim,
}
