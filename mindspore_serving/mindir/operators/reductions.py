"""Operators over axes: sums, extremes, counts, norms; cumulative ones.

What is cumulative is a prefix scan by doubling: after step k each element has combined 2^k elements
that end with it.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import openvino as ov
from openvino import opset16 as op

from mindspore_serving.mindir.operators import integers
from mindspore_serving.mindir.operators.types import as_float, element_type, in_type, is_float
from mindspore_serving.mindir.tensors import (
    END,
    Bool,
    Float,
    Int,
    Ints,
    Operator,
    Tensor,
    UnsupportedTensor,
    absolute,
    cast,
    dims,
    ints_of,
    like,
    rank,
    reshape,
    sizes_of,
    slice_of,
)

Build = Callable[[Any, Any, bool], Any]


def _axes(x: Any, axis: tuple[int, ...] | None) -> Any:
    """Return the axes as a tensor; all of them for None and for ()."""
    return ints_of(axis or range(rank(x)))


def _reduce(
    build: Build,
    x: Tensor,
    axis: Ints | None = None,
    keep_dims: Bool = False,
    skip_mode: Bool = False,
) -> Any:
    return x if skip_mode and not axis else build(x, _axes(x, axis), keep_dims)


def _reduce_bools(
    build: Build, x: Tensor, axis: Ints | None = None, keep_dims: Bool = False
) -> Any:
    return build(cast(x, ov.Type.boolean), _axes(x, axis), keep_dims)


def _reduce_to(
    build: Build,
    needs_floats: bool,
    x: Tensor,
    dim: Ints | None = None,
    keepdim: Bool = False,
    dtype: Int | None = None,
) -> Any:
    """Reduce in the type of the result, `dtype`; small integers add up to int64."""
    if not needs_floats:
        return _in_type(lambda value: build(value, _axes(x, dim), keepdim), x, dtype)
    x = as_float(x) if dtype is None else in_type(x, dtype)
    return build(x, _axes(x, dim), keepdim)


def _in_type(build: Callable[[Any], Any], x: Any, dtype: int | None) -> Any:
    """Compute `build` in the type with number `dtype`; booleans are counted in int64."""
    if dtype is None:
        return build(x if is_float(x) else _counted(x))
    kind = element_type(dtype)
    x = cast(x, kind)
    if kind != ov.Type.boolean:
        return build(x)
    return cast(build(_counted(x)), kind)


def _counted(x: Any) -> Any:
    """Cast to int64, except for the unsigned integers that MindSpore does not widen."""
    stays = x.get_element_type() in (ov.Type.u16, ov.Type.u32, ov.Type.u64)
    return x if stays else cast(x, ov.Type.i64)


def _all_of(build: Build, x: Tensor) -> Any:
    return build(x, _axes(x, None), False)


def _cum_sum(x: Tensor, axis: Int, exclusive: Bool = False, reverse: Bool = False) -> Any:
    return op.cumsum(x, op.constant(axis), exclusive, reverse)


def _cum_sum_ext(x: Tensor, dim: Int, dtype: Int | None = None) -> Any:
    return _in_type(lambda value: op.cumsum(value, op.constant(dim)), x, dtype)


def _log_sum_exp(x: Tensor, dim: Ints | None = None, keepdim: Bool = False) -> Any:
    return _log_sum(as_float(x), _axes(x, dim), keepdim)


def _log_sum(x: Any, axes: Any, keep: bool) -> Any:
    largest = op.reduce_max(x, axes, True)
    total = op.log(op.reduce_sum(op.exp(op.subtract(x, largest)), axes, True))
    result = op.add(total, largest).output(0)
    return result if keep else op.squeeze(result, axes)


def _spread(
    choose: Callable[[Any, Any], Any],
    x: Tensor,
    dim: Ints | None = None,
    correction: Int = 1,
    keepdim: Bool = False,
) -> Any:
    """Give what `choose` makes of variance and mean."""
    axes = _axes(x, dim)
    mean = op.reduce_mean(x, axes, True).output(0)
    squares = op.reduce_sum(op.squared_difference(x, mean), axes, keepdim)
    sizes = op.gather(op.shape_of(x, ov.Type.i64), axes, ints_of([0]))
    count = cast(op.reduce_prod(sizes, ints_of([0]), False).output(0), x.get_element_type())
    divisor = op.maximum(op.subtract(count, like(correction, x)), like(0, x))
    variance = op.divide(squares, divisor).output(0)
    return choose(variance, mean if keepdim else op.squeeze(mean, axes))


def _deviation(variance: Any, mean: Any) -> Any:
    return op.sqrt(variance), mean


def _reduce_std(
    x: Tensor, axis: Ints | None = None, unbiased: Bool = True, keep_dims: Bool = False
) -> Any:
    return _spread(_deviation, x, axis, int(unbiased), keep_dims)


def _norm(
    x: Tensor,
    ord: Float = 2.0,
    dim: Ints | None = None,
    keepdim: Bool = False,
    dtype: Int | None = None,
) -> Any:
    return _lp(in_type(x, dtype), ord, _axes(x, dim), keepdim)


def _lp_norm(
    x: Tensor, axis: Ints, p: Float = 2.0, keep_dims: Bool = False, epsilon: Float = 1e-12
) -> Any:
    return _lp(x, p, _axes(x, axis), keep_dims)


def _lp(x: Any, p: float, axes: Any, keep: bool) -> Any:
    size = absolute(x)
    if p == float("inf"):
        return op.reduce_max(size, axes, keep)
    if p == float("-inf"):
        return op.reduce_min(size, axes, keep)
    if p == 0:
        return op.reduce_sum(_is_not_zero(x, x.get_element_type()), axes, keep)
    if p == 1:
        return op.reduce_sum(size, axes, keep)
    if p == 2:
        return op.reduce_l2(x, axes, keep)
    total = op.reduce_sum(op.power(size, like(p, x)), axes, keep)
    return op.power(total, like(1 / p, x))


def _count_non_zero(x: Tensor, dim: Ints | None = None, *, dims: Ints | None = None) -> Any:
    dim = dims if dim is None else dim
    return integers.reduce_sum(_is_not_zero(x, ov.Type.i64), _axes(x, dim), False)


def _is_not_zero(x: Any, kind: Any) -> Any:
    """Give 1 or 0 in type `kind`."""
    return cast(op.not_equal(x, like(0, x)).output(0), kind)


def _softmax(x: Tensor, axis: Ints = (-1,)) -> Any:
    if len(axis) == 1:
        return op.softmax(x, axis[0] % rank(x))
    axes = _axes(x, axis)
    weights = op.exp(op.subtract(x, op.reduce_max(x, axes, True)))
    return op.divide(weights, op.reduce_sum(weights, axes, True))


def _log_softmax(x: Tensor, axis: Int = -1) -> Any:
    return op.log_softmax(x, axis % rank(x))


def _log_softmax_ext(x: Tensor, dim: Int | None = None, dtype: Int | None = None) -> Any:
    if dim is None:
        dim = 0 if rank(x) in (0, 1, 3) else 1
    return op.log_softmax(in_type(x, dtype), dim % rank(x))


def _l2_normalize(x: Tensor, axis: Ints = (0,), epsilon: Float = 1e-4) -> Any:
    squares = op.reduce_sum(op.multiply(x, x), _axes(x, axis), True)
    return op.divide(x, op.sqrt(op.maximum(squares, like(epsilon, x))))


Parts = tuple[Any, ...]


def _length(x: Any, axis: int) -> int:
    """Return the known size of `axis`.  Raises Unsupported if it is open."""
    size = dims(x)[axis]
    if size < 0:
        raise UnsupportedTensor("an axis of open size")
    return size


def _flip(x: Any, axis: int) -> Any:
    return slice_of(x, axis, -1, -END, -1)


def _scan(combine: Callable[[Parts, Parts], Parts], parts: Parts, axis: int) -> Parts:
    """Combine each element with all before it.

    `combine` gets what comes first, then what follows; it must be associative.
    """
    size, shift = _length(parts[0], axis), 1
    while shift < size:
        first = [slice_of(part, axis, 0, size - shift) for part in parts]
        following = [slice_of(part, axis, shift) for part in parts]
        combined = combine(tuple(first), tuple(following))
        heads = [slice_of(part, axis, 0, shift) for part in parts]
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
        ahead, behind = [int(number == axis) for number in range(rank(x))], [0] * rank(x)
        rest, first = slice_of(x, axis, 0, -1), like(neutral, x)
        x = op.pad(rest, ints_of(ahead), ints_of(behind), "constant", first).output(0)
    (x,) = _scan(combine, (x,), axis)
    return _flip(x, axis) if reverse else x


def _product(first: Parts, following: Parts) -> Parts:
    return (op.multiply(first[0], following[0]).output(0),)


def _log_add_exp(first: Parts, following: Parts) -> Parts:
    """Compute log(exp(a) + exp(b)); for two equal infinities that infinity."""
    a, b = first[0], following[0]
    highest = op.maximum(a, b).output(0)
    lowest = op.minimum(a, b).output(0)
    gap = op.subtract(lowest, highest).output(0)
    gap = op.select(op.equal(a, b), like(0, a), gap).output(0)
    return (op.add(highest, op.log(op.add(like(1, a), op.exp(gap)))).output(0),)


def _cum_prod(
    x: Tensor, axis: Int, exclusive: Bool = False, reverse: Bool = False, dtype: Int | None = None
) -> Any:
    return _cumulative(_product, 1.0, in_type(x, dtype), axis, exclusive, reverse)


def _cum_log_sum_exp(
    x: Tensor, axis: Int, *, exclusive: Bool = False, reverse: Bool = False
) -> Any:
    lowest = -65504.0 if x.get_element_type() == ov.Type.f16 else -3.4028234663852886e38
    return _cumulative(_log_add_exp, lowest, x, axis, exclusive, reverse)


def _cum_extreme(
    is_later: Callable[[Any, Any], Any], index_type: Any, x: Tensor, axis: Int
) -> tuple[Any, Any]:
    """Return cumulative extreme and position: the last of equal ones, NaN from the first on."""
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
    positions = op.broadcast(reshape(ints_of(range(size)), shape), sizes_of(x)).output(0)
    values, positions = _scan(combine, (x, positions), axis)
    return values, cast(positions, index_type)


_SUM, _MEAN = integers.reduce_sum, op.reduce_mean
_MAX, _MIN = integers.reduce_max, integers.reduce_min

OPERATORS: dict[str, Operator] = {
    **dict.fromkeys(("LinalgVectorNorm", "Norm"), _norm),
    "CountNonZero": _count_non_zero,
    "CumProd": _cum_prod,
    "CumSum": _cum_sum,
    "Cummax": partial(_cum_extreme, op.greater_equal, ov.Type.i64),
    "Cummin": partial(_cum_extreme, op.less_equal, ov.Type.i32),
    "CumminExt": partial(_cum_extreme, op.less_equal, ov.Type.i64),
    "CumsumExt": _cum_sum_ext,
    "CumulativeLogsumexp": _cum_log_sum_exp,
    "L2Normalize": _l2_normalize,
    "LogSoftmax": _log_softmax,
    "LogSoftmaxExt": _log_softmax_ext,
    "LogSumExp": _log_sum_exp,
    "LpNorm": _lp_norm,
    "Max": partial(_all_of, _MAX),
    "MeanExt": partial(_reduce_to, _MEAN, True),
    "Min": partial(_all_of, _MIN),
    "ProdExt": partial(_reduce_to, integers.reduce_prod, False),
    "ReduceAll": partial(_reduce_bools, op.reduce_logical_and),
    "ReduceAny": partial(_reduce_bools, op.reduce_logical_or),
    "ReduceMax": partial(_reduce, _MAX),
    "ReduceMean": partial(_reduce, _MEAN),
    "ReduceMin": partial(_reduce, _MIN),
    "ReduceProd": partial(_reduce, integers.reduce_prod),
    "ReduceStd": _reduce_std,
    "ReduceSum": partial(_reduce, _SUM),
    "Softmax": _softmax,
    "Std": partial(_spread, lambda variance, _: op.sqrt(variance)),
    "StdMean": partial(_spread, _deviation),
    "SumExt": partial(_reduce_to, _SUM, False),
    "Var": partial(_spread, lambda variance, _: variance),
    "VarMean": partial(_spread, lambda variance, mean: (variance, mean)),
}
