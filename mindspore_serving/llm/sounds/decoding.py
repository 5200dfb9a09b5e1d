"""Files of sound to samples of one channel at 16 kHz.  Knows no request and no model.

Format, channels, rate and length are checked before anything is decoded: a small file may expand to
hours.  The format is told by the first bytes and named to the decoder, because some formats of text
make a decoder open other files and addresses.
"""

import io
import struct
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from mindspore_serving.core.resampling import resample
from mindspore_serving.errors import InvalidInputs
from mindspore_serving.extras import command
from mindspore_serving.llm.sounds.features import RATE

Samples: TypeAlias = npt.NDArray[np.int16]

MAX_CHANNELS, MIN_RATE, MAX_RATE = 8, 1000, 384_000
_PCM, _FLOAT, _EXTENSIBLE = 1, 3, 0xFFFE  # of a WAV file
_UNKNOWN = 0x7FFFF000  # sizes from here on are of writers that could not know them, as to a pipe
_FORMATS = (  # place and bytes, and the decoder's name
    (0, b"fLaC", "flac"),
    (0, b"OggS", "ogg"),
    (0, b"ID3", "mp3"),
    (4, b"ftyp", "mp4"),
    (0, b"\x1aE\xdf\xa3", "matroska"),
    (0, b"FORM", "aiff"),
    (0, b"#!AMR", "amr"),
    (0, b"caff", "caf"),
    (0, b"0&\xb2u", "asf"),
    (0, b"RIFF", "wav"),
)
_OF_SERVER = "this server takes (max_audio_seconds)"
NAMES = "wav, mp3, flac, ogg, m4a, mp4, webm, aac, aiff, amr, caf or wma"


@dataclass(frozen=True, slots=True)
class _Form:
    """Form of the samples in a WAV file."""

    kind: int
    channels: int
    rate: int
    bits: int


@dataclass(frozen=True, slots=True)
class _Limit:
    """Longest sound, and what sets this limit."""

    seconds: float
    reason: str


def read_sound(file: bytes, max_seconds: float, reason: str = _OF_SERVER) -> Samples:
    """Return the samples of a file; `reason` tells clients where `max_seconds` is from.

    Raises InvalidInputs, whose message follows the file's name: an unknown format, a broken or
    truncated file, too many channels or seconds, no sound.
    """
    if not file:
        raise InvalidInputs(f"is empty, expected a file of sound: {NAMES}")
    name = _format_of(file)
    if not name:
        raise InvalidInputs(f"is of no known format, expected {NAMES}")
    limit = _Limit(max_seconds, reason)
    samples = _read_wav(file, limit) if name == "wav" else None
    if samples is None:
        samples = _decode(file, name, limit)
    if not len(samples):
        raise InvalidInputs("has no sound: it is of 0 seconds")
    return samples


def _format_of(file: bytes) -> str:
    for at, magic, name in _FORMATS:
        if file[at : at + len(magic)] == magic:
            return name
    if len(file) > 3 and file[0] == 0xFF and file[1] & 0xE0 == 0xE0:
        return "aac" if file[1] & 0x06 == 0 else "mp3"
    return ""


def _read_wav(file: bytes, limit: _Limit) -> Samples | None:
    """Return the samples of a WAV file; None if they are compressed."""
    form, at = None, 12
    if file[8:12] != b"WAVE":
        return None
    while at + 8 <= len(file):
        name, (size,) = file[at : at + 4], struct.unpack_from("<I", file, at + 4)
        at += 8
        if name == b"fmt " and at + 16 <= len(file):
            form = _form_of(file, at, size)
        elif name == b"data":
            if form is None:
                raise InvalidInputs("is broken: it has samples before their format")
            if form.kind not in (_PCM, _FLOAT) or form.bits not in (8, 16, 24, 32, 64):
                return None
            return _read_samples(file, at, size, form, limit)
        at += size + size % 2
    raise InvalidInputs("is truncated: it ends before its samples")


def _form_of(file: bytes, at: int, size: int) -> _Form:
    kind, channels, rate, _, _, bits = struct.unpack_from("<HHIIHH", file, at)
    if kind == _EXTENSIBLE and size >= 40 and at + 26 <= len(file):
        (kind,) = struct.unpack_from("<H", file, at + 24)
    _check_form(channels, rate)
    return _Form(kind, channels, rate, bits)


