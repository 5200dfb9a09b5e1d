"""Tuples, the order of effects, and weights that a graph writes."""

from collections.abc import Callable
from typing import Any

from openvino import opset16 as op

from mindspore_serving.mindir.operators.shape import shape_of
from mindspore_serving.mindir.tensors import (
    Int,
    Operator,
    Tensor,
    Unsupported,
    cast,
    dims,
    ints_of,
    known,
    sizes_of,
    tensor,
)
from mindspore_serving.mindir.values import Value, Variable, read


def _make_tuple(*parts: Value) -> Value:
    return parts


def _get_item(sequence: Value, index: Int) -> Value:
    """Also of a tensor that stands for a tuple of numbers."""
    sequence = read(sequence)
    if isinstance(sequence, tuple):
        return sequence[index]
    return op.gather(tensor(sequence), ints_of([index]), op.constant(0))


def _first(value: Value, *_: Value) -> Value:
    return value


def _load(value: Value, *_: Value) -> Value:
    return read(value)


def _same(value: Value) -> Value:
    return value


def _assign(change: Callable[[Any, Any], Any]) -> Operator:
    def convert(variable: Value, value: Tensor) -> Any:
        if not isinstance(variable, Variable) or not variable.is_written:
            raise Unsupported("a write to what is no weight")
        current = tensor(variable)
        variable.current = tensor(change(current, cast(value, current.get_element_type())))
        return variable.current

    return convert


def _length(sequence: Value) -> Any:
    value = read(sequence)
    return len(value) if isinstance(value, tuple) else dims(tensor(value))[0]


def _tensor_shape(x: Tensor) -> Any:
    return sizes_of(x)


def _size(x: Tensor) -> Any:
    sizes = dims(x)
    if -1 in sizes:
        return op.reduce_prod(sizes_of(x), ints_of([0]), False)
    total = 1
    for size in sizes:
        total *= size
    return total


def _joined(first: Value, second: Value) -> Value:
    return (*first, *second)


def _appended(sequence: Value, value: Value) -> Value:
    return (*sequence, value)


def _part(sequence: Value, start: Int, stop: Int, step: Int = 1) -> Value:
    return sequence[start:stop:step]


def _times(sequence: Value, count: Int) -> Value:
    return sequence * count


def _make_range(*numbers: Value) -> Value:
    arrays = [known(number) for number in numbers]
    if any(array is None for array in arrays):
        raise Unsupported("a range of Python that depends on the data")
    return tuple(range(*(int(array.ravel()[0]) for array in arrays if array is not None)))


OPERATORS: dict[str, Operator] = {
    "Assign": _assign(lambda _, value: value),
    "AssignAdd": _assign(lambda current, value: op.add(current, value).output(0)),
    "AssignSub": _assign(lambda current, value: op.subtract(current, value).output(0)),
    "Depend": _first,
    "ListAppend": _appended,
    "ListGetItem": _get_item,
    "Load": _load,
    "MakeList": _make_tuple,
    "MakeTuple": _make_tuple,
    "RealListGetItem": _get_item,
    "RealTupleGetItem": _get_item,
    "SequenceAdd": _joined,
    "SequenceMul": _times,
    "SequenceSlice": _part,
    "Shape": shape_of,
    "Size": _size,
    "TensorShape": _tensor_shape,
    "TupleGetItem": _get_item,
    "list_getitem": _get_item,
    "list_to_tuple": _same,
    "make_list": _make_tuple,
    "make_range": _make_range,
    "make_tuple": _make_tuple,
    "sequence_len": _length,
    "tuple_getitem": _get_item,
    "tuple_to_list": _same,
}
WRITERS = frozenset({"Assign", "AssignAdd", "AssignSub"})
