"""Live speech: from the end of a sentence to its text, for sessions in real time at once.

    python -m benchmarks.live_speech DIRECTORY --sessions 1 2 4 8

DIRECTORY is a model that transcribes; one of a single language, as Moonshine, needs
`--language ''`.  A server of it is started; each session plays sentences that espeak-ng speaks,
with pauses, as a microphone does.  It prints for each number of sessions the seconds from the last
sound of a sentence to the whole text (500 ms of silence are part of them), and the processor time
of the server for a second of sound.
"""

import argparse
import asyncio
import base64
import json
import statistics
import tempfile
import time
import wave
from pathlib import Path
from typing import Any

import numpy as np
from websockets.asyncio.client import connect

from benchmarks.processes import served
from benchmarks.processor_time import server_time
from benchmarks.speech import speak
from mindspore_serving.core.resampling import resample

RATE, CHUNK = 24_000, 2400  # samples a second, and of a message
PAUSE = 1.5  # seconds after a sentence
SPREAD = 4.0  # seconds in which all sessions begin


def sounds_of(directory: Path) -> list[Any]:
    """The sentences as samples at RATE."""
    sounds = []
    for path in speak(directory)[:-1]:
        with wave.open(str(path)) as reader:
            rate, data = reader.getframerate(), reader.readframes(reader.getnframes())
        samples = np.frombuffer(data, np.int16).astype(np.float32)
        spoken = resample(samples, rate, RATE)
        sounds.append(spoken[: np.flatnonzero(np.abs(spoken) > 200)[-1]].astype(np.int16))
    return sounds


async def play(port: int, sounds: list[Any], language: str, delays: list[float]) -> None:
    """Speak in real time, and add the delay of each text."""
    url = f"ws://127.0.0.1:{port}/v1/realtime?intent=transcription"
    async with connect(url, max_size=None) as socket:
        model = {"audio": {"input": {"transcription": {"language": language} if language else {}}}}
        update = {"type": "session.update", "session": {"type": "transcription", **model}}
        await socket.send(json.dumps(update))
        ends: list[float] = []

        async def listen() -> None:
            while len(ends) < len(sounds) or len(written) < len(sounds):
                event = json.loads(await socket.recv())
                assert not event["type"].endswith(("error", "failed")), event
                if event["type"].endswith("transcription.completed"):
                    delays.append(time.perf_counter() - ends[len(written)])
                    written.append(event["transcript"])

        written: list[str] = []
        listening = asyncio.ensure_future(listen())
        due = time.perf_counter()
        for sound in sounds:
            pause = np.zeros(int(PAUSE * RATE), np.int16)
            for is_last, part in ((False, sound), (True, pause)):
                for begin in range(0, len(part), CHUNK):
                    data = part[begin : begin + CHUNK].tobytes()
                    due += len(data) / 2 / RATE
                    await asyncio.sleep(max(0.0, due - time.perf_counter()))
                    event = {"type": "input_audio_buffer.append"}
                    audio = base64.b64encode(data).decode()
                    await socket.send(json.dumps({**event, "audio": audio}))
                if not is_last:
                    ends.append(time.perf_counter())
        await listening


async def measure(port: int, sessions: list[list[Any]], language: str) -> list[float]:
    """The delays of all texts of sessions, which begin one after another."""
    delays: list[float] = []

    async def begin(number: int, sounds: list[Any]) -> None:
        await asyncio.sleep(number * SPREAD / len(sessions))
        await play(port, sounds, language, delays)

    await asyncio.gather(*(begin(number, sounds) for number, sounds in enumerate(sessions)))
    return delays


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory")
    parser.add_argument("--sessions", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--sentences", type=int, default=5, help="of a session")
    parser.add_argument("--language", default="en", help="of the sentences; '': not named")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        sounds = sounds_of(Path(directory))
    with served(arguments.directory, "--name", "whisper") as (port, _):
        asyncio.run(measure(port, [sounds[:1]], arguments.language))
        for count in arguments.sessions:
            chosen = [
                [sounds[(number + index) % len(sounds)] for index in range(arguments.sentences)]
                for number in range(0, count * arguments.sentences, arguments.sentences)
            ]
            began = server_time()
            delays = asyncio.run(measure(port, chosen, arguments.language))
            used = server_time() - began
            played = sum(len(sound) for session in chosen for sound in session) / RATE
            row = {
                "sessions": count, "texts": len(delays),
                "median": round(statistics.median(delays), 2), "max": round(max(delays), 2),
                "processor_seconds_per_second_of_sound": round(used / played, 3),
            }  # fmt: skip
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
