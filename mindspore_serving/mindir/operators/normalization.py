"""Normalisation of batches, layers, groups and instances; dropout, which does nothing here."""

from typing import Any

import openvino as ov
from openvino import opset16 as op

from mindspore_serving.mindir.operators.enumerations import check_channels_first
from mindspore_serving.mindir.tensors import (
    Bool,
    Float,
    Int,
    Ints,
    Operator,
    Tensor,
    Unsupported,
    cast,
    ints_of,
    like,
    rank,
    reshape,
    sizes_of,
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
    """The result, then what training alone needs."""
    if is_training:
        raise Unsupported("is_training: export the network with set_train(False)")
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
        raise Unsupported("training: export the network with set_train(False)")
    ones = op.add(op.multiply(mean, like(0.0, mean)), like(1.0, mean)).output(0)
    zeros = op.multiply(mean, like(0.0, mean)).output(0)
    gamma, beta = weight if weight is not None else ones, bias if bias is not None else zeros
    return op.batch_norm_inference(x, gamma, beta, mean, variance, epsilon), mean, variance


def _normal(x: Any, axes: list[int], epsilon: float) -> Any:
    return op.mvn(x, ints_of(axes), True, epsilon, "inside_sqrt").output(0)


def _moments(x: Any, axes: list[int], epsilon: float) -> tuple[Any, Any]:
    """Mean and variance, which the file has as further results."""
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


def _group_norm(
    x: Tensor,
    num_groups: Int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: Float = 1e-5,
) -> Any:
    """The result, then mean and reciprocal deviation by group."""
    groups = reshape_groups(x, num_groups)
    y = op.reshape(_normal(groups, [2], eps), sizes_of(x), False).output(0)
    shape = (1, -1, *[1] * (rank(x) - 2))
    y = _affine(y, *(None if one is None else reshape(one, shape) for one in (weight, bias)))
    mean, variance = _moments(groups, [2], eps)
    return y, op.squeeze(mean, ints_of([2])), op.squeeze(variance, ints_of([2]))


def reshape_groups(x: Any, num_groups: int) -> Any:
    """(batch, groups, rest)."""
    return op.reshape(x, ints_of([0, num_groups, -1]), True).output(0)


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
    shape = (1, -1, *[1] * (rank(x) - 2))
    y = _affine(_normal(x, axes, epsilon), reshape(gamma, shape), reshape(beta, shape))
    return y, *_moments(x, axes, epsilon)


def _rms_norm(x: Tensor, gamma: Tensor, epsilon: Float = 1e-6) -> Any:
    """The result and the reciprocal root."""
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
    """Random in training only; a file of a network in training is refused."""
    if p != 0:
        raise Unsupported("dropout of training: export the network with set_train(False)")
    return x, op.broadcast(op.constant(True), sizes_of(x))


def _func_dropout(x: Tensor, p: Float = 0.5, training: Bool = False) -> Any:
    return _dropout_ext(x, p if training else 0.0)[0]


OPERATORS: dict[str, Operator] = {
    "AddRmsNorm": _add_rms_norm,
    "BatchNorm": _batch_norm,
    "BatchNormExt": _batch_norm_ext,
    "Dropout": _dropout,
    "DropoutExt": _dropout_ext,
    "FuncDropoutExt": _func_dropout,
    "GroupNorm": _group_norm,
    "InstanceNorm": _instance_norm,
    "LayerNorm": _layer_norm,
    "LayerNormExt": _layer_norm_ext,
    "LayerNormV3": _layer_norm,
    "RmsNorm": _rms_norm,
}
