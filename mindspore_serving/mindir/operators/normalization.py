"""Normalisation of batches, layers, groups and instances; dropout, which does nothing; losses."""

from typing import Any

import openvino as ov
from openvino import opset16 as op

from mindspore_serving.mindir.operators.enumerations import REDUCTION, check_channels_first
from mindspore_serving.mindir.tensors import (
    Bool,
    Float,
    Int,
    Ints,
    Operator,
    Tensor,
    UnsupportedTensor,
    absolute,
    cast,
    ints_of,
    like,
    rank,
    reshape,
    size_of,
    sizes_of,
    squeeze,
    unsqueeze,
)
from mindspore_serving.mindir.values import Value


def _batch_norm(
    x: Tensor,
    scale: Tensor,
    bias: Tensor,
    mean: Tensor,
    variance: Tensor,
    is_training: Bool = False,
    epsilon: Float = 1e-5,
    momentum: Float = 0.1,
    data_format: Value = None,
) -> Any:
    """Return the result, then values that only training needs."""
    if is_training:
        raise UnsupportedTensor("is_training: export the network with set_train(False)")
    check_channels_first(data_format)
    return op.batch_norm_inference(x, scale, bias, mean, variance, epsilon), scale, bias, mean, mean


def _batch_norm_ext(
    x: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    mean: Tensor | None = None,
    variance: Tensor | None = None,
    training: Bool = False,
    momentum: Float = 0.1,
    epsilon: Float = 1e-5,
) -> Any:
    if training or mean is None or variance is None:
        raise UnsupportedTensor("training: export the network with set_train(False)")
    zeros = op.multiply(mean, like(0.0, mean)).output(0)
    gamma = op.add(zeros, like(1.0, mean)).output(0) if weight is None else weight
    beta = zeros if bias is None else bias
    return op.batch_norm_inference(x, gamma, beta, mean, variance, epsilon), mean, variance


def _normal(x: Any, axes: list[int], epsilon: float) -> Any:
    return op.mvn(x, ints_of(axes), True, epsilon, "inside_sqrt").output(0)


def _moments(x: Any, axes: list[int], epsilon: float) -> tuple[Any, Any]:
    """Return mean and variance, which files have as further results."""
    mean = op.reduce_mean(x, ints_of(axes), True)
    return mean, op.reduce_mean(op.squared_difference(x, mean), ints_of(axes), True)


def _layer_norm(
    x: Tensor,
    gamma: Tensor,
    beta: Tensor,
    begin_norm_axis: Int = 1,
    begin_params_axis: Int = 1,
    epsilon: Float = 1e-7,
) -> Any:
    axes = list(range(begin_norm_axis % rank(x), rank(x)))
    y = _normal(x, axes, epsilon)
    return op.add(op.multiply(y, gamma), beta), *_moments(x, axes, epsilon)


def _layer_norm_ext(
    x: Tensor,
    normalized_shape: Ints,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: Float = 1e-5,
) -> Any:
    axes = list(range(rank(x) - len(normalized_shape), rank(x)))
    y = _affine(_normal(x, axes, eps), weight, bias)
    return y, *_moments(x, axes, eps)


def _affine(y: Any, weight: Any, bias: Any) -> Any:
    if weight is not None:
        y = op.multiply(y, weight).output(0)
    return y if bias is None else op.add(y, bias).output(0)


def _by_channel(weight: Any, x: Any) -> Any:
    """Lay `weight`, if there is any, along axis 1 of `x`."""
    return None if weight is None else reshape(weight, (1, -1, *[1] * (rank(x) - 2)))


def _group_norm(
    x: Tensor,
    num_groups: Int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: Float = 1e-5,
) -> Any:
    """Return the result, then mean and reciprocal deviation of each group."""
    groups = op.reshape(x, ints_of([0, num_groups, -1]), True).output(0)  # (batch, groups, rest)
    y = op.reshape(_normal(groups, [2], eps), sizes_of(x), False).output(0)
    y = _affine(y, *(_by_channel(parameter, x) for parameter in (weight, bias)))
    mean, variance = _moments(groups, [2], eps)
    return y, squeeze(mean, 2), squeeze(variance, 2)


