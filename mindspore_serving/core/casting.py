"""Conversion of numbers to the element type of a model's input, lossless but for rounding.

Plain numbers of JSON have no type: 1 and 1.0 are equal. An array has a type, which is respected;
but int64 is also what Python makes of any int.
"""

from collections.abc import Set as AbstractSet
from typing import Any, TypeAlias

import numpy as np

from mindspore_serving.errors import InvalidInputs

Array: TypeAlias = np.ndarray[Any, Any]
DType: TypeAlias = np.dtype[Any]

_INT64: DType = np.dtype("i8")
_FLOAT64: DType = np.dtype("f8")
_RANGES = {
    np.dtype(name): (int(np.iinfo(name).min), int(np.iinfo(name).max))
    for name in ("i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8")
}
_TO_INFINITY = {  # the smallest double that is rounded to infinity
    np.dtype("f2"): 65520.0,
    np.dtype("f4"): (2 - 2.0**-24) * 2.0**127,
    _FLOAT64: np.inf,
}
_MAX_IN_PYTHON = 64  # numbers that Python compares faster than numpy


def cast(array: Array, dtype: DType) -> Array:
    """Convert `array` to `dtype`: integers that fit, floats rounded to nearest.

    An int64 array becomes floats if these are the same numbers. Raises InvalidInputs with the
    reason for other conversions.
    """
    kind, target_kind = array.dtype.kind, dtype.kind
    if kind in "iu" and target_kind in "iu":
        _check_range(array, dtype)
        return array.astype(dtype)
    if kind == target_kind == "f":
        return _rounded(array, dtype)
    if array.dtype == _INT64 and target_kind == "f":
        _check_exact(array, dtype)
        return array.astype(dtype)
    raise InvalidInputs(f"an array of {array.dtype} is not cast to {dtype}")


def from_plain(flat: list[Any], types: AbstractSet[type], dtype: DType) -> Array | None:
    """Convert plain numbers, of the types `types`, to `dtype`; None if they do not fit.

    NaN and infinities are floats like others.
    """
    if dtype.kind == "f":
        return _to_floats(flat, dtype)
    if dtype.kind not in "iu":
        return None
    if float in types:
        if not all(map(_is_whole, flat)):
            return None
        flat = list(map(int, flat))
    lowest, highest = _RANGES[dtype]
    if min(flat) < lowest or max(flat) > highest:
        return None
    return np.array(flat, dtype)


def with_missing(array: Array) -> Array:
    """Convert an array of objects, numbers and None, to float64 with NaN for None.

    Other arrays are returned unchanged.
    """
    types = set(map(type, array.flat)) if array.dtype == object else set()
    if type(None) not in types or not types <= {type(None), int, float}:
        return array
    try:
        return array.astype(_FLOAT64)
    except OverflowError:  # an int beyond float64
        return array


def _to_floats(flat: list[Any], dtype: DType) -> Array | None:
    limit = _TO_INFINITY[dtype]
    try:
        if len(flat) < _MAX_IN_PYTHON and -limit < min(flat) <= max(flat) < limit:
            return np.array(flat, dtype)
        doubles = np.array(flat, _FLOAT64)
    except OverflowError:  # an int beyond float64
        return None
    if -limit < doubles.min() <= doubles.max() < limit:
        return doubles.astype(dtype)
    is_lost = np.isfinite(doubles) & (np.abs(doubles) >= limit)
    return None if is_lost.any() else doubles.astype(dtype)


def _is_whole(number: float) -> bool:
    return type(number) is int or number.is_integer()


def _check_range(array: Array, dtype: DType) -> None:
    if array.size == 0 or np.can_cast(array.dtype, dtype):
        return
    lowest, highest = _RANGES[dtype]
    for number in (int(array.min()), int(array.max())):
        if not lowest <= number <= highest:
            raise InvalidInputs(f"{number} is out of the range of {dtype}")


def _rounded(array: Array, dtype: DType) -> Array:
    with np.errstate(over="ignore"):
        result = array.astype(dtype)
    if dtype.itemsize < array.dtype.itemsize:
        lost = np.isinf(result) & np.isfinite(array)
        if lost.any():
            raise InvalidInputs(f"{array[lost].flat[0]} is out of the range of {dtype}")
    return result


def _check_exact(array: Array, dtype: DType) -> None:
    """Check that the integers are floats of this type: beyond `limit` some are not."""
    limit = 2 ** (np.finfo(dtype).nmant + 1)
    number = max(int(array.min(initial=0)), int(array.max(initial=0)), key=abs)
    if abs(number) > limit:
        raise InvalidInputs(
            f"not every integer like {number} is a {dtype}; send floats if they may be rounded"
        )
