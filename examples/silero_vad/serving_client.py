"""Find speech in a WAV file of 16,000 samples a second, chunk by chunk, as on a stream.

The server keeps the state of the model between the chunks of this sequence.  Without a file, this
makes one with vowels of a synthetic voice.
"""

import os
import sys
import wave
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from mindspore_serving.client import Client

GRPC = "127.0.0.1:" + os.environ.get("SERVING_GRPC_PORT", "5500")
RATE = 16_000  # samples a second
CHUNK = 512  # samples
VOWELS = {"a": (730, 1090, 2440), "i": (270, 2290, 3010), "o": (570, 840, 2410)}  # formants in Hz


def synthesize(path: Path) -> None:
    """Write a WAV of 2.6 s, of which 0.5 to 1.6 s are vowels."""
    speech = np.concatenate([_vowel(VOWELS[name]) for name in "aioaoi"])
    noise = np.random.default_rng(0).standard_normal(8000 + len(speech) + 16_000) / 1000
    noise[8000 : 8000 + len(speech)] += 0.3 * speech / np.abs(speech).max()
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE)
        file.writeframes((noise * 32767).astype("<i2").tobytes())


def _vowel(formants: tuple[int, ...], seconds: float = 0.18, pitch: float = 120) -> np.ndarray:
    time = np.arange(int(seconds * RATE)) / RATE
    phase = np.cumsum(2 * np.pi * pitch * (1 + 0.03 * np.sin(8 * np.pi * time)) / RATE)
    harmonics = np.arange(1, int(4000 / pitch))
    near = [np.exp(-(((harmonics * pitch - formant) / 160) ** 2)) for formant in formants]
    loudness = (sum(near) + 0.02) / harmonics**0.3
    edges = np.minimum(1, np.minimum(time / 0.03, (seconds - time) / 0.05))
    return edges * (loudness @ np.sin(np.outer(harmonics, phase)))


def samples_of(path: Path) -> np.ndarray:
    with wave.open(str(path)) as file:
        form = (file.getnchannels(), file.getsampwidth(), file.getframerate())
        if form != (1, 2, RATE):
            raise SystemExit(f"{path} has (channels, bytes, rate) {form}, expected (1, 2, {RATE})")
        data = file.readframes(file.getnframes())
    return np.frombuffer(data, "<i2").astype(np.float32) / 32768


def probabilities(client: Client, samples: np.ndarray) -> Iterator[float]:
    """Iterate over the probability of speech in each chunk of a stream."""
    with client.sequence() as sequence:
        for start in range(0, len(samples) - CHUNK + 1, CHUNK):
            (answer,) = sequence.infer({"chunk": samples[start : start + CHUNK]})
            yield float(answer["speech"][0])


def main() -> None:
    path = Path(sys.argv[1] if len(sys.argv) > 1 else "speech.wav")
    if len(sys.argv) == 1:
        synthesize(path)
    client = Client(GRPC, "silero_vad", "predict")
    was_speech = False
    for index, chance in enumerate(probabilities(client, samples_of(path))):
        if (chance > 0.5) != was_speech:
            was_speech = not was_speech
            print(f"{index * CHUNK / RATE:5.2f} s  {'speech' if was_speech else 'silence'}")


if __name__ == "__main__":
    main()