def _instance_norm(
    x: Tensor,
    gamma: Tensor,
    beta: Tensor,
    mean: Value = None,
    variance: Value = None,
    *,
    epsilon: Float = 1e-5,
) -> Any:
    axes = list(range(2, rank(x)))
    y = _affine(_normal(x, axes, epsilon), _by_channel(gamma, x), _by_channel(beta, x))
    return y, *_moments(x, axes, epsilon)


def _rms_norm(x: Tensor, gamma: Tensor, epsilon: Float = 1e-6) -> Any:
    """Return the result and the reciprocal root mean square."""
    wide = cast(x, ov.Type.f32)
    count = rank(gamma)
    axes = ints_of(list(range(rank(x) - count, rank(x))))
    mean = op.reduce_mean(op.multiply(wide, wide), axes, True)
    root = op.divide(like(1.0, wide), op.sqrt(op.add(mean, like(epsilon, wide)))).output(0)
    return op.multiply(cast(op.multiply(wide, root).output(0), x.get_element_type()), gamma), root


def _add_rms_norm(x1: Tensor, x2: Tensor, gamma: Tensor, epsilon: Float = 1e-6) -> Any:
    total = op.add(x1, x2).output(0)
    return *_rms_norm(total, gamma, epsilon), total


def _dropout(x: Tensor, keep_prob: Float = 1.0) -> Any:
    return _dropout_ext(x, 1 - keep_prob)


def _dropout_ext(x: Tensor, p: Float = 0.0) -> Any:
    """Return `x` and a mask of True; a network exported for training is refused."""
    if p != 0:
        raise UnsupportedTensor("dropout of training: export the network with set_train(False)")
    return x, op.broadcast(op.constant(True), sizes_of(x))


def _func_dropout(x: Tensor, p: Float = 0.5, training: Bool = False) -> Any:
    return _dropout_ext(x, p if training else 0.0)[0]


def _reduced(loss: Any, reduction: Value) -> Any:
    """Reduce `loss` by one of MindSpore's names for reductions."""
    name = REDUCTION.name("reduction", reduction, "none", "sum", "mean", "batchmean")
    if name == "none":
        return loss
    axes = ints_of(range(rank(loss)))
    if name == "mean":
        return op.reduce_mean(loss, axes, False)
    total = op.reduce_sum(loss, axes, False)
    if name == "sum":
        return total
    return op.divide(total, cast(squeeze(size_of(loss, 0), 0), loss.get_element_type()))


def _kl_divergence(x: Any, target: Any, is_log: bool) -> Any:
    """Compute target * (log target - x), 0 where the target is 0."""
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
    """Return the loss and the sum of the weights: minus the weighted logit of each label.

    The classes are axis 1 of `logits`, or its only axis.
    """
    axis = min(1, rank(logits) - 1)
    labels = cast(labels, ov.Type.i64)
    is_used = op.not_equal(labels, op.constant(ignore_index))
    safe = op.select(is_used, labels, op.constant(0)).output(0)
    picked = squeeze(op.gather_elements(logits, unsqueeze(safe, axis), axis), axis)
    zero = like(0, logits)
    weights = op.select(is_used, op.gather(weight, safe, op.constant(0)), zero)
    # The loss of an ignored label is 0, even if its logit is infinite.
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
    **dict.fromkeys(("LayerNorm", "LayerNormV3"), _layer_norm),
    **dict.fromkeys(("NLLLoss", "NLLLoss2d"), _nll_loss),
    "AddRmsNorm": _add_rms_norm,
    "BatchNorm": _batch_norm,
    "BatchNormExt": _batch_norm_ext,
    "Dropout": _dropout,
    "DropoutExt": _dropout_ext,
    "FuncDropoutExt": _func_dropout,
    "GroupNorm": _group_norm,
    "InstanceNorm": _instance_norm,
    "KLDiv": _kl_div,
    "KLDivLoss": _kl_div_loss,
    "LayerNormExt": _layer_norm_ext,
    "RmsNorm": _rms_norm,
    "SmoothL1Loss": _smooth_l1,
}
