"""Python's arithmetic on sizes: numbers, tuples, comparisons; and the order of effects."""

from collections.abc import Callable
from functools import partial, reduce
from math import prod
from typing import Any

import openvino as ov
from openvino import opset16 as op

from mindspore_serving.mindir.operators import integers
from mindspore_serving.mindir.operators.binary import Build
from mindspore_serving.mindir.operators.shape import shape_of
from mindspore_serving.mindir.operators.types import as_float, common, element_type
from mindspore_serving.mindir.tensors import (
    Int,
    Operator,
    Tensor,
    UnsupportedTensor,
    cast,
    dims,
    ints_of,
    known,
    rank,
    sizes_of,
    tensor,
)
from mindspore_serving.mindir.values import Value, is_number, read


def _scalar(numbers: Callable[[Any, Any], Any], build: Build, x: Value, y: Value) -> Any:
    """Apply an operator to two numbers, such as sizes; the result is known if both are."""
    if is_number(x) and is_number(y):
        return numbers(x, y)
    return build(*common(x, y))


def _scalar_cast(input_x: Value, input_y: Int) -> Any:
    """Convert a number to the Python type that corresponds to a data type."""
    array, named = known(input_x), element_type(input_y)
    kind = bool if named == ov.Type.boolean else float if named.is_real() else int
    if array is not None and array.size == 1:
        return kind(array.ravel()[0])
    if kind is bool:
        raise UnsupportedTensor("a boolean that depends on the data")
    return cast(tensor(input_x), ov.Type.i64 if kind is int else ov.Type.f32)


_NUMBERS: dict[str, tuple[Callable[[Any, Any], Any], Build]] = {
    "ScalarAdd": (lambda x, y: x + y, op.add),
    "ScalarDiv": (lambda x, y: x / y, lambda x, y: op.divide(as_float(x), as_float(y))),
    "ScalarEq": (lambda x, y: x == y, integers.equal),
    "ScalarFloorDiv": (lambda x, y: x // y, integers.floor_div),
    "ScalarGe": (lambda x, y: x >= y, integers.greater_equal),
    "ScalarGt": (lambda x, y: x > y, integers.greater),
    "ScalarLe": (lambda x, y: x <= y, integers.less_equal),
    "ScalarLt": (lambda x, y: x < y, integers.less),
    "ScalarMax": (max, op.maximum),
    "ScalarMin": (min, op.minimum),
    "ScalarMod": (lambda x, y: x % y, integers.floor_mod),
    "ScalarMul": (lambda x, y: x * y, op.multiply),
    "ScalarPow": (lambda x, y: x**y, integers.power),
    "ScalarSub": (lambda x, y: x - y, op.subtract),
}


def _equal(first: Value, second: Value) -> Any:
    """Compare numbers, texts, None and tuples of them; a tensor if it depends on the data."""
    first, second = read(first), read(second)
    if isinstance(first, tuple) and isinstance(second, tuple):
        return len(first) == len(second) and reduce(_and, map(_equal, first, second), True)
    if _is_plain(first) and _is_plain(second):
        return first == second
    if not (_is_scalar(first) and _is_scalar(second)):
        return False
    arrays = known(first), known(second)
    if arrays[0] is not None and arrays[1] is not None:
        return bool(arrays[0] == arrays[1])
    return op.equal(*common(first, second)).output(0)


def _is_plain(value: Value) -> bool:
    return value is None or isinstance(value, str) or is_number(value)


def _is_scalar(value: Value) -> bool:
    """Return whether `value` is a single number.  Raises Unsupported for a larger tensor."""
    if is_number(value):
        return True
    if _is_plain(value) or isinstance(value, tuple):
        return False
    if rank(tensor(value)):
        raise UnsupportedTensor("a tensor in place of a number")
    return True


def _and(x: Value, y: Value) -> Any:
    if isinstance(x, bool) or isinstance(y, bool):
        first, second = (x, y) if isinstance(x, bool) else (y, x)
        return second if first else False
    return op.logical_and(_boolean(x), _boolean(y)).output(0)


def _or(x: Value, y: Value) -> Any:
    return _not(_and(_not(x), _not(y)))


def _not(x: Value) -> Any:
    return not x if is_number(x) else op.logical_not(_boolean(x)).output(0)


def _boolean(x: Value) -> Any:
    return cast(tensor(x), ov.Type.boolean)


def _in(element: Value, sequence: Value) -> Any:
    return reduce(_or, (_equal(element, part) for part in read(sequence)), False)


def _is(x: Value, y: Value) -> Any:
    """Compare by identity: numbers must be equal and of the same Python type."""
    if _is_scalar(x) and _is_scalar(y) and _is_boolean(x) != _is_boolean(y):
        return False
    return _equal(x, y)


def _is_boolean(x: Value) -> bool:
    return bool(tensor(x).get_element_type() == ov.Type.boolean)


def _get_item(sequence: Value, index: Int) -> Value:
    sequence = read(sequence)
    if not isinstance(sequence, tuple):
        raise UnsupportedTensor(f"item {index} of what is no tuple, but one result")
    return sequence[index]


def _length(sequence: Value) -> Any:
    value = read(sequence)
    return len(value) if isinstance(value, tuple) else dims(tensor(value))[0]


def _size(x: Tensor) -> Any:
    sizes = dims(x)
    if -1 in sizes:
        return op.reduce_prod(sizes_of(x), ints_of([0]), False)
    return prod(sizes)


def _part(sequence: Value, start: Int, stop: Int, step: Int = 1) -> Value:
    return sequence[start:stop:step]


def _times(sequence: Value, count: Int) -> Value:
    return sequence * count


def _make_range(*numbers: Value) -> Value:
    arrays = [known(number) for number in numbers]
    if any(array is None for array in arrays):
        raise UnsupportedTensor("a range of Python that depends on the data")
    return tuple(range(*(int(array.ravel()[0]) for array in arrays if array is not None)))


_ITEMS = ("ListGetItem", "RealListGetItem", "RealTupleGetItem", "TupleGetItem")
MOVERS: dict[str, Operator] = {
    **dict.fromkeys(("MakeList", "MakeTuple", "make_list", "make_tuple"), lambda *parts: parts),
    **dict.fromkeys(("list_to_tuple", "tuple_to_list"), lambda value: value),
    **dict.fromkeys((*_ITEMS, "list_getitem", "tuple_getitem"), _get_item),
    "Depend": lambda value, *_: value,
    "ListAppend": lambda sequence, value: (*sequence, value),
    "SequenceAdd": lambda first, second: (*first, *second),
    "SequenceMul": _times,
    "SequenceSlice": _part,
    "Shape": shape_of,
    "Size": _size,
    "TensorShape": lambda x: sizes_of(tensor(x)),
    "make_range": _make_range,
    "sequence_len": _length,
}
"""Those that read no tensor."""

OPERATORS: dict[str, Operator] = {
    **MOVERS,
    **{name: partial(_scalar, *row) for name, row in _NUMBERS.items()},
    **dict.fromkeys(("list_equal", "string_eq", "tuple_equal"), _equal),
    **dict.fromkeys(("BoolNot", "bool_not"), _not),
    "BoolAnd": _and,
    "BoolOr": _or,
    "InSequence": _in,
    "ScalarBool": lambda x: bool(x) if is_number(x) else _boolean(x),
    "ScalarCast": _scalar_cast,
    "ScalarNe": lambda x, y: _not(_equal(x, y)),
    "ScalarUsub": lambda x: -x if is_number(x) else op.negative(tensor(x)),
    "is_": _is,
    "is_not": lambda x, y: _not(_is(x, y)),
}
