"""Log-mel features of sound, as models of speech read them.  Knows no model and no file."""

from functools import cache
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Sound: TypeAlias = npt.NDArray[np.float32]

RATE = 16_000  # samples per second
SECONDS = 30  # of a piece, which is what a model reads at once
SAMPLES = RATE * SECONDS
HOP, WINDOW = 160, 400  # samples between frames, and of one
FRAMES = SAMPLES // HOP
_TRANSFORMED, _RAISED = 512, 0.97  # samples of NeMo's frames; high frequencies are raised
_BREAK, _STEP = 1000.0, np.log(6.4) / 27  # of the mel scale: linear up to 1 kHz, then logarithmic


def log_mel(sound: Sound, num_bins: int) -> npt.NDArray[np.float32]:
    """Return the features of up to 30 s, float32 [num_bins, FRAMES]; silence follows the sound."""
    padded = np.zeros(SAMPLES, np.float32)
    padded[: len(sound)] = sound[:SAMPLES]
    framed = np.pad(padded, WINDOW // 2, mode="reflect")
    frames = np.lib.stride_tricks.sliding_window_view(framed, WINDOW)[::HOP][:FRAMES]
    spectrum = np.fft.rfft(frames * _window(), axis=-1)
    power = spectrum.real**2 + spectrum.imag**2
    levels = np.log10(np.maximum(_filters(num_bins, WINDOW) @ power.T, 1e-10))
    levels = np.maximum(levels, levels.max() - 8.0)
    return np.ascontiguousarray((levels + 4.0) / 4.0, np.float32)


def normalised_log_mel(sound: Sound, num_bins: int) -> npt.NDArray[np.float32]:
    """Return the features of whole frames of a sound as NeMo's models read them, [frames, bins].

    High frequencies are raised, and each bin has mean 0 and deviation 1.  At least two frames are
    needed.
    """
    raised = sound.astype(np.float64)
    raised[1:] -= _RAISED * raised[:-1]
    padded = np.pad(raised, _TRANSFORMED // 2)
    frames = np.lib.stride_tricks.sliding_window_view(padded, _TRANSFORMED)[::HOP]
    window = np.pad(np.hanning(WINDOW), (_TRANSFORMED - WINDOW) // 2)
    spectrum = np.fft.rfft(frames[: len(sound) // HOP] * window, axis=-1)
    power = spectrum.real**2 + spectrum.imag**2
    levels = np.log(power @ _filters(num_bins, _TRANSFORMED).T + 2**-24)
    deviation = levels.std(0, ddof=1)
    scaled: npt.NDArray[np.float32] = ((levels - levels.mean(0)) / (deviation + 1e-5)).astype("f4")
    return scaled


def features_of(sound: Sound, num_bins: int) -> npt.NDArray[np.float32]:
    """Return what a model reads of a piece: `log_mel`, and 0 after the sound.

    Whisper's reference reads 0 there, too, and makes fewer mistakes so than with the level of
    silence, which transformers computes.
    """
    features = log_mel(sound, num_bins)
    features[:, len(sound) // HOP :] = 0
    return features


@cache
def _window() -> npt.NDArray[np.float64]:
    window: npt.NDArray[np.float64] = np.sin(np.pi * np.arange(WINDOW) / WINDOW) ** 2
    return window  # Hann's, periodic


@cache
def _filters(num_bins: int, length: int) -> npt.NDArray[np.float64]:
    """Return triangles on the mel scale, each of area 1, [num_bins, length // 2 + 1]."""
    frequencies = np.linspace(0, RATE / 2, length // 2 + 1)
    edges = _to_hertz(np.linspace(0, _to_mel(RATE / 2), num_bins + 2))
    rising = (frequencies - edges[:-2, None]) / np.diff(edges)[:-1, None]
    falling = (edges[2:, None] - frequencies) / np.diff(edges)[1:, None]
    triangles = np.maximum(0, np.minimum(rising, falling))
    scaled: npt.NDArray[np.float64] = triangles * (2 / (edges[2:] - edges[:-2]))[:, None]
    return scaled


def _to_mel(hertz: float) -> float:
    linear = hertz * 3 / 200
    return linear if hertz < _BREAK else 15 + float(np.log(hertz / _BREAK) / _STEP)


def _to_hertz(mels: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    hertz: npt.NDArray[np.float64] = _BREAK * np.exp(_STEP * (mels - 15))
    hertz[mels < 15] = mels[mels < 15] * 200 / 3
    return hertz
