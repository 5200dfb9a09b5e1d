"""Losses, whose last step may be a mean or a sum over all elements."""

from typing import Any

import openvino as ov
from openvino import opset16 as op

from mindspore_serving.mindir.operators.enumerations import REDUCTION
from mindspore_serving.mindir.tensors import (
    Bool,
    Float,
    Int,
    Operator,
    Tensor,
    absolute,
    cast,
    ints_of,
    like,
    rank,
    size_of,
)
from mindspore_serving.mindir.values import Value


def _reduced(loss: Any, reduction: Value) -> Any:
    """`loss` with the reduction that MindSpore calls so."""
    name = REDUCTION.name("reduction", reduction, "none", "sum", "mean", "batchmean")
    if name == "none":
        return loss
    axes = ints_of(range(rank(loss)))
    if name == "mean":
        return op.reduce_mean(loss, axes, False)
    total = op.reduce_sum(loss, axes, False)
    if name == "sum":
        return total
    count = op.squeeze(size_of(loss, 0), ints_of([0])).output(0)
    return op.divide(total, cast(count, loss.get_element_type()))


def _kl_divergence(x: Any, target: Any, is_log: bool) -> Any:
    """target * (log target - x); 0 where the target is 0."""
    if is_log:
        return op.multiply(op.exp(target), op.subtract(target, x)).output(0)
    zero = like(0, x)
    is_positive = op.greater(target, zero)
    safe = op.select(is_positive, target, like(1, x))
    loss = op.multiply(target, op.subtract(op.log(safe), x))
    return op.select(is_positive, loss, zero).output(0)


def _kl_div_loss(x: Tensor, target: Tensor, *, reduction: Value = "mean") -> Any:
    return _reduced(_kl_divergence(x, target, False), reduction)


def _kl_div(x: Tensor, target: Tensor, reduction: Value = 1, log_target: Bool = False) -> Any:
    return _reduced(_kl_divergence(x, target, log_target), reduction)


def _smooth_l1(x: Tensor, target: Tensor, beta: Float = 1.0, reduction: Value = 2) -> Any:
    gap = absolute(op.subtract(x, target).output(0))
    if beta == 0:
        return _reduced(gap, reduction)
    square = op.divide(op.multiply(op.multiply(gap, gap), like(0.5, x)), like(beta, x))
    line = op.subtract(gap, like(0.5 * beta, x))
    is_near = op.less(gap, like(beta, x))
    return _reduced(op.select(is_near, square, line).output(0), reduction)


def _nll_loss(
    logits: Tensor,
    labels: Tensor,
    weight: Tensor,
    reduction: Value = 1,
    ignore_index: Int = -100,
) -> Any:
    """(loss, sum of the weights): minus the logit of each label, which counts as its weight.

    The classes are axis 1 of `logits`, or the only one.
    """
    axis = min(1, rank(logits) - 1)
    labels = cast(labels, ov.Type.i64)
    is_used = op.not_equal(labels, op.constant(ignore_index))
    safe = op.select(is_used, labels, op.constant(0)).output(0)
    where = op.unsqueeze(safe, ints_of([axis]))
    picked = op.squeeze(op.gather_elements(logits, where, axis), ints_of([axis]))
    zero = like(0, logits)
    weights = op.select(is_used, op.gather(weight, safe, op.constant(0)), zero)
    # What is not used is 0 whatever its logit is.
    loss = op.select(is_used, op.multiply(op.negative(picked), weights), zero).output(0)
    axes = ints_of(range(rank(loss)))
    total = op.reduce_sum(weights, axes, False)
    name = REDUCTION.name("reduction", reduction, "none", "sum", "mean")
    if name == "none":
        return loss, zero
    if name == "mean":
        return op.divide(op.reduce_sum(loss, axes, False), total), total
    return op.reduce_sum(loss, axes, False), total


OPERATORS: dict[str, Operator] = {
    "KLDiv": _kl_div,
    "KLDivLoss": _kl_div_loss,
    "NLLLoss": _nll_loss,
    "NLLLoss2d": _nll_loss,
    "SmoothL1Loss": _smooth_l1,
}
