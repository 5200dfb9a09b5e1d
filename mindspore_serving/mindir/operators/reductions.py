"""Operators over axes: sums, extremes, counts, positions, sorting."""

from collections.abc import Callable
from functools import partial
from typing import Any

import openvino as ov
from openvino import opset16 as op

from mindspore_serving.mindir.operators import integers
from mindspore_serving.mindir.operators.types import as_float, element_type, is_float
from mindspore_serving.mindir.tensors import (
    Bool,
    Float,
    Int,
    Ints,
    Operator,
    Tensor,
    absolute,
    cast,
    ints_of,
    like,
    rank,
)

Build = Callable[[Any, Any, bool], Any]


def _axes(x: Any, axis: tuple[int, ...] | None) -> Any:
    """All of them for None and for ()."""
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
    """With the type of the result as last input; small integers add up to int64."""
    if not needs_floats:
        return _in_type(lambda value: build(value, _axes(x, dim), keepdim), x, dtype)
    x = as_float(x) if dtype is None else cast(x, element_type(dtype))
    return build(x, _axes(x, dim), keepdim)


def _in_type(build: Callable[[Any], Any], x: Any, dtype: int | None) -> Any:
    """`build` computed in type number `dtype`; booleans are counted in int64."""
    if dtype is None:
        return build(x if is_float(x) else _counted(x))
    kind = element_type(dtype)
    x = cast(x, kind)
    if kind != ov.Type.boolean:
        return build(x)
    return cast(build(_counted(x)), kind)


def _counted(x: Any) -> Any:
    """In int64, but for the unsigned integers that MindSpore leaves as they are."""
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
    most = op.reduce_max(x, axes, True)
    total = op.log(op.reduce_sum(op.exp(op.subtract(x, most)), axes, True))
    result = op.add(total, most).output(0)
    return result if keep else op.squeeze(result, axes)


def _var_mean(
    x: Tensor, dim: Ints | None = None, correction: Int = 1, keepdim: Bool = False
) -> tuple[Any, Any]:
    axes = _axes(x, dim)
    mean = op.reduce_mean(x, axes, True).output(0)
    squares = op.reduce_sum(op.squared_difference(x, mean), axes, keepdim)
    sizes = op.gather(op.shape_of(x, ov.Type.i64), axes, ints_of([0]))
    count = cast(op.reduce_prod(sizes, ints_of([0]), False).output(0), x.get_element_type())
    divisor = op.maximum(op.subtract(count, like(correction, x)), like(0, x))
    return op.divide(squares, divisor).output(0), mean if keepdim else op.squeeze(mean, axes)


def _var(x: Tensor, dim: Ints | None = None, correction: Int = 1, keepdim: Bool = False) -> Any:
    return _var_mean(x, dim, correction, keepdim)[0]


def _std(x: Tensor, dim: Ints | None = None, correction: Int = 1, keepdim: Bool = False) -> Any:
    return op.sqrt(_var_mean(x, dim, correction, keepdim)[0])


def _std_mean(
    x: Tensor, dim: Ints | None = None, correction: Int = 1, keepdim: Bool = False
) -> Any:
    variance, mean = _var_mean(x, dim, correction, keepdim)
    return op.sqrt(variance), mean


def _reduce_std(
    x: Tensor, axis: Ints | None = None, unbiased: Bool = True, keep_dims: Bool = False
) -> Any:
    variance, mean = _var_mean(x, axis, int(unbiased), keep_dims)
    return op.sqrt(variance), mean


def _norm(
    x: Tensor,
    ord: Float = 2.0,
    dim: Ints | None = None,
    keepdim: Bool = False,
    dtype: Int | None = None,
) -> Any:
    if dtype is not None:
        x = cast(x, element_type(dtype))
    return _lp(x, ord, _axes(x, dim), keepdim)


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
        return op.reduce_sum(
            cast(op.not_equal(x, like(0, x)).output(0), x.get_element_type()), axes, keep
        )
    if p == 1:
        return op.reduce_sum(size, axes, keep)
    if p == 2:
        return op.reduce_l2(x, axes, keep)
    total = op.reduce_sum(op.power(size, like(p, x)), axes, keep)
    return op.power(total, like(1 / p, x))


def _count_non_zero(x: Tensor, dim: Ints | None = None, *, dims: Ints | None = None) -> Any:
    dim = dims if dim is None else dim
    ones = cast(op.not_equal(x, like(0, x)).output(0), ov.Type.i64)
    return integers.reduce_sum(ones, _axes(x, dim), False)


def _softmax(x: Tensor, axis: Ints = (-1,)) -> Any:
    if len(axis) == 1:
        return op.softmax(x, axis[0] % rank(x))
    axes = _axes(x, axis)
    weights = op.exp(op.subtract(x, op.reduce_max(x, axes, True)))
    return op.divide(weights, op.reduce_sum(weights, axes, True))


def _log_softmax(x: Tensor, axis: Int = -1) -> Any:
    return op.log_softmax(x, axis % rank(x))


def _log_softmax_ext(x: Tensor, dim: Int | None = None, dtype: Int | None = None) -> Any:
    if dtype is not None:
        x = cast(x, element_type(dtype))
    if dim is None:
        dim = 0 if rank(x) in (0, 1, 3) else 1
    return op.log_softmax(x, dim % rank(x))


def _l2_normalize(x: Tensor, axis: Ints = (0,), epsilon: Float = 1e-4) -> Any:
    squares = op.reduce_sum(op.multiply(x, x), _axes(x, axis), True)
    return op.divide(x, op.sqrt(op.maximum(squares, like(epsilon, x))))


_SUM, _MEAN = integers.reduce_sum, op.reduce_mean
_MAX, _MIN = integers.reduce_max, integers.reduce_min

OPERATORS: dict[str, Operator] = {
    "CountNonZero": _count_non_zero,
    "CumSum": _cum_sum,
    "CumsumExt": _cum_sum_ext,
    "L2Normalize": _l2_normalize,
    "LinalgVectorNorm": _norm,
    "LogSoftmax": _log_softmax,
    "LogSoftmaxExt": _log_softmax_ext,
    "LogSumExp": _log_sum_exp,
    "LpNorm": _lp_norm,
    "Max": partial(_all_of, _MAX),
    "MeanExt": partial(_reduce_to, _MEAN, True),
    "Min": partial(_all_of, _MIN),
    "Norm": _norm,
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
    "Std": _std,
    "StdMean": _std_mean,
    "SumExt": partial(_reduce_to, _SUM, False),
    "Var": _var,
    "VarMean": _var_mean,
}
