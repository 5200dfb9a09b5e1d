"""Rounding groups of weights to integers of 8 or 4 bits.  Plain arithmetic on arrays.

Groups are float32 [out, groups, inputs of a group].  Their scales are float16 [out, groups].
"""

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Floats: TypeAlias = npt.NDArray[np.float32]
Scales: TypeAlias = npt.NDArray[np.float16]


def round_8(grouped: Floats) -> tuple[npt.NDArray[Any], Scales]:
    """int8 from -127 to 127, and scales."""
    scales = _f16(np.abs(grouped).max(-1) / 127)
    return _rounded(grouped, scales, -127, 127), scales


def round_4(
    grouped: Floats, *, has_zeros: bool = False
) -> tuple[npt.NDArray[np.uint8], Scales, npt.NDArray[np.uint8] | None]:
    """Four bits in a byte, scales, and zeros or None."""
    scales, zeros = _with_zeros(grouped) if has_zeros else (_symmetric(grouped), None)
    return _integers(grouped, scales, zeros), scales, zeros


def _symmetric(grouped: Floats) -> Scales:
    """What is largest in a group becomes -8, whatever its sign: all sixteen values are used."""
    high, low = grouped.max(-1), grouped.min(-1)
    return _f16(np.where(high > -low, high, low) / -8)


def _with_zeros(grouped: Floats) -> tuple[Scales, npt.NDArray[np.uint8]]:
    """From the least to the largest of a group, and zero, which is exact."""
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
    found = _rounded(grouped, scales, -shift, 15 - shift) + shift
    return found.view(np.uint8)


def _rounded(grouped: Floats, scales: Scales, low: Any, high: Any) -> npt.NDArray[np.int8]:
    wide = scales.astype(np.float32)[..., None]
    inverse = np.divide(1, wide, out=np.zeros_like(wide), where=wide != 0)
    values = np.rint(grouped * inverse)
    integers: npt.NDArray[np.int8] = np.clip(values, low, high, out=values).astype(np.int8)
    return integers


def _f16(scales: Floats) -> Scales:
    """As float16; scales that would become zero become the least number, to keep the group."""
    least = np.float32(2.0**-24)
    tiny = (scales != 0) & (np.abs(scales) < least)
    return np.where(tiny, np.copysign(least, scales), scales).astype(np.float16)
