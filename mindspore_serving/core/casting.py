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


def cast(array: Array, wanted: DType) -> Array:
    """`array` as `wanted`: integers that fit, floats rounded to nearest, an int64 array as floats
    if they are the same numbers.  Raises InvalidInputs with the reason for anything else."""
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
    """Plain numbers, ints and floats as `kinds` says, as `wanted`; None if they do not fit."""
    if wanted.kind == "f":
        return _to_floats(flat, wanted)
    if wanted.kind not in "iu":
        return None
    if float in kinds:
        if not all(map(_is_whole, flat)):
            return None
        flat = list(map(int, flat))
    limits = np.iinfo(wanted)
    if min(flat) < limits.min or max(flat) > limits.max:
        return None
    return np.array(flat, wanted)


def _to_floats(flat: list[Any], wanted: DType) -> Array | None:
    try:
        with np.errstate(over="ignore"):
            array = np.array(flat, wanted)
    except OverflowError:  # an int that is no double
        return None
    return array if np.isfinite(array).all() else None


def _is_whole(number: float) -> bool:
    return type(number) is int or number.is_integer()


def _check_range(array: Array, wanted: DType) -> None:
    if array.size == 0 or np.can_cast(array.dtype, wanted):
        return
    limits = np.iinfo(wanted)
    for number in (int(array.min()), int(array.max())):
        if not limits.min <= number <= limits.max:
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
