"""Tuples, and the order of effects: values go through these operators as they are."""

from typing import Any

from openvino import opset16 as op

from mindspore_serving.mindir.operators.shape import shape_of
from mindspore_serving.mindir.tensors import (
    Int,
    Operator,
    Tensor,
    Unsupported,
    dims,
    ints_of,
    known,
    sizes_of,
    tensor,
)
from mindspore_serving.mindir.values import Value, read


def _get_item(sequence: Value, index: Int) -> Value:
    sequence = read(sequence)
    if not isinstance(sequence, tuple):
        raise Unsupported(f"item {index} of what is no tuple, but one result")
    return sequence[index]


def _length(sequence: Value) -> Any:
    value = read(sequence)
    return len(value) if isinstance(value, tuple) else dims(tensor(value))[0]


def _size(x: Tensor) -> Any:
    sizes = dims(x)
    if -1 in sizes:
        return op.reduce_prod(sizes_of(x), ints_of([0]), False)
    total = 1
    for size in sizes:
        total *= size
    return total


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
    **dict.fromkeys(("MakeList", "MakeTuple", "make_list", "make_tuple"), lambda *parts: parts),
    **dict.fromkeys(("list_to_tuple", "tuple_to_list"), lambda value: value),
    "Depend": lambda value, *_: value,
    "ListAppend": lambda sequence, value: (*sequence, value),
    "ListGetItem": _get_item,
    "RealListGetItem": _get_item,
    "RealTupleGetItem": _get_item,
    "SequenceAdd": lambda first, second: (*first, *second),
    "SequenceMul": _times,
    "SequenceSlice": _part,
    "Shape": shape_of,
    "Size": _size,
    "TensorShape": lambda x: sizes_of(tensor(x)),
    "TupleGetItem": _get_item,
    "list_getitem": _get_item,
    "make_range": _make_range,
    "sequence_len": _length,
    "tuple_getitem": _get_item,
}
