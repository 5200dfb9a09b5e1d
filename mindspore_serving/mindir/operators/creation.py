"""Operators that make tensors: constants, ranges, and of numbers."""

from functools import partial
from typing import Any

import openvino as ov
from openvino import opset16 as op

from mindspore_serving.mindir.operators.enumerations import INDEXING
from mindspore_serving.mindir.operators.types import element_type, in_type
from mindspore_serving.mindir.tensors import (
    Int,
    Operator,
    Shape,
    Tensor,
    UnsupportedTensor,
    cast,
    dims,
    known,
    like,
    rank,
    reshape,
    sizes_of,
    tensor,
)
from mindspore_serving.mindir.values import Value


def _filled(number: float, size: Shape, dtype: Int | None = None) -> Any:
    return _full(size, tensor(float(number)), dtype)


def _filled_like(number: float, x: Tensor, dtype: Int | None = None) -> Any:
    return _full_like(x, tensor(number), dtype)


def _new_filled(number: float, x: Tensor, size: Shape, dtype: Int | None = None) -> Any:
    return _new_full(x, size, tensor(number), dtype)


def _full(size: Shape, fill_value: Tensor, dtype: Int | None = None) -> Any:
    return _new_full(fill_value, size, fill_value, dtype)


def _full_like(x: Tensor, fill_value: Tensor, dtype: Int | None = None) -> Any:
    return _new_full(x, sizes_of(x), fill_value, dtype)


def _new_full(x: Tensor, size: Shape, fill_value: Tensor, dtype: Int | None = None) -> Any:
    """Fill in the type of `x`, unless there is a `dtype`."""
    return op.broadcast(cast(reshape(fill_value, ()), _kind(x.get_element_type(), dtype)), size)


def _kind(default: Any, dtype: int | None) -> Any:
    return default if dtype is None else element_type(dtype)


def _fill(dtype: Int, size: Shape, value: Tensor) -> Any:
    return _full(size, value, dtype)


def _range(start: Value, end: Value, step: Value, maxlen: Value = None) -> Any:
    numbers = [reshape(tensor(number), ()) for number in (start, end, step)]
    kind = numbers[0].get_element_type()
    return op.range(*(cast(number, kind) for number in numbers), _name(kind))


def _arange(start: Value, end: Value, step: Value, dtype: Int | None = None) -> Any:
    numbers = [reshape(tensor(number), ()) for number in (start, end, step)]
    is_float = any(number.get_element_type().is_real() for number in numbers)
    kind = ov.Type.f32 if is_float else ov.Type.i64
    return in_type(
        op.range(*(cast(number, kind) for number in numbers), _name(kind)).output(0), dtype
    )


def _name(kind: Any) -> str:
    return str(kind.to_string())


def _lin_space(start: Tensor, end: Tensor, steps: Int, dtype: Int | None = None) -> Any:
    first, last = (cast(reshape(bound, ()), ov.Type.f32) for bound in (start, end))
    positions = op.range(op.constant(0.0), op.constant(float(steps)), op.constant(1.0), "f32")
    step = op.divide(op.subtract(last, first), like(max(steps - 1, 1), first))
    return in_type(op.add(op.multiply(positions, step), first).output(0), dtype)


def _eye(n: Int, m: Int, dtype: Int) -> Any:
    kind = element_type(dtype)
    return op.eye(op.constant(n), op.constant(m), op.constant(0), _name(kind))


def _to_tensor(value: Value, dtype: Int | None = None) -> Any:
    return in_type(tensor(value), dtype)


def _to_number(x: Value, dtype: Value = None) -> Any:
    """Return a Python number if it is known, else a tensor of rank 0."""
    array = known(x)
    return reshape(tensor(x), ()) if array is None else array.ravel()[0].item()


def _to_tuple(x: Tensor) -> Any:
    array = known(x)
    if array is not None:
        return tuple(array.ravel().tolist())
    if rank(x) != 1 or dims(x)[0] < 0:
        raise UnsupportedTensor("a tensor whose number of elements is open")
    return tuple(reshape(part, ()) for part in op.split(x, op.constant(0), dims(x)[0]).outputs())


def _meshgrid(inputs: Value, indexing: Value = "xy") -> Any:
    tensors = [tensor(value) for value in inputs]
    order = list(range(len(tensors)))
    if INDEXING.name("indexing", indexing, "ij", "xy") == "xy" and len(tensors) > 1:
        order[:2] = [1, 0]
    sizes = op.concat([sizes_of(tensors[axis]) for axis in order], 0)
    grids = []
    for axis, values in enumerate(tensors):
        shape = [1] * len(tensors)
        shape[order.index(axis)] = -1
        grids.append(op.broadcast(reshape(values, shape), sizes))
    return tuple(grids)


_FILLED_WITH_0, _FILLED_WITH_1 = (partial(_filled_like, number) for number in (0, 1))

OPERATORS: dict[str, Operator] = {
    **dict.fromkeys(("FillScalar", "FillTensor", "FillV2"), _full),
    **dict.fromkeys(("Fills", "FullLike"), _full_like),
    **dict.fromkeys(("LinSpace", "LinSpaceExt"), _lin_space),
    **dict.fromkeys(("ListToTensor", "ScalarToTensor", "TupleToTensor"), _to_tensor),
    **dict.fromkeys(("OnesLike", "OnesLikeExt"), _FILLED_WITH_1),
    **dict.fromkeys(("TensorToList", "TensorToTuple"), _to_tuple),
    **dict.fromkeys(("ZerosLike", "ZerosLikeExt"), _FILLED_WITH_0),
    "Arange": _arange,
    "Eps": lambda x: op.broadcast(like(1.1920929e-07, tensor(x)), sizes_of(tensor(x))),
    "Eye": _eye,
    "Fill": _fill,
    "Meshgrid": _meshgrid,
    "NewFull": _new_full,
    "NewOnes": partial(_new_filled, 1),
    "NewZeros": partial(_new_filled, 0),
    "Ones": partial(_filled, 1),
    "Range": _range,
    "Rank": lambda x: rank(tensor(x)),
    "TensorToScalar": _to_number,
    "Zeros": partial(_filled, 0),
}
