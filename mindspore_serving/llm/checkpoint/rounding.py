"""Rounding of groups of weights to integers of 8 or 4 bits.  Plain arithmetic on arrays.

Groups are float32 [out, groups, inputs of a group], their scales float16 [out, groups].
"""

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Floats: TypeAlias = npt.NDArray[np.float32]
Scales: TypeAlias = npt.NDArray[np.float16]


def round_8(grouped: Floats) -> tuple[npt.NDArray[Any], Scales]:
    """Round to int8 from -127 to 127; return the integers and their scales."""
    scales = _f16(np.abs(grouped).max(-1) / 127)
    return _rounded(grouped, scales, -127, 127), scales


def round_4(
    grouped: Floats, *, has_zeros: bool = False
) -> tuple[npt.NDArray[np.uint8], Scales, npt.NDArray[np.uint8] | None]:
    """Round to 4 bits, one integer per byte; return integers, scales, and zeros or None."""
    scales, zeros = _with_zeros(grouped) if has_zeros else (_symmetric(grouped), None)
    return _integers(grouped, scales, zeros), scales, zeros


def _symmetric(grouped: Floats) -> Scales:
    """Return scales that map the weight of largest magnitude to -8.

    Its sign does not matter, as scales may be negative; so all sixteen integers are used.
    """
    high, low = grouped.max(-1), grouped.min(-1)
    return _f16(np.where(high > -low, high, low) / -8)


def _with_zeros(grouped: Floats) -> tuple[Scales, npt.NDArray[np.uint8]]:
    """Return scales from the smallest to the largest weight of a group, and its zero.

    The range includes 0, which is represented exactly.
    """
    high, low = np.maximum(grouped.max(-1), 0), np.minimum(grouped.min(-1), 0)
    scales = _f16((high - low) / 15)
    zeros = np.rint(np.divide(-low, scales, out=np.zeros_like(low), where=scales != 0))
    return scales, np.clip(zeros, 0, 15).astype(np.uint8)


def _integers(
    grouped: Floats, scales: Scales, zeros: npt.NDArray[np.uint8] | None
) -> npt.NDArray[np.uint8]:
    if zeros is None:
        return np.bitwise_and(_rounded(grouped, scales, -8, 7).view(np.uint8), 15, dtype=np.uint8)
    shift = zeros.astype(np.int8)[..., None]
    integers = _rounded(grouped, scales, -shift, 15 - shift) + shift
    return integers.view(np.uint8)


def _rounded(grouped: Floats, scales: Scales, low: Any, high: Any) -> npt.NDArray[np.int8]:
    wide = scales.astype(np.float32)[..., None]
    inverse = np.divide(1, wide, out=np.zeros_like(wide), where=wide != 0)
    values = np.rint(grouped * inverse)
    integers: npt.NDArray[np.int8] = np.clip(values, low, high, out=values).astype(np.int8)
    return integers


def _f16(scales: Floats) -> Scales:
    """Convert to float16; scales that would become zero become the smallest number instead.

    A scale of zero would set all weights of its group to zero.
    """
    smallest = np.float32(2.0**-24)
    tiny = (scales != 0) & (np.abs(scales) < smallest)
    return np.where(tiny, np.copysign(smallest, scales), scales).astype(np.float16)
