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
    cast,
    ints_of,
    like,
    rank,
    reshape,
    size_of,
    tensor,
)
from mindspore_serving.mindir.values import Value


def _position(mode: str, x: Tensor, axis: Int | None = -1, output_type: Int = 34) -> Any:
    """ArgMin, ArgMax: without an axis of the flat tensor."""
    return cast(_extreme(x, axis, mode, False)[1], element_type(output_type))


def _position_ext(mode: str, x: Tensor, dim: Int | None = None, keepdim: Bool = False) -> Any:
    if dim is None:
        x, dim = reshape(x, (-1,)), 0
    return cast(_extreme(x, dim, mode, keepdim)[1], ov.Type.i64)


def _extreme(x: Any, axis: int | None, mode: str, keep: bool) -> tuple[Any, Any]:
    """(value, position) of the extreme along `axis`, the first one if there are several."""
    axis = -1 if axis is None else axis
    shape = x
    if x.get_element_type() == ov.Type.boolean:
        x = cast(x, ov.Type.i32)
    if rank(shape) == 0:
        return x, cast(op.multiply(x, like(0, x)).output(0), ov.Type.i32)
    node = op.topk(x, op.constant(1), axis % rank(x), mode, "value", "i32", stable=True)
    values, places = node.output(0), node.output(1)
    if not keep:
        where = ints_of([axis])
        values, places = op.squeeze(values, where).output(0), op.squeeze(places, where).output(0)
    return values, places


def _with_value(mode: str, x: Tensor, axis: Int = 0, keep_dims: Bool = False) -> Any:
    value, place = _extreme(x, axis, mode, keep_dims)
    return cast(place, ov.Type.i64), value


def _dim_extreme(mode: str, x: Tensor, dim: Int, keepdim: Bool = False) -> Any:
    value, place = _extreme(x, dim, mode, keepdim)
    return value, cast(place, ov.Type.i64)


def _top_k(x: Tensor, k: Value, sorted: Bool = True) -> Any:
    node = op.topk(x, _count(k), rank(x) - 1, "max", "value", "i32", stable=True)
    return node.output(0), node.output(1)


def _top_k_ext(
    x: Tensor,
    k: Value,
    dim: Int = -1,
    largest: Bool = True,
    sorted: Bool = True,
) -> Any:
    mode = "max" if largest else "min"
    node = op.topk(x, _count(k), dim % rank(x), mode, "value", "i64", stable=True)
    return node.output(0), node.output(1)


def _count(k: Value) -> Any:
    return reshape(cast(tensor(k), ov.Type.i64), ())


def _sort(x: Tensor, axis: Int = -1, descending: Bool = False) -> Any:
    values, places = _sorted(x, axis, descending)
    return values, cast(places, ov.Type.i32)


def _sort_ext(x: Tensor, dim: Int = -1, descending: Bool = False, stable: Bool = False) -> Any:
    return _sorted(x, dim, descending)


def _arg_sort(x: Tensor, dim: Int = -1, descending: Bool = False, stable: Bool = False) -> Any:
    return _sorted(x, dim, descending)[1]


def _sorted(x: Any, axis: int, descending: bool) -> tuple[Any, Any]:
    size = reshape(size_of(x, axis), ())
    mode = "max" if descending else "min"
    node = op.topk(x, size, axis % rank(x), mode, "value", "i64", stable=True)
    return node.output(0), node.output(1)


OPERATORS: dict[str, Operator] = {
    "ArgMaxExt": partial(_position_ext, "max"),
    "ArgMaxWithValue": partial(_with_value, "max"),
    "ArgMinExt": partial(_position_ext, "min"),
    "ArgMinWithValue": partial(_with_value, "min"),
    "ArgSort": _arg_sort,
    "Argmax": partial(_position, "max"),
    "Argmin": partial(_position, "min"),
    "MaxDim": partial(_dim_extreme, "max"),
    "MinDim": partial(_dim_extreme, "min"),
    "Sort": _sort,
    "SortExt": _sort_ext,
    "TopK": _top_k,
    "TopkExt": _top_k_ext,
}
