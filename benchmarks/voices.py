"""Text to speech beside the voices' libraries: the same models and sentences, in turns.

    python -m benchmarks.voices --piper NAME.onnx --kokoro DIRECTORY --python ENV/bin/python

ENV is an environment with piper-tts and kokoro-onnx.  Each side speaks twenty sentences one after
another ("single"), and as one text ("whole").  It prints the seconds of sound and of processor
time, and the seconds until the first sound.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.speech import SENTENCES

Speaker = Callable[[str], Iterator[float]]
"""Speaks a text and yields the seconds of each sound."""


def ours(model: Path, fields: dict[str, str]) -> Speaker:
    from mindspore_serving.core.speech_messages import Speak, Spoken
    from mindspore_serving.llm.config import EngineConfig
    from mindspore_serving.llm.voices.engine import VoiceEngine

    ready = threading.Event()
    engine = VoiceEngine(str(model), EngineConfig(max_speech_characters=10_000), ready.set)

    def speak(text: str) -> Iterator[float]:
        sounds: list[float] = []
        ended: list[bool] = []

        def take(events: Any, is_last: bool) -> None:
            sizes = [len(event.sound) for event in events if isinstance(event, Spoken)]
            sounds.extend(size / 48_000 for size in sizes)  # 24,000 samples of 2 bytes
            ended.extend([True] * is_last)

        engine.accept(Speak(text=text, format="pcm", **fields), take)
        while not ended or sounds:
            ready.wait(1)
            ready.clear()
            engine.collect()
            while sounds:
                yield sounds.pop(0)

    return speak


def piper(model: Path) -> Speaker:
    from piper import PiperVoice

    voice = PiperVoice.load(model)

    def speak(text: str) -> Iterator[float]:
        for chunk in voice.synthesize(text):
            yield len(chunk.audio_int16_array) / chunk.sample_rate

    return speak


def kokoro_onnx(directory: Path, fields: dict[str, str]) -> Speaker:
    from kokoro_onnx import Kokoro  # type: ignore[import-not-found]

    styles = next(directory.glob("voices*"))
    config = str(directory / "config.json")
    model = Kokoro(str(directory / "model.onnx"), str(styles), vocab_config=config)

    def speak(text: str) -> Iterator[float]:
        stream = model.create_stream(text, fields["voice"], lang=fields["language"])
        loop = asyncio.new_event_loop()
        while True:
            try:
                samples, rate = loop.run_until_complete(anext(stream))
            except StopAsyncIteration:
                loop.close()
                return
            yield len(samples) / rate

    return speak


def measure(name: str, speak: Speaker) -> None:
    list(speak(SENTENCES[0]))
    for mode, texts in (("single", SENTENCES), ("whole", [" ".join(SENTENCES)])):
        began, processor, first, seconds = time.perf_counter(), time.process_time(), 0.0, 0.0
        for text in texts:
            for sound in speak(text):
                first = first or time.perf_counter() - began
                seconds += sound
        used = time.process_time() - processor
        row = {
            "name": name, "mode": mode, "sound_seconds": round(seconds, 1),
            "processor_seconds": round(used, 2),
            "sound_per_processor_second": round(seconds / used, 2),
            "first_sound": round(first, 3),
        }  # fmt: skip
        print(json.dumps(row), flush=True)


def run_side(side: str, arguments: argparse.Namespace) -> None:
    fields = {"voice": arguments.voice, "language": "en-us"}
    speakers: dict[str, Callable[[], Speaker]] = {
        "ours piper": lambda: ours(arguments.piper, {}),
        "ours kokoro": lambda: ours(arguments.kokoro, fields),
        "piper-tts": lambda: piper(arguments.piper),
        "kokoro-onnx": lambda: kokoro_onnx(arguments.kokoro, fields),
    }
    measure(side, speakers[side]())
    os._exit(0)  # the threads of the engine wait for texts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--piper", type=Path)
    parser.add_argument("--kokoro", type=Path)
    parser.add_argument("--voice", default="jf_alpha", help="of Kokoro")
    parser.add_argument("--python", help="interpreter of an environment with the libraries")
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--side", help="for the processes that this starts")
    arguments = parser.parse_args()
    if arguments.side:
        run_side(arguments.side, arguments)
    sides = ["ours piper", "piper-tts"] if arguments.piper else []
    sides += ["ours kokoro", "kokoro-onnx"] if arguments.kokoro else []
    for _ in range(arguments.turns):
        for side in sides if arguments.python else sides[::2]:
            python = sys.executable if side.startswith("ours") else arguments.python
            environment = {**os.environ, "PYTHONPATH": os.getcwd()}
            command = [python, __file__, *sys.argv[1:], "--side", side]
            subprocess.run(command, check=True, env=environment)


if __name__ == "__main__":
    main()
