"""Files of sound that are written piece by piece, read again by the decoder of recordings."""

import io
import wave

import numpy as np
import pytest

from mindspore_serving.core.speech_messages import SOUND_FORMATS
from mindspore_serving.errors import InvalidField
from mindspore_serving.llm.sounds.decoding import read_sound
from mindspore_serving.llm.voices import encoding
from mindspore_serving.llm.voices.encoding import open_encoder

RATE = 22_050
TONE = (0.5 * np.sin(2 * np.pi * 440 * np.arange(3 * RATE) / RATE)).astype(np.float32)


def write(name, rate=RATE, samples=TONE):
    encoder = open_encoder(name, rate)
    parts = [encoder.add(part) for part in np.array_split(samples, 3)]
    assert all(parts)  # each piece is sent while the next is spoken
    return b"".join([*parts, encoder.end()])


def test_wav_has_the_samples_as_they_are():
    with wave.open(io.BytesIO(write("wav"))) as file:
        assert (file.getframerate(), file.getnchannels(), file.getsampwidth()) == (RATE, 1, 2)
        samples = np.frombuffer(file.readframes(len(TONE)), np.int16)
    assert np.array_equal(samples, (TONE * 32767).astype(np.int16))


def frequency(samples, rate):
    spectrum = np.abs(np.fft.rfft(samples * np.hanning(len(samples))))
    return np.argmax(spectrum) * rate / len(samples)


def test_pcm_has_24_khz_whatever_the_voice_has():
    samples = np.frombuffer(write("pcm"), "<i2")
    assert len(samples) == pytest.approx(3 * 24_000, abs=3)
    assert frequency(samples, 24_000) == pytest.approx(440, abs=1)


@pytest.mark.parametrize("name", [name for name in SOUND_FORMATS if name not in ("wav", "pcm")])
@pytest.mark.parametrize("rate", [RATE, 24_000, 22_000])
def test_compressed_files_have_the_same_sound(name, rate):
    pytest.importorskip("av")
    samples = read_sound(write(name, rate), 10)
    assert len(samples) / 16_000 == pytest.approx(len(TONE) / rate, abs=0.1)
    assert frequency(samples, 16_000) == pytest.approx(440 * rate / RATE, abs=2)
    level = np.sqrt(np.mean(samples.astype(np.float32) ** 2))
    assert level == pytest.approx(16_384 / np.sqrt(2), rel=0.1)


def test_formats_that_are_unknown_or_lack_their_library_are_refused(monkeypatch):
    with pytest.raises(InvalidField, match="'midi', expected one of mp3, opus"):
        open_encoder("midi", RATE)
    monkeypatch.setattr(encoding, "find_spec", lambda name: None)
    with pytest.raises(InvalidField, match=r"writes only wav and pcm; .*\[audio\]"):
        open_encoder("mp3", RATE)
    assert write("wav")
