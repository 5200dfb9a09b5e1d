"""Files of sound: what is read of each format, and what is refused before it is decoded."""

import io
import struct
import wave

import numpy as np
import pytest

from mindspore_serving.core.resampling import resample
from mindspore_serving.errors import InvalidInputs
from mindspore_serving.llm.sounds.decoding import MAX_CHANNELS, read_sound
from mindspore_serving.llm.sounds.features import RATE

SECONDS = 1.5


def tone(rate=RATE, seconds=SECONDS, pitch=440):
    return np.sin(2 * np.pi * pitch * np.arange(int(rate * seconds)) / rate) * 0.5


def wav(rate=RATE, channels=1, width=2, seconds=SECONDS):
    values = np.repeat(tone(rate, seconds)[:, None], channels, 1)
    if width == 1:
        data = np.round(values * 127 + 128).astype(np.uint8).tobytes()
    elif width == 3:
        wide = np.round(values * (2**23 - 1)).astype("<i4").reshape(-1, 1).view(np.uint8)
        data = wide[:, :3].tobytes()
    else:
        data = np.round(values * (2 ** (8 * width - 1) - 1)).astype(f"<i{width}").tobytes()
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setparams((channels, width, rate, 0, "NONE", ""))
        writer.writeframes(data)
    return file.getvalue()


def encoded(container_format, codec, rate=RATE, seconds=SECONDS):
    av = pytest.importorskip("av")
    file = io.BytesIO()
    with av.open(file, "w", format=container_format) as container:
        stream = container.add_stream(codec, rate=rate, layout="mono")
        samples = np.round(tone(rate, seconds) * 32767).astype(np.int16)[None]
        frame = av.AudioFrame.from_ndarray(samples, format="s16", layout="mono")
        frame.sample_rate = rate
        resampler = av.AudioResampler(
            format=stream.codec_context.format, rate=rate, frame_size=stream.frame_size or None
        )
        frames = [*resampler.resample(frame), *resampler.resample(None)]
        for part in [*frames, None]:
            container.mux(stream.encode(part))
    return file.getvalue()


def pitch_of(samples):
    spectrum = np.abs(np.fft.rfft(samples * np.hanning(len(samples))))
    return spectrum.argmax() * RATE / len(samples)


@pytest.mark.parametrize("width", [1, 2, 3, 4])
@pytest.mark.parametrize("rate", [8000, 16_000, 22_050, 44_100, 96_000])
def test_wav_is_read_at_any_rate_and_width(width, rate):
    samples = read_sound(wav(rate, 2, width), 60)
    assert abs(len(samples) - SECONDS * RATE) <= 1
    expected = tone() * 32768
    inner = slice(200, len(samples) - 200)
    bound = 400 if width == 1 else 60
    assert np.abs(samples[inner] - expected[inner]).max() < bound


def test_floats_are_read():
    content = bytearray(wav(width=4))
    content[20:22] = struct.pack("<H", 3)
    content[44:] = tone().astype("<f4").tobytes()
    samples = read_sound(bytes(content), 60)
    assert np.abs(samples - tone() * 32768).max() <= 1


def test_pitches_that_a_lower_rate_cannot_have_are_left_out():
    high = tone(48_000, 1, pitch=11_000).astype(np.float32)
    assert np.abs(resample(high, 48_000, 16_000)[300:-300]).max() < 0.01


@pytest.mark.parametrize(
    ("container", "codec"),
    [("mp3", "libmp3lame"), ("flac", "flac"), ("ogg", "libopus"), ("mp4", "aac"),
     ("matroska", "libopus"), ("adts", "aac"), ("aiff", "pcm_s16be")],
)  # fmt: skip
def test_compressed_formats_are_read(container, codec):
    rate = 48_000 if codec == "libopus" else 44_100
    samples = read_sound(encoded(container, codec, rate), 60)
    assert abs(len(samples) / RATE - SECONDS) < 0.15
    assert pitch_of(samples) == pytest.approx(440, abs=2)


@pytest.mark.parametrize(
    ("file", "problem"),
    [
        (b"", "is empty"),
        (b"<html>hello", "of no known format"),
        (b"#EXTM3U\n#EXTINF:1,\nhttp://127.0.0.1/x.ts\n", "of no known format"),
        (b"ffconcat version 1.0\nfile /etc/passwd\n", "of no known format"),
        (wav()[:20_000], "is truncated"),
        (wav()[:30], "is truncated"),
        (wav(seconds=0), "has no sound"),
        (wav(seconds=61), "of more than 60 seconds"),
        (wav(channels=MAX_CHANNELS + 1), "has 9 channels"),
        (wav(rate=500), "has 500 samples per second"),
        (b"fLaC" + bytes(1000), "is broken or truncated"),
        (b"OggS" + bytes(1000), "is broken or truncated"),
        (b"\x1aE\xdf\xa3" + bytes(1000), "is broken or truncated"),
        (bytes(4) + b"ftypM4A " + bytes(1000), "is broken or truncated"),
        (b"\xff\xfb" + bytes(1000), "is broken or truncated"),
    ],
)
def test_a_hostile_file_is_refused(file, problem):
    pytest.importorskip("av")
    with pytest.raises(InvalidInputs, match=problem):
        read_sound(file, 60)


def test_a_long_file_is_refused_although_its_header_is_silent():
    silent = encoded("adts", "aac", 16_000, seconds=12)  # has no length
    assert len(silent) < 200_000
    with pytest.raises(InvalidInputs, match="of more than 10 seconds"):
        read_sound(silent, 10)


@pytest.mark.parametrize("size", [0x7FFFF000, 0xFFFFFFFF])  # of espeak-ng, and of FFmpeg
def test_sizes_of_a_writer_that_did_not_know_them_are_accepted(size):
    content = bytearray(wav())
    content[40:44] = size.to_bytes(4, "little")
    assert len(read_sound(bytes(content), 60)) == SECONDS * RATE


def test_a_file_with_pictures_alone_has_no_sound():
    av = pytest.importorskip("av")
    file = io.BytesIO()
    with av.open(file, "w", format="matroska") as container:
        stream = container.add_stream("mpeg4", rate=10)
        stream.width, stream.height, stream.pix_fmt = 32, 32, "yuv420p"
        picture = av.VideoFrame.from_ndarray(np.zeros((32, 32, 3), np.uint8), format="rgb24")
        container.mux([*stream.encode(picture), *stream.encode(None)])
    with pytest.raises(InvalidInputs, match="has no sound, only other streams"):
        read_sound(file.getvalue(), 60)


def test_without_pyav_only_wav_is_read(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "av", None)
    assert len(read_sound(wav(), 60)) == SECONDS * RATE
    with pytest.raises(InvalidInputs, match=r"mindspore-serving\[audio\]"):
        read_sound(b"fLaC" + bytes(100), 60)