def _read_samples(file: bytes, at: int, size: int, form: _Form, limit: _Limit) -> Samples:
    present, step = len(file) - at, form.channels * form.bits // 8
    if size < _UNKNOWN and size > present:
        raise InvalidInputs(f"is truncated: {size - present:,} of its {size:,} bytes are missing")
    count = min(size, present) // step
    _check_seconds(count / form.rate, limit)
    data = np.frombuffer(file, np.uint8, count * step, at)
    values = _to_floats(data, form).reshape(count, form.channels).mean(-1)
    return _to_samples(resample(values.astype(np.float32), form.rate, RATE))


def _to_floats(data: npt.NDArray[np.uint8], form: _Form) -> npt.NDArray[np.float32]:
    if form.kind == _FLOAT:
        if form.bits < 32:
            raise InvalidInputs(f"has floats of {form.bits} bits, expected 32 or 64")
        values = data.view("<f4" if form.bits == 32 else "<f8").astype(np.float32)
        return np.nan_to_num(values, nan=0.0, posinf=1.0, neginf=-1.0)
    if form.bits == 8:
        return (data.astype(np.float32) - 128) / 128
    if form.bits == 24:
        wide = np.zeros((len(data) // 3, 4), np.uint8)
        wide[:, 1:] = data.reshape(-1, 3)
        data = wide.reshape(-1)
    bits = 32 if form.bits == 24 else form.bits
    integers = data.view(f"<i{bits // 8}")
    return integers.astype(np.float32) / np.float32(2.0 ** (bits - 1))


def _to_samples(values: npt.NDArray[np.float32]) -> Samples:
    samples: Samples = np.clip(np.round(values * 32768), -32768, 32767).astype(np.int16)
    return samples


def _decode(file: bytes, name: str, limit: _Limit) -> Samples:
    try:
        import av
    except ModuleNotFoundError:
        install = command("audio")
        raise InvalidInputs(
            f"is {name}, but this server reads only wav with plain samples; {install}"
        ) from None
    av.logging.set_level(av.logging.PANIC)  # of files, which clients send
    try:
        with av.open(io.BytesIO(file), format=name, metadata_errors="replace") as container:
            return _decode_stream(av, container, limit)
    except (av.error.FFmpegError, ValueError, IndexError) as error:
        raise InvalidInputs(f"is broken or truncated: {str(error)[:200]}") from None


def _decode_stream(av: Any, container: Any, limit: _Limit) -> Samples:
    if not container.streams.audio:
        raise InvalidInputs("has no sound, only other streams")
    stream = container.streams.audio[0]
    stream.thread_type, stream.codec_context.thread_count = "NONE", 1
    _check_form(stream.codec_context.channels, stream.codec_context.sample_rate)
    if stream.duration is not None and stream.time_base is not None:
        _check_seconds(float(stream.duration * stream.time_base), limit)
    resampler = av.AudioResampler(format="s16", layout="mono", rate=RATE)
    parts: list[Any] = []
    count = 0
    for frame in container.decode(stream):
        _check_form(len(frame.layout.channels), frame.sample_rate)
        for changed in resampler.resample(frame):
            parts.append(changed.to_ndarray().reshape(-1))
            count += len(parts[-1])
        _check_seconds(count / RATE, limit)
    parts += [changed.to_ndarray().reshape(-1) for changed in resampler.resample(None)]
    return np.concatenate(parts or [np.zeros(0, np.int16)])


def _check_form(channels: int, rate: int) -> None:
    if not 1 <= channels <= MAX_CHANNELS:
        raise InvalidInputs(f"has {channels} channels, expected 1 to {MAX_CHANNELS}")
    if not MIN_RATE <= rate <= MAX_RATE:
        raise InvalidInputs(
            f"has {rate:,} samples per second, expected {MIN_RATE:,} to {MAX_RATE:,}"
        )


def _check_seconds(seconds: float, limit: _Limit) -> None:
    if seconds > limit.seconds:
        raise InvalidInputs(
            f"is of more than {limit.seconds:g} seconds, the most that {limit.reason}: cut it"
        )
