"""Formats of sound that a session takes, as samples of 16 bits.  Knows no event."""

import base64
import binascii
import io
import wave
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from mindspore_serving.errors import InvalidField

Samples: TypeAlias = npt.NDArray[np.int16]


@dataclass(frozen=True, slots=True)
class SampleFormat:
    """A format; `beta_name` is that of the older protocol.

    `table` has the samples of G.711's bytes; without one, samples are integers of 16 bits.
    """

    name: str
    beta_name: str
    rate: int
    table: Samples | None = None

    def to_object(self) -> dict[str, Any]:
        return {"type": self.name, **({"rate": self.rate} if self.table is None else {})}

    def decode(self, audio: str) -> Samples:
        """Return the samples in base64.  Raises InvalidField."""
        try:
            data = base64.b64decode(audio, validate=True)
        except (binascii.Error, ValueError):
            raise InvalidField("audio", "is no base64") from None
        if self.table is not None:
            return self.table[np.frombuffer(data, np.uint8)]
        if len(data) % 2:
            raise InvalidField("audio", f"has {len(data)} bytes, expected samples of 2 bytes")
        return np.frombuffer(data, "<i2")


def _mu_law() -> Samples:
    """Return the samples of G.711's bytes by the mu-law."""
    code = ~np.arange(256, dtype=np.uint8)
    steps = ((code & 0x0F).astype(np.int32) * 8 + 0x84) << ((code & 0x70) >> 4)
    return np.where(code & 0x80, 0x84 - steps, steps - 0x84).astype(np.int16)


def _a_law() -> Samples:
    """Return the samples of G.711's bytes by the A-law."""
    code = np.arange(256, dtype=np.uint8) ^ 0x55
    segment, steps = (code & 0x70) >> 4, (code & 0x0F).astype(np.int32) * 16
    values = np.where(segment, (steps + 0x108) << np.maximum(segment, 1) - 1, steps + 8)
    return np.where(code & 0x80, values, -values).astype(np.int16)


FORMATS = (
    SampleFormat("audio/pcm", "pcm16", 24_000),
    SampleFormat("audio/pcmu", "g711_ulaw", 8000, _mu_law()),
    SampleFormat("audio/pcma", "g711_alaw", 8000, _a_law()),
)


def to_wav(samples: bytes | bytearray | memoryview, rate: int) -> bytes:
    """Return a WAV file of samples of 16 bits."""
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setparams((1, 2, rate, 0, "NONE", ""))
        writer.writeframesraw(samples)
    return file.getvalue()
