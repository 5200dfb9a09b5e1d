"""Texts that espeak-ng speaks, as files of sound, and words to compare."""

import io
import re
import shutil
import subprocess
import wave
from typing import Any

import numpy as np
import pytest


def spoken(text: str, voice: str = "en-us") -> bytes:
    program = shutil.which("espeak-ng")
    if program is None:
        pytest.skip("espeak-ng is not installed (apt install espeak-ng)")
    command = [program, "-v", voice, "-s", "140", "--stdout", text]
    return subprocess.run(command, check=True, capture_output=True).stdout


def samples_of(sound: bytes) -> np.ndarray[Any, np.dtype[np.int16]]:
    with wave.open(io.BytesIO(sound)) as reader:
        return np.frombuffer(reader.readframes(1 << 30), np.int16)


def wav_of(samples: np.ndarray[Any, Any], rate: int = 22_050) -> bytes:
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setparams((1, 2, rate, 0, "NONE", ""))
        writer.writeframes(samples.astype(np.int16).tobytes())
    return file.getvalue()


def words_of(text: str) -> str:
    return " ".join(re.findall(r"[\w']+", text.lower()))
