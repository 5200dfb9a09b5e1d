"""Pooling whose windows adapt to a size."""

from collections.abc import Callable
from functools import partial
from typing import Any

import openvino as ov
from openvino import opset16 as op

from mindspore_serving.mindir.tensors import (
    Int,
    Operator,
    Tensor,
    cast,
    ints_of,
    rank,
    size_of,
)
from mindspore_serving.mindir.values import Value, read


def _adaptive(count: int, build: Callable[[Any, Any], Any], x: Tensor, output_size: Value) -> Any:
    """`build` gets the input with batch and channels, and the sizes; None keeps a size."""
    given = read(output_size)
    wanted = given if isinstance(given, tuple) else (given,) * count
    wanted = wanted * count if len(wanted) == 1 else wanted
    sizes = [_wanted(x, size, axis - count) for axis, size in enumerate(wanted)]
    target = op.concat(sizes, 0).output(0)
    if rank(x) == count + 2:
        return build(x, target)
    y = build(op.unsqueeze(x, ints_of([0])).output(0), target)
    return op.squeeze(y, ints_of([0]))


def _wanted(x: Any, size: Value, axis: int) -> Any:
    return size_of(x, axis) if size in (None, -1) else ints_of([int(size)])


def _adaptive_avg(x: Any, sizes: Any) -> Any:
    if _are_all_one(sizes):
        return op.reduce_mean(x, ints_of(list(range(2, rank(x)))), True)
    return op.adaptive_avg_pool(x, sizes)


def _are_all_one(sizes: Any) -> bool:
    inputs = [one.get_source_output().get_node() for one in sizes.get_node().inputs()]
    return all(
        node.get_type_name() == "Constant" and (node.get_data() == 1).all() for node in inputs
    )


def _adaptive_max_1d(x: Tensor, output_size: Int) -> Any:
    node = op.adaptive_max_pool(x, ints_of([output_size]), "i32")
    return node.output(0), cast(node.output(1), ov.Type.i64)


def _adaptive_max_2d(x: Tensor, output_size: Value) -> Any:
    given = read(output_size)
    wanted = given if isinstance(given, tuple) else (given, given)
    sizes = op.concat([_wanted(x, size, axis - 2) for axis, size in enumerate(wanted)], 0)
    is_single = rank(x) == 3
    batch = op.unsqueeze(x, ints_of([0])).output(0) if is_single else x
    node = op.adaptive_max_pool(batch, sizes, "i32")
    both = node.output(0), cast(node.output(1), ov.Type.i64)
    return tuple(op.squeeze(one, ints_of([0])) for one in both) if is_single else both


OPERATORS: dict[str, Operator] = {
    "AdaptiveAvgPool1D": partial(_adaptive, 1, _adaptive_avg),
    "AdaptiveAvgPool2D": partial(_adaptive, 2, _adaptive_avg),
    "AdaptiveAvgPool2DExt": partial(_adaptive, 2, _adaptive_avg),
    "AdaptiveAvgPool3D": partial(_adaptive, 3, _adaptive_avg),
    "AdaptiveAvgPool3DExt": partial(_adaptive, 3, _adaptive_avg),
    "AdaptiveMaxPool1D": _adaptive_max_1d,
    "AdaptiveMaxPool2D": _adaptive_max_2d,
}
