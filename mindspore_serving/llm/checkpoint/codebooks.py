"""Codebooks of 4-bit and 8-bit floats: the value of every code."""

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Table: TypeAlias = npt.NDArray[np.float32]

# Quantiles of the normal distribution (NormalFloat: QLoRA, arXiv:2305.14314).
NF4 = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
    -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725,
    0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941,
    0.7229568362236023, 1.0,
)  # fmt: skip
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)  # magnitudes


def _table(exponent_bits: int, *, has_infinity: bool) -> Table:
    """Return the value of each byte: a sign, an exponent, and a fraction in the remaining bits."""
    fraction_bits = 7 - exponent_bits
    byte = np.arange(128)
    exponent, fraction = byte >> fraction_bits, byte & ((1 << fraction_bits) - 1)
    bias = (1 << (exponent_bits - 1)) - 1
    is_normal = exponent > 0
    steps = fraction + is_normal * (1 << fraction_bits)
    values = np.ldexp(steps.astype(np.float32), np.maximum(exponent, 1) - bias - fraction_bits)
    if has_infinity:
        largest = exponent == exponent.max()
        values[largest] = np.where(fraction[largest] == 0, np.inf, np.nan)
    else:
        values[-1] = np.nan
    both: Table = np.concatenate([values, -values]).astype(np.float32)
    return both


CODEBOOKS: dict[str, Table] = {
    "nf4": np.array(NF4, np.float32),
    "f4e2m1": np.array([*E2M1, *(-value for value in E2M1)], np.float32),
    "f8e4m3": _table(4, has_infinity=False),
    "f8e5m2": _table(5, has_infinity=True),
}
