"""Cumulative products, extremes and sums of exponentials along an axis.

A prefix scan by doubling: after step k each element has combined 2^k elements that end with it.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import openvino as ov
from openvino import opset16 as op

from mindspore_serving.mindir.operators.types import element_type, is_float
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
)

Parts = tuple[Any, ...]
_END = (1 << 63) - 1


def _slice(x: Any, axis: int, begin: int, end: int = _END, step: int = 1) -> Any:
    """Elements `begin` up to `end` of `axis`."""
    where = [ints_of([number]) for number in (begin, end, step, axis)]
    return op.slice(x, *where).output(0)


def _flip(x: Any, axis: int) -> Any:
    return _slice(x, axis, -1, -_END, -1)


def _length(x: Any, axis: int) -> int:
    """The known size of `axis`.  Raises Unsupported where it is open."""
    size = dims(x)[axis]
    if size < 0:
        raise Unsupported("an axis of open size")
    return size


def _scan(combine: Callable[[Parts, Parts], Parts], parts: Parts, axis: int) -> Parts:
    """Combine each element with all before it.

    `combine` gets what comes first, then what follows; it must be associative.
    """
    size, shift = _length(parts[0], axis), 1
    while shift < size:
        first = [_slice(part, axis, 0, size - shift) for part in parts]
        following = [_slice(part, axis, shift) for part in parts]
        combined = combine(tuple(first), tuple(following))
        heads = [_slice(part, axis, 0, shift) for part in parts]
        pairs = zip(heads, combined, strict=True)
        parts = tuple(op.concat([head, tail], axis).output(0) for head, tail in pairs)
        shift *= 2
    return parts


def _cumulative(
    combine: Callable[[Parts, Parts], Parts],
    neutral: float,
    x: Any,
    axis: int,
    exclusive: bool,
    reverse: bool,
) -> Any:
    axis %= max(rank(x), 1)
    if reverse:
        x = _flip(x, axis)
    if exclusive:
        size = _length(x, axis)
        shape = [1 if place == axis else 0 for place in range(rank(x))]
        first = op.broadcast(like(neutral, x), _sizes_with(x, shape)).output(0)
        x = op.concat([first, _slice(x, axis, 0, size - 1)], axis).output(0)
    (x,) = _scan(combine, (x,), axis)
    return _flip(x, axis) if reverse else x


def _sizes_with(x: Any, changed: list[int]) -> Any:
    """The sizes of `x`, where `changed` has another than 0 that one."""
    sizes = sizes_of(x)
    given = ints_of(changed)
    return op.select(op.equal(given, ints_of([0])), sizes, given).output(0)


def _product(first: Parts, following: Parts) -> Parts:
    return (op.multiply(first[0], following[0]).output(0),)


def _log_add_exp(first: Parts, following: Parts) -> Parts:
    """log(exp(a) + exp(b)); of two equal infinities that one."""
    a, b = first[0], following[0]
    highest = op.maximum(a, b).output(0)
    lowest = op.minimum(a, b).output(0)
    gap = op.subtract(lowest, highest).output(0)
    gap = op.select(op.equal(a, b), like(0, a), gap).output(0)
    return (op.add(highest, op.log(op.add(like(1, a), op.exp(gap)))).output(0),)


def _cum_prod(
    x: Tensor, axis: Int, exclusive: Bool = False, reverse: Bool = False, dtype: Int | None = None
) -> Any:
    if dtype is not None:
        x = cast(x, element_type(dtype))
    return _cumulative(_product, 1.0, x, axis, exclusive, reverse)


def _cum_log_sum_exp(
    x: Tensor, axis: Int, *, exclusive: Bool = False, reverse: Bool = False
) -> Any:
    lowest = -65504.0 if x.get_element_type() == ov.Type.f16 else -3.4028234663852886e38
    return _cumulative(_log_add_exp, lowest, x, axis, exclusive, reverse)


def _cum_extreme(
    is_later: Callable[[Any, Any], Any], index_type: Any, x: Tensor, axis: Int
) -> tuple[Any, Any]:
    """(extreme, its position); of equal ones the last, and NaN from the first one on."""
    axis %= max(rank(x), 1)

    def combine(first: Parts, following: Parts) -> Parts:
        is_taken = is_later(following[0], first[0])
        if is_float(x):
            is_taken = op.logical_or(is_taken, op.is_nan(following[0]))
            is_taken = op.logical_and(
                is_taken,
                op.logical_or(op.logical_not(op.is_nan(first[0])), op.is_nan(following[0])),
            )
        pairs = zip(first, following, strict=True)
        return tuple(op.select(is_taken, new, old).output(0) for old, new in pairs)

    size = _length(x, axis)
    shape = [1] * rank(x)
    shape[axis] = size
    places = op.broadcast(reshape(ints_of(range(size)), shape), sizes_of(x)).output(0)
    values, places = _scan(combine, (x, places), axis)
    return values, cast(places, index_type)


OPERATORS: dict[str, Operator] = {
    "CumProd": _cum_prod,
    "Cummax": partial(_cum_extreme, op.greater_equal, ov.Type.i64),
    "Cummin": partial(_cum_extreme, op.less_equal, ov.Type.i32),
    "CumminExt": partial(_cum_extreme, op.less_equal, ov.Type.i64),
    "CumulativeLogsumexp": _cum_log_sum_exp,
}
