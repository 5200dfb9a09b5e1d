"""Change of the rate of sound.  Knows no format and no file."""

from math import gcd

import numpy as np
import numpy.typing as npt

_TAPS = 16  # on each side of a sample, of the filter that changes the rate
_CHUNK = 1 << 15  # samples that are computed together


def resample(values: npt.NDArray[np.float32], rate: int, target: int) -> npt.NDArray[np.float32]:
    """Return samples at `target` of those at `rate`, by a windowed sinc."""
    if rate == target or not len(values):
        return values
    common = gcd(rate, target)
    up, down = target // common, rate // common
    half = int(np.ceil(_TAPS * max(1.0, rate / target)))
    padded = np.pad(values, (half, half + 1))
    offsets = np.arange(-half + 1, half + 1)
    taps = _filter(offsets - np.arange(up)[:, None] / up, half, min(1.0, target / rate))
    outputs = np.empty(-(-len(values) * up // down), np.float32)
    for begin in range(0, len(outputs), _CHUNK):
        numbers = np.arange(begin, min(begin + _CHUNK, len(outputs)), dtype=np.int64) * down
        windows = padded[(numbers // up)[:, None] + offsets + half]
        outputs[begin : begin + _CHUNK] = np.einsum("nt,nt->n", windows, taps[numbers % up])
    return outputs


def _filter(
    distances: npt.NDArray[np.float64], half: int, cutoff: float
) -> npt.NDArray[np.float32]:
    """Return a sinc at `distances` in samples, within Hann's window of `half` to each side."""
    window = 0.5 + 0.5 * np.cos(np.pi * np.clip(distances / half, -1, 1))
    taps: npt.NDArray[np.float64] = cutoff * np.sinc(cutoff * distances) * window
    return taps.astype(np.float32)
