"""Numbers in the element type that a model wants, where nothing is lost but a float's rounding.

Knows no model and no protocol.  Plain numbers, of JSON, have no type: 1 and 1.0 are the same.  An
array has one, which says what its numbers are; but int64 is also what Python makes of any int.
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
_TO_INFINITY = {  # the least double that the type rounds to infinity
    np.dtype("f2"): 65520.0,
    np.dtype("f4"): (2 - 2.0**-24) * 2.0**127,
    _FLOAT64: np.inf,
}
_FEW = 64  # numbers, that Python compares in less time than numpy needs to begin


def cast(array: Array, wanted: DType) -> Array:
    """`array` as `wanted`: integers that fit, floats rounded to nearest, an int64 array as floats
    if they are the same numbers.  Raises InvalidInputs with the reason for anything else.
    """
    given, target = array.dtype.kind, wanted.kind
    if given in "iu" and target in "iu":
        _check_range(array, wanted)
        return array.astype(wanted)
    if given == target == "f":
        return _rounded(array, wanted)
    if array.dtype == _INT64 and target == "f":
        _check_exact(array, wanted)
        return array.astype(wanted)
    raise InvalidInputs(f"an array of {array.dtype} is not cast to {wanted}")


def from_plain(flat: list[Any], kinds: AbstractSet[type], wanted: DType) -> Array | None:
    """Plain numbers, ints and floats as `kinds` says, as `wanted`; None if they do not fit.  NaN
    and infinities are floats like any others.
    """
    if wanted.kind == "f":
        return _to_floats(flat, wanted)
    if wanted.kind not in "iu":
        return None
    if float in kinds:
        if not all(map(_is_whole, flat)):
            return None
        flat = list(map(int, flat))
    least, most = _RANGES[wanted]
    if min(flat) < least or max(flat) > most:
        return None
    return np.array(flat, wanted)


def with_missing(array: Array) -> Array:
    """An array of objects that are None and Python's numbers as float64, None as NaN; any other
    array as it is.
    """
    kinds = set(map(type, array.flat)) if array.dtype == object else set()
    if type(None) not in kinds or not kinds <= {type(None), int, float}:
        return array
    try:
        return array.astype(_FLOAT64)
    except OverflowError:  # an int that is no double
        return array


def _to_floats(flat: list[Any], wanted: DType) -> Array | None:
    limit = _TO_INFINITY[wanted]
    try:
        if len(flat) < _FEW and -limit < min(flat) <= max(flat) < limit:
            return np.array(flat, wanted)
        doubles = np.array(flat, _FLOAT64)
    except OverflowError:  # an int that is no double
        return None
    if -limit < doubles.min() <= doubles.max() < limit:
        return doubles.astype(wanted)
    is_lost = np.isfinite(doubles) & (np.abs(doubles) >= limit)
    return None if is_lost.any() else doubles.astype(wanted)


def _is_whole(number: float) -> bool:
    return type(number) is int or number.is_integer()


def _check_range(array: Array, wanted: DType) -> None:
    if array.size == 0 or np.can_cast(array.dtype, wanted):
        return
    least, most = _RANGES[wanted]
    for number in (int(array.min()), int(array.max())):
        if not least <= number <= most:
            raise InvalidInputs(f"{number} is out of the range of {wanted}")


def _rounded(array: Array, wanted: DType) -> Array:
    with np.errstate(over="ignore"):
        result = array.astype(wanted)
    if wanted.itemsize < array.dtype.itemsize:
        lost = np.isinf(result) & np.isfinite(array)
        if lost.any():
            raise InvalidInputs(f"{array[lost].flat[0]} is out of the range of {wanted}")
    return result


def _check_exact(array: Array, wanted: DType) -> None:
    """Beyond `limit` not every integer is a float of that type."""
    limit = 2 ** (np.finfo(wanted).nmant + 1)
    number = max(int(array.min(initial=0)), int(array.max(initial=0)), key=abs)
    if abs(number) > limit:
        raise InvalidInputs(
            f"not every integer like {number} is a {wanted}; send floats if rounding is right"
        )
