"""Operators of numbers that Python computed with, such as sizes."""

from collections.abc import Callable
from functools import partial
from typing import Any

import openvino as ov
from openvino import opset16 as op

from mindspore_serving.mindir.operators import integers
from mindspore_serving.mindir.operators.binary import Build
from mindspore_serving.mindir.operators.types import as_float, common, element_type
from mindspore_serving.mindir.tensors import (
    Int,
    Operator,
    Unsupported,
    cast,
    known,
    tensor,
)
from mindspore_serving.mindir.values import Value, is_number


def _scalar(numbers: Callable[[Any, Any], Any], build: Build, x: Value, y: Value) -> Any:
    """An operator of two numbers, such as sizes: known where both are."""
    if is_number(x) and is_number(y):
        return numbers(x, y)
    return build(*common(x, y))


def _scalar_cast(input_x: Value, input_y: Int) -> Any:
    """A number as another type of Python, which a data type stands for."""
    array, named = known(input_x), element_type(input_y)
    kind = bool if named == ov.Type.boolean else float if named.is_real() else int
    if array is not None and array.size == 1:
        return kind(array.ravel()[0])
    if kind is bool:
        raise Unsupported("a boolean that depends on the data")
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


OPERATORS: dict[str, Operator] = {
    **{name: partial(_scalar, *row) for name, row in _NUMBERS.items()},
    "ScalarBool": lambda x: bool(x) if is_number(x) else cast(tensor(x), ov.Type.boolean),
    "ScalarCast": _scalar_cast,
    "ScalarUsub": lambda x: -x if is_number(x) else op.negative(tensor(x)),
}
