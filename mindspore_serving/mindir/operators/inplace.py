"""Operators that change their first input: what it holds afterwards.

Those with a plain operator of the same meaning compute as that one does.  Random ones
(InplaceNormal, InplaceUniform, ...), those of several devices (InplaceToDevice) and those that
write another input (InplaceMatmulAdd, InplaceGroupedMatmulAdd) have no row.
"""

from collections.abc import Callable, Mapping
from functools import partial
from math import prod
from typing import Any

import openvino as ov
from openvino import opset16 as op

from mindspore_serving.mindir.operators import (
    activations,
    binary,
    combining,
    indexing,
    matmul,
    scattering,
    unary,
)
from mindspore_serving.mindir.operators.integers import wrapping
from mindspore_serving.mindir.tensors import (
    Bool,
    Int,
    Operator,
    Tensor,
    Unsupported,
    cast,
    dims,
    ints_of,
    rank,
    reshape,
    sizes_of,
    tensor,
)
from mindspore_serving.mindir.values import Value

_PLAIN = {
    "InplaceAddExt": "AddExt",
    "InplaceAddmm": "Addmm",
    "InplaceAddsExt": "AddExt",
    "InplaceClampScalar": "ClampScalar",
    "InplaceClampTensor": "ClampTensor",
    "InplaceDiv": "Div",
    "InplaceDivMod": "DivMod",
    "InplaceDivMods": "DivMods",
    "InplaceDivs": "Divs",
    "InplaceElu": "EluExt",
    "InplaceExp": "Exp",
    "InplaceFloor": "Floor",
    "InplaceFloorDivide": "FloorDiv",
    "InplaceFloorDivides": "FloorDivScalar",
    "InplaceHardtanh": "Hardtanh",
    "InplaceIndexAddExt": "IndexAddExt",
    "InplaceLog": "Log",
    "InplaceMaskedFillScalar": "MaskedFillScalar",
    "InplaceMaskedFillTensor": "MaskedFill",
    "InplaceMul": "Mul",
    "InplaceMuls": "Muls",
    "InplaceReLU": "ReLU",
    "InplaceRemainderTensorScalar": "RemainderTensorScalar",
    "InplaceRemainderTensorTensor": "RemainderTensorTensor",
    "InplaceScatterAdd": "ScatterAddExt",
    "InplaceScatterSrc": "Scatter",
    "InplaceScatterSrcReduce": "Scatter",
    "InplaceScatterValue": "ScatterValue",
    "InplaceScatterValueReduce": "ScatterValue",
    "InplaceSiLU": "SiLU",
    "InplaceSigmoid": "Sigmoid",
    "InplaceSign": "Sign",
    "InplaceSubExt": "SubExt",
    "InplaceSubScalar": "SubScalar",
    "InplaceTanh": "Tanh",
    "InplaceThreshold": "Threshold",
}
_FAMILIES = (activations, binary, combining, indexing, matmul, scattering, unary)
_ROWS: Mapping[str, Operator] = {
    name: operator for family in _FAMILIES for name, operator in family.OPERATORS.items()
}


def _assigned(change: Callable[[Any, Any], Any], variable: Tensor, value: Tensor) -> Any:
    return change(variable, cast(value, variable.get_element_type()))


def _filled(x: Tensor, value: Value, non_blocking: Value = None) -> Any:
    """`value`, broadcast to the shape of `x`, in its type."""
    return op.broadcast(cast(tensor(value), x.get_element_type()), sizes_of(x))


def _zeros(x: Tensor) -> Any:
    return _filled(x, 0)


def _index_put(x: Tensor, indices: Value, values: Tensor, accumulate: Bool = False) -> Any:
    """x[i, j, ...] = values, with tensors for the first axes."""
    places = indexing.places_of(indices)
    columns = places.get_partial_shape()[-1].get_length()
    ahead = op.slice(sizes_of(places), ints_of([0]), ints_of([-1]), ints_of([1]))
    behind = op.slice(sizes_of(x), ints_of([columns]), ints_of([rank(x)]), ints_of([1]))
    shape = op.concat([ahead, behind], 0)
    updates = op.broadcast(cast(values, x.get_element_type()), shape)
    return op.scatter_nd_update(x, places, updates, "sum" if accumulate else "none")


def _index_copy(x: Tensor, dim: Int, index: Tensor, source: Tensor) -> Any:
    return op.scatter_update(x, indexing.counted_from_start(x, index, dim), source, ints_of([dim]))


def _index_fill(x: Tensor, dim: Int, index: Tensor, value: Value) -> Any:
    """All elements whose place on axis `dim` is in `index`."""
    axis = dim % rank(x)
    places = reshape(indexing.counted_from_start(x, index, axis), (-1,))
    sizes = op.scatter_update(sizes_of(x), ints_of([axis]), sizes_of(places), ints_of([0]))
    filling = op.broadcast(cast(tensor(value), x.get_element_type()), sizes)
    return op.scatter_update(x, places, filling, ints_of([axis]))


def _put(x: Tensor, index: Tensor, source: Tensor, accumulate: Bool = False) -> Any:
    """By places in the flattened tensor."""
    flat = reshape(x, (-1,))
    places = reshape(indexing.counted_from_start(flat, index, 0), (-1, 1))
    updates = reshape(source, (-1,))
    new = op.scatter_nd_update(flat, places, updates, "sum" if accumulate else "none").output(0)
    return reshape(new, sizes_of(x))


def _fill_diagonal(x: Tensor, fill_value: Value, wrap: Bool = False) -> Any:
    """x[i, i, ...]; with `wrap` it begins anew below the last column of a tall matrix."""
    sizes = dims(x)
    if -1 in sizes:
        raise Unsupported("an axis of open size")
    step = sum(prod(sizes[axis + 1 :]) for axis in range(len(sizes)))
    end = prod(sizes) if wrap and len(sizes) == 2 else min(sizes) * step
    places = ints_of(range(0, min(end, prod(sizes)), step))
    filling = op.broadcast(cast(tensor(fill_value), x.get_element_type()), sizes_of(places))
    new = op.scatter_update(reshape(x, (-1,)), places, filling, ints_of([0])).output(0)
    return reshape(new, sizes)


def _masked_scatter(x: Tensor, mask: Tensor, source: Tensor) -> Any:
    """The elements where `mask` is true, in order, by the first ones of `source`."""
    wide = op.broadcast(cast(mask, ov.Type.boolean), sizes_of(x))
    places = op.transpose(op.non_zero(wide), ints_of([1, 0])).output(0)
    count = op.gather(sizes_of(places), ints_of([0]), ints_of([0]))
    updates = op.slice(reshape(source, (-1,)), ints_of([0]), count, ints_of([1]))
    return op.scatter_nd_update(x, places, updates, "none")


OPERATORS: dict[str, Operator] = {
    **{name: _ROWS[plain] for name, plain in _PLAIN.items()},
    "Assign": partial(_assigned, lambda _, value: value),
    "AssignAdd": partial(_assigned, partial(wrapping, op.add)),
    "AssignSub": partial(_assigned, partial(wrapping, op.subtract)),
    "InplaceCopy": _filled,
    "InplaceFillDiagonal": _fill_diagonal,
    "InplaceFillScalar": _filled,
    "InplaceFillTensor": _filled,
    "InplaceIndexCopy": _index_copy,
    "InplaceIndexFillScalar": _index_fill,
    "InplaceIndexFillTensor": _index_fill,
    "InplaceIndexPut": _index_put,
    "InplaceMaskedScatter": _masked_scatter,
    "InplacePut": _put,
    "InplaceZero": _zeros,
}
