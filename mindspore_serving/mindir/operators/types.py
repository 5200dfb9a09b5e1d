"""Element types: MindSpore's numbers for them, and the common type of two inputs."""

from typing import Any

import openvino as ov

from mindspore_serving.mindir.tensors import UnsupportedTensor, cast, rank, scalar, tensor
from mindspore_serving.mindir.values import Value, is_number, read

_T = ov.Type
# MindSpore's TypeId, as dtypes are written in a file.
_TYPES = {
    30: _T.boolean,
    31: _T.i64,
    32: _T.i8,
    33: _T.i16,
    34: _T.i32,
    35: _T.i64,
    37: _T.u8,
    38: _T.u16,
    39: _T.u32,
    40: _T.u64,
    41: _T.f32,
    42: _T.f16,
    43: _T.f32,
    44: _T.f64,
    45: _T.bf16,
}
_REFUSED = {
    36: "uint",
    46: "float8_e4m3fn",
    47: "float8_e5m2",
    48: "hifloat8",
    49: "double",
    50: "complex",
    51: "complex64",
    52: "complex128",
    53: "int4",
    54: "gluint",
}
# From the one that gives way to the one that stays.
_ORDER = [
    *(_T.boolean, _T.u8, _T.i8, _T.u16, _T.i16, _T.u32, _T.i32, _T.u64, _T.i64),
    *(_T.bf16, _T.f16, _T.f32, _T.f64),
]


def element_type(number: Value) -> Any:
    """Return the OpenVINO type of MindSpore's type number."""
    kind = _TYPES.get(number) if isinstance(number, int) else None
    if kind is None:
        name = f" ({_REFUSED[number]})" if number in _REFUSED else ""
        raise UnsupportedTensor(f"data type {number!r}{name}, which OpenVINO does not compute with")
    return kind


def in_type(value: Any, number: int | None) -> Any:
    """Cast `value` to the type that MindSpore has `number` for, unless that is None."""
    return value if number is None else cast(value, element_type(number))


def is_float(value: Any) -> bool:
    """Return whether `value` has floats."""
    return bool(value.get_element_type().is_real())


def as_float(value: Any) -> Any:
    """Cast integers and booleans to float32; floats stay."""
    return value if is_float(value) else cast(value, _T.f32)


def common(first: Value, second: Value) -> tuple[Any, Any]:
    """Cast two inputs to tensors of a common type.

    A number takes the type of a tensor, unless it is a float and the tensor has integers.  Two
    tensors take the higher of their types.
    """
    if is_number(first) and is_number(second):
        return _promoted(tensor(first), tensor(second))
    if is_number(second):
        value = tensor(first)
        return _with_number(value, read(second))
    if is_number(first):
        value, number = _with_number(tensor(second), read(first))
        return number, value
    return _promoted(tensor(first), tensor(second))


def _with_number(value: Any, number: float) -> tuple[Any, Any]:
    if isinstance(number, float) and not is_float(value):
        value = cast(value, _T.f32)
    elif value.get_element_type() == _T.boolean and not isinstance(number, bool):
        value = cast(value, _T.i64)
    return value, scalar(number, value.get_element_type())


def _promoted(first: Any, second: Any) -> tuple[Any, Any]:
    kind, other = first.get_element_type(), second.get_element_type()
    if kind == other:
        return first, second
    kind = max(kind, other, key=_ORDER.index)
    if (
        rank(first) == 0
        and rank(second) > 0
        and first.get_element_type().is_real() == is_float(second)
    ):
        kind = other
    return cast(first, kind), cast(second, kind)
