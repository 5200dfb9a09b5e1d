"""Operators that write elements at positions."""

from functools import partial
from typing import Any

import numpy as np
from openvino import opset16 as op

from mindspore_serving.mindir.operators.enumerations import REDUCE
from mindspore_serving.mindir.operators.indexing import counted_from_start
from mindspore_serving.mindir.operators.types import common
from mindspore_serving.mindir.tensors import (
    Int,
    Operator,
    Shape,
    Tensor,
    Unsupported,
    dims,
    ints_of,
    like,
    rank,
    reshape,
    sizes_of,
)
from mindspore_serving.mindir.values import Value

_REDUCTIONS = {"none": "none", "add": "sum", "multiply": "prod"}


def _scatter_nd_with(reduction: str, x: Tensor, indices: Tensor, updates: Tensor) -> Any:
    return op.scatter_nd_update(x, indices, updates, reduction)


def _scatter_nd(indices: Tensor, updates: Tensor, shape: Shape) -> Any:
    """Sums in a tensor of zeros."""
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
    places = counted_from_start(x, index, axis)
    count = rank(index)
    if dims(source) != dims(index) or -1 in dims(source):  # what the index does not reach is left
        zeros, ones = ints_of([0] * count), ints_of([1] * count)
        source = op.slice(source, zeros, sizes_of(index), ones).output(0)
    return op.scatter_elements_update(x, places, source, op.constant(axis), name)


def _index_add(x: Tensor, dim: Int, index: Tensor, source: Tensor, alpha: Value = 1) -> Any:
    product, factor = common(source, alpha)
    source = op.multiply(product, factor).output(0)
    axis = dim % rank(x)
    shape = [1] * rank(x)
    shape[axis] = -1
    places = op.broadcast(reshape(index, shape), sizes_of(source)).output(0)
    return op.scatter_elements_update(x, places, source, op.constant(axis), "sum")


def _segments(reduction: str, x: Tensor, segment_ids: Tensor, num_segments: Int) -> Any:
    """Sums, products or extremes of what has the same number, by the first axes.  What has no
    number, or a negative one, is left out."""
    ahead = rank(segment_ids)
    tail = list(dims(x)[ahead:])
    if -1 in tail:
        raise Unsupported("an axis of open size")
    flat = reshape(x, (-1, *tail))
    empty = op.broadcast(_neutral(reduction, x), ints_of([num_segments, *tail]))
    places = op.reshape(segment_ids, ints_of([-1, 1]), False)
    return op.scatter_nd_update(empty, places, flat, reduction)


def _neutral(reduction: str, x: Any) -> Any:
    """What an empty segment has: 0, 1, or the least or largest number of the type."""
    if reduction in ("sum", "prod"):
        return like(int(reduction == "prod"), x)
    kind = x.get_element_type().to_dtype()
    limits = np.finfo(kind) if np.issubdtype(kind, np.floating) else np.iinfo(kind)
    return like(np.array(limits.min if reduction == "max" else limits.max).item(), x)


OPERATORS: dict[str, Operator] = {
    "IndexAddExt": _index_add,
    "Scatter": _scatter,
    "ScatterAddExt": _scatter_add,
    "ScatterNd": _scatter_nd,
    "ScatterValue": _scatter,
    "TensorScatterAdd": partial(_scatter_nd_with, "sum"),
    "TensorScatterElements": _scatter_elements,
    "TensorScatterMax": partial(_scatter_nd_with, "max"),
    "TensorScatterMin": partial(_scatter_nd_with, "min"),
    "TensorScatterMul": partial(_scatter_nd_with, "prod"),
    "TensorScatterSub": partial(_scatter_nd_with, "sub"),
    "TensorScatterUpdate": partial(_scatter_nd_with, "none"),
    "UnsortedSegmentMax": partial(_segments, "max"),
    "UnsortedSegmentMin": partial(_segments, "min"),
    "UnsortedSegmentProd": partial(_segments, "prod"),
    "UnsortedSegmentSum": partial(_segments, "sum"),
}
