"""Cutting of a recording into pieces of up to 30 s at its quiet places.  Knows no model."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mindspore_serving.llm.sounds.decoding import Samples
from mindspore_serving.llm.sounds.features import RATE, SAMPLES

_FRAME = RATE // 50  # samples whose level is measured together
_SEARCHED = 12 * RATE  # at the end of a piece, for a place to cut
_SMOOTHED = 15  # frames: the quiet place is about as long
SILENT = 10 ** (-60 / 20)  # a frame with nothing louder is silent, in parts of full scale
_LEAD = RATE // 5  # samples of silence that are kept before sound


@dataclass(frozen=True, slots=True)
class SoundPiece:
    """Samples `begin` to `end` of a recording."""

    begin: int
    end: int

    @property
    def start(self) -> float:
        """Seconds before it."""
        return self.begin / RATE

    @property
    def seconds(self) -> float:
        return (self.end - self.begin) / RATE


def cut(samples: Samples) -> list[SoundPiece]:
    """Return the pieces of a recording, in order; silence between them belongs to none."""
    peaks = _levels(samples)
    loud = np.flatnonzero(peaks > SILENT)
    pieces: list[SoundPiece] = []
    begin = 0
    while begin < len(samples):
        at = np.searchsorted(loud, begin // _FRAME)
        if at == len(loud):
            break
        begin = max(begin, int(loud[at]) * _FRAME - _LEAD)
        end = len(samples)
        if end - begin > SAMPLES:
            end = _quietest(peaks, begin)
        pieces.append(SoundPiece(begin, end))
        begin = end
    return pieces


def _quietest(peaks: npt.NDArray[np.float32], begin: int) -> int:
    """Return where the piece from `begin` ends: the quietest place of its last seconds."""
    last = (begin + SAMPLES) // _FRAME
    first = last - _SEARCHED // _FRAME
    smooth = np.convolve(peaks[first:last], np.ones(_SMOOTHED), "valid")
    latest = len(smooth) - 1 - int(smooth[::-1].argmin())
    return (first + latest + _SMOOTHED // 2) * _FRAME


def _levels(samples: Samples) -> npt.NDArray[np.float32]:
    """Return the largest sample of each frame, in parts of full scale."""
    count = -(-len(samples) // _FRAME)
    whole = samples[: len(samples) // _FRAME * _FRAME].reshape(-1, _FRAME)
    peaks = np.zeros(count, np.float32)
    peaks[: len(whole)] = np.maximum(whole.max(-1), -whole.min(-1).astype(np.int32))
    if whole.size < len(samples):
        peaks[-1] = np.abs(samples[whole.size :].astype(np.int32)).max()
    return peaks / 32768
