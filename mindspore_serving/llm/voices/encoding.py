"""Samples to files of sound, piece by piece: a file can be sent while its text is spoken."""

import struct
from importlib.util import find_spec
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from mindspore_serving.core.speech_messages import SOUND_FORMATS
from mindspore_serving.errors import InvalidField
from mindspore_serving.extras import command
from mindspore_serving.llm.sounds.decoding import resample
from mindspore_serving.llm.voices.settings import Floats

PCM_RATE = 24_000  # that clients of OpenAI expect of plain samples
_UNKNOWN = 0xFFFFFFFF  # the size of a file of which the end is not known
_CODECS = {  # container, codec, rate or None for that of the voice, bits per second
    "mp3": ("mp3", "libmp3lame", None, 64_000),
    "opus": ("ogg", "libopus", 48_000, 48_000),
    "aac": ("adts", "aac", None, 64_000),
    "flac": ("flac", "flac", None, None),
}
_PLAIN = ("wav", "pcm")
_RATES = (8000, 11_025, 12_000, 16_000, 22_050, 24_000, 32_000, 44_100, 48_000)  # of all codecs


class SoundEncoder(Protocol):
    """Writer of a file of sound."""

    def add(self, samples: Floats) -> bytes:
        """Return the bytes that follow, with these samples."""

    def end(self) -> bytes:
        """Return the last bytes."""


def open_encoder(name: str, rate: int) -> SoundEncoder:
    """Return the encoder of a format for samples at `rate`.  Raises InvalidField."""
    if name not in SOUND_FORMATS:
        known = ", ".join(SOUND_FORMATS)
        raise InvalidField("format", f"is {name!r:.40}, expected one of {known}")
    if name in _PLAIN:
        return _Plain(name, rate)
    if find_spec("av") is None:
        install = command("audio")
        problem = f"is {name!r}, but this server writes only {' and '.join(_PLAIN)}; {install}"
        raise InvalidField("format", problem)
    return _Compressed(name, rate)


def to_integers(samples: Floats) -> npt.NDArray[np.int16]:
    """Return samples as integers of 16 bits."""
    integers: npt.NDArray[np.int16] = (samples * 32767.0).astype(np.int16)
    return integers


class _Plain:
    """Samples of 16 bits, with the header of a WAV file or without."""

    def __init__(self, name: str, rate: int) -> None:
        self._rate, self._target = rate, rate if name == "wav" else PCM_RATE
        self._header = _wav_header(rate) if name == "wav" else b""

    def add(self, samples: Floats) -> bytes:
        header, self._header = self._header, b""
        changed = np.clip(resample(samples, self._rate, self._target), -1.0, 1.0)
        return header + to_integers(changed).astype("<i2").tobytes()

    def end(self) -> bytes:
        return self._header


class _Written:
    """File that keeps what is written; it cannot seek, so the sizes in it are unknown."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def write(self, data: bytes) -> int:
        self._parts.append(bytes(data))
        return len(data)

    def take(self) -> bytes:
        parts, self._parts = self._parts, []
        return b"".join(parts)


class _Compressed:
    """A file that PyAV writes."""

    def __init__(self, name: str, rate: int) -> None:
        import av

        container, codec, target, bits = _CODECS[name]
        target = target or (rate if rate in _RATES else _RATES[-1])
        self._av, self._rate, self._file = av, rate, _Written()
        # Each packet is written at once, and a page of ogg has a tenth of a second.
        options = {"flush_packets": "1", **({"page_duration": "100000"} if name == "opus" else {})}
        self._container: Any = av.open(self._file, "w", format=container, container_options=options)
        self._stream: Any = self._container.add_stream(codec, rate=target, layout="mono")
        if bits is not None:
            self._stream.bit_rate = bits
        self._count = 0

    def add(self, samples: Floats) -> bytes:
        frame = self._av.AudioFrame.from_ndarray(
            to_integers(samples)[None], format="s16", layout="mono"
        )
        frame.sample_rate, frame.pts = self._rate, self._count
        self._count += len(samples)
        self._container.mux(self._stream.encode(frame))
        return self._file.take()

    def end(self) -> bytes:
        self._container.mux(self._stream.encode(None))
        self._container.close()
        return self._file.take()


def _wav_header(rate: int) -> bytes:
    form = struct.pack("<HHIIHH", 1, 1, rate, rate * 2, 2, 16)
    head = b"RIFF" + struct.pack("<I", _UNKNOWN) + b"WAVEfmt " + struct.pack("<I", len(form))
    return head + form + b"data" + struct.pack("<I", _UNKNOWN)
