"""Operators that make tensors: constants, ranges, and of numbers."""

from functools import partial
from typing import Any

import openvino as ov
from openvino import opset16 as op

from mindspore_serving.mindir.operators.enumerations import INDEXING
from mindspore_serving.mindir.operators.types import element_type
from mindspore_serving.mindir.tensors import (
    Int,
    Operator,
    Shape,
    Tensor,
    Unsupported,
    cast,
    known,
    like,
    rank,
    reshape,
    scalar,
    sizes_of,
    tensor,
)
from mindspore_serving.mindir.values import Value


def _filled(number: float, size: Shape, dtype: Int | None = None) -> Any:
    kind = ov.Type.f32 if dtype is None else element_type(dtype)
    return op.broadcast(scalar(number, kind), size)


def _filled_like(number: float, x: Tensor, dtype: Int | None = None) -> Any:
    return _full_like(x, tensor(number), dtype)


def _new_filled(number: float, x: Tensor, size: Shape, dtype: Int | None = None) -> Any:
    return _new_full(x, size, tensor(number), dtype)


def _full(size: Shape, fill_value: Tensor, dtype: Int | None = None) -> Any:
    kind = fill_value.get_element_type() if dtype is None else element_type(dtype)
    return op.broadcast(cast(reshape(fill_value, ()), kind), size)


def _full_like(x: Tensor, fill_value: Tensor, dtype: Int | None = None) -> Any:
    kind = x.get_element_type() if dtype is None else element_type(dtype)
    return op.broadcast(cast(reshape(fill_value, ()), kind), sizes_of(x))


def _new_full(x: Tensor, size: Shape, fill_value: Tensor, dtype: Int | None = None) -> Any:
    kind = x.get_element_type() if dtype is None else element_type(dtype)
    return op.broadcast(cast(reshape(fill_value, ()), kind), size)


def _fill(dtype: Int, size: Shape, value: Tensor) -> Any:
    return _full(size, value, dtype)


def _range(start: Value, end: Value, step: Value, maxlen: Value = None) -> Any:
    numbers = [reshape(tensor(one), ()) for one in (start, end, step)]
    kind = numbers[0].get_element_type()
    return op.range(*(cast(one, kind) for one in numbers), _name(kind))


def _arange(start: Value, end: Value, step: Value, dtype: Int | None = None) -> Any:
    numbers = [reshape(tensor(one), ()) for one in (start, end, step)]
    is_float = any(one.get_element_type().is_real() for one in numbers)
    own = ov.Type.f32 if is_float else ov.Type.i64
    kind = own if dtype is None else element_type(dtype)
    return cast(op.range(*(cast(one, own) for one in numbers), _name(own)).output(0), kind)


def _name(kind: Any) -> str:
    return str(kind.to_string())


def _lin_space(start: Tensor, end: Tensor, steps: Int, dtype: Int | None = None) -> Any:
    kind = ov.Type.f32 if dtype is None else element_type(dtype)
    first, last = (cast(reshape(one, ()), ov.Type.f32) for one in (start, end))
    places = op.range(op.constant(0.0), op.constant(float(steps)), op.constant(1.0), "f32")
    step = op.divide(op.subtract(last, first), like(max(steps - 1, 1), first))
    return cast(
        op.add(op.multiply(cast(places.output(0), ov.Type.f32), step), first).output(0), kind
    )


def _eye(n: Int, m: Int, dtype: Int) -> Any:
    kind = element_type(dtype)
    return op.eye(op.constant(n), op.constant(m), op.constant(0), _name(kind))


def _to_tensor(value: Value, dtype: Int | None = None) -> Any:
    made = tensor(value)
    return made if dtype is None else cast(made, element_type(dtype))


def _to_number(x: Value, dtype: Value = None) -> Any:
    """A number of Python where it is known, else a tensor of rank 0."""
    array = known(x)
    return reshape(tensor(x), ()) if array is None else array.ravel()[0].item()


def _to_tuple(x: Tensor) -> Any:
    array = known(x)
    if array is not None:
        return tuple(array.ravel().tolist())
    if rank(x) != 1 or x.get_partial_shape()[0].is_dynamic:
        raise Unsupported("a tensor whose number of elements is open")
    count = x.get_partial_shape()[0].get_length()
    return tuple(reshape(part, ()) for part in op.split(x, op.constant(0), count).outputs())


def _meshgrid(inputs: Value, indexing: Value = "xy") -> Any:
    tensors = [tensor(one) for one in inputs]
    order = list(range(len(tensors)))
    if INDEXING.name("indexing", indexing, "ij", "xy") == "xy" and len(tensors) > 1:
        order[:2] = [1, 0]
    sizes = op.concat([sizes_of(tensors[place]) for place in order], 0)
    grids = []
    for place, one in enumerate(tensors):
        shape = [1] * len(tensors)
        shape[order.index(place)] = -1
        grids.append(op.broadcast(reshape(one, shape), sizes))
    return tuple(grids)


OPERATORS: dict[str, Operator] = {
    "Arange": _arange,
    "Eps": lambda x: op.broadcast(like(1.1920929e-07, tensor(x)), sizes_of(tensor(x))),
    "Eye": _eye,
    "Fill": _fill,
    "FillScalar": _full,
    "FillTensor": _full,
    "FillV2": _full,
    **dict.fromkeys(("Fills", "FullLike"), _full_like),
    "LinSpace": _lin_space,
    "LinSpaceExt": _lin_space,
    "ListToTensor": _to_tensor,
    "Meshgrid": _meshgrid,
    "NewFull": _new_full,
    "NewOnes": partial(_new_filled, 1),
    "NewZeros": partial(_new_filled, 0),
    "Ones": partial(_filled, 1),
    "OnesLike": partial(_filled_like, 1),
    "OnesLikeExt": partial(_filled_like, 1),
    "Range": _range,
    "Rank": lambda x: rank(tensor(x)),
    "ScalarToTensor": _to_tensor,
    "TensorToList": _to_tuple,
    "TensorToScalar": _to_number,
    "TensorToTuple": _to_tuple,
    "TupleToTensor": _to_tensor,
    "Zeros": partial(_filled, 0),
    "ZerosLike": partial(_filled_like, 0),
    "ZerosLikeExt": partial(_filled_like, 0),
}
