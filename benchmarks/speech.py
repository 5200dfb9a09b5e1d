"""Speech to text beside faster-whisper: the same weights and recordings, in turns.

    python -m benchmarks.speech DIRECTORY --python ENV/bin/python

DIRECTORY is Whisper in CTranslate2's form; ENV an environment with faster-whisper.  `beam=5` of a
side of ours is the beam search, as the last number of theirs.  `--genai` adds OpenVINO GenAI, whose
model `optimum-cli export openvino --task automatic-speech-recognition-with-past` makes.  espeak-ng
speaks twenty sentences.
Each side writes them down one after another ("single"), and as one recording that it cuts
("whole"); ours also as requests at once ("together").  It prints the rate of
words that are wrong, and the seconds of sound for a second of time and of processor time.
"""

import argparse
import io
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
import wave
from pathlib import Path
from typing import Any

SENTENCES = """The weather is very nice today and the children are playing in the garden.
I would like to have a cup of coffee and a piece of chocolate cake, please.
My brother has lived in New York for more than twenty years.
The train to London leaves at half past seven in the morning.
She opened the window because it was too warm in the room.
We should buy some bread, milk and cheese before the shop closes.
The teacher asked the students to read the next chapter at home.
He forgot his umbrella, so he was completely wet when he arrived.
There are many people who want to learn a new language.
The doctor said that you need to rest for a few days.
Please turn off the lights when you leave the office tonight.
The river flows through the city and into the sea.
They built a new hospital near the old church last year.
My favourite season is autumn, when the leaves turn red and yellow.
Can you tell me how to get to the nearest post office?
The company plans to open three new stores in the summer.
I have never seen such a beautiful sunset in my whole life.
The dog was barking loudly because someone knocked on the door.
You can find the book on the second shelf in the library.
After dinner we watched an interesting film about the history of music.""".splitlines()
PAUSE = 2.0  # seconds between sentences of the whole recording


def speak(directory: Path) -> list[Path]:
    """Write a WAV file for each sentence, and one of all of them."""
    paths = [directory / f"{number}.wav" for number in range(len(SENTENCES))]
    for path, text in zip(paths, SENTENCES, strict=True):
        subprocess.run(["espeak-ng", "-v", "en-us", "-s", "140", "-w", path, text], check=True)
    whole = io.BytesIO()
    with wave.open(whole, "wb") as writer:
        for path in paths:
            with wave.open(str(path)) as reader:
                if path is paths[0]:
                    writer.setparams(reader.getparams())
                writer.writeframes(reader.readframes(reader.getnframes()))
                writer.writeframes(bytes(2 * int(PAUSE * reader.getframerate())))
    (directory / "whole.wav").write_bytes(whole.getvalue())
    return [*paths, directory / "whole.wav"]


def seconds_of(path: Path) -> float:
    with wave.open(str(path)) as reader:
        return reader.getnframes() / reader.getframerate()


def word_errors(text: str, expected: str) -> int:
    """Return how many words have to be added, removed or changed."""
    written, spoken = (re.findall(r"[a-z0-9']+", value.lower()) for value in (text, expected))
    row = list(range(len(spoken) + 1))
    for number, word in enumerate(written, 1):
        before, row = row, [number]
        for place, other in enumerate(spoken):
            row.append(min(before[place] + (word != other), before[place + 1] + 1, row[-1] + 1))
    return row[-1]


def report(name: str, mode: str, texts: list[str], seconds: float, began: Any) -> None:
    wall, processor = time.perf_counter() - began[0], time.process_time() - began[1]
    spoken = SENTENCES if len(texts) > 1 else [" ".join(SENTENCES)]
    wrong = sum(map(word_errors, texts, spoken))
    words = sum(len(re.findall(r"[\w']+", text)) for text in SENTENCES)
    row = {
        "name": name, "mode": mode, "word_error_rate": round(wrong / words, 4),
        "sound_per_second": round(seconds / wall, 2),
        "sound_per_processor_second": round(seconds / processor, 2),
    }  # fmt: skip
    print(json.dumps(row), flush=True)


def run_ours(directory: str, paths: list[Path], options: dict[str, Any], name: str) -> None:
    from mindspore_serving.core.speech_messages import Heard, Transcribe, Transcribed
    from mindspore_serving.llm.config import EngineConfig
    from mindspore_serving.llm.speech.engine import SpeechEngine

    beam_size = int(options.pop("beam", 1))
    ready = threading.Event()
    engine = SpeechEngine(directory, EngineConfig(**options), ready.set)
    language = "en" if engine.card.languages else ""

    def write(files: list[Path]) -> list[str]:
        texts, ended = [""] * len(files), []
        for index, path in enumerate(files):

            def take(events: Any, is_last: bool, index: int = index) -> None:
                for event in events:
                    assert isinstance(event, Heard | Transcribed), event
                    if isinstance(event, Heard):
                        texts[index] += "".join(row.text for row in event.segments)
                if is_last:
                    ended.append(index)

            request = Transcribe(file=path.read_bytes(), language=language, beam_size=beam_size)
            engine.accept(request, take)
        while len(ended) < len(files):
            ready.wait(1)
            ready.clear()
            engine.collect()
        return texts

    *single, whole = paths
    write(single[:1])
    total = sum(map(seconds_of, single))
    began = time.perf_counter(), time.process_time()
    report(name, "single", [write([path])[0] for path in single], total, began)
    began = time.perf_counter(), time.process_time()
    report(name, "together", write(single), total, began)
    began = time.perf_counter(), time.process_time()
    report(name, "whole", write([whole]), seconds_of(whole), began)
    engine.close()


def run_faster_whisper(directory: str, paths: list[Path], compute: str, beam: int) -> None:
    from faster_whisper import BatchedInferencePipeline, WhisperModel  # type: ignore[import]

    cores = len(os.sched_getaffinity(0))
    model = WhisperModel(directory, device="cpu", compute_type=compute, cpu_threads=cores)
    batched = BatchedInferencePipeline(model)

    def write(path: Path, pipeline: Any, **fields: Any) -> str:
        segments, _ = pipeline.transcribe(
            str(path), language="en", beam_size=beam, without_timestamps=True, **fields
        )
        return "".join(segment.text for segment in segments)

    *single, whole = paths
    write(single[0], model)
    name = f"faster-whisper {compute} beam {beam}"
    total = sum(map(seconds_of, single))
    began = time.perf_counter(), time.process_time()
    report(name, "single", [write(path, model) for path in single], total, began)
    began = time.perf_counter(), time.process_time()
    text = write(whole, batched, batch_size=8)
    report(name, "whole", [text], seconds_of(whole), began)


def run_genai(directory: str, paths: list[Path], precision: str, beam: int) -> None:
    import openvino_genai  # type: ignore[import]

    from mindspore_serving.llm.sounds.decoding import read_sound

    pipeline = openvino_genai.WhisperPipeline(directory, "CPU", INFERENCE_PRECISION_HINT=precision)

    def write(path: Path) -> str:
        samples = read_sound(path.read_bytes(), 600).astype("float32") / 32768
        options = {"language": "<|en|>", "task": "transcribe", "num_beams": beam}
        # A recording over 30 s is read on behind its last time.
        options |= {"return_timestamps": len(samples) > 30 * 16_000}
        return str(pipeline.generate(samples.tolist(), **options))

    *single, whole = paths
    write(single[0])
    name, total = f"genai {precision} beam {beam}", sum(map(seconds_of, single))
    began = time.perf_counter(), time.process_time()
    report(name, "single", [write(path) for path in single], total, began)
    began = time.perf_counter(), time.process_time()
    report(name, "whole", [write(whole)], seconds_of(whole), began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory")
    parser.add_argument("--python", help="interpreter of an environment with faster-whisper")
    parser.add_argument("--genai", help="the same model as optimum-intel exports it")
    parser.add_argument("--genai-python", help="interpreter of an environment with openvino-genai")
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--sides", nargs="*", help="in place of all: ours,OPTION=VALUE,beam=N ...")
    parser.add_argument("--side", help="for the processes that this starts")
    parser.add_argument("--sounds", type=Path)
    arguments = parser.parse_args()
    if arguments.side:
        names = [*(f"{number}.wav" for number in range(len(SENTENCES))), "whole.wav"]
        paths = [arguments.sounds / name for name in names]
        kind, *rest = arguments.side.split(",")
        if kind == "ours":
            options = dict(option.split("=") for option in rest)
            run_ours(arguments.directory, paths, options, " ".join(["ours", *rest]))
        elif kind == "genai":
            run_genai(arguments.genai, paths, rest[0], int(rest[1]))
        else:
            run_faster_whisper(arguments.directory, paths, rest[0], int(rest[1]))
        return
    sides = ["ours,dtype=f32", "ours,dtype=f32,quantization=int8", "ours,dtype=bf16"]
    if arguments.python:
        theirs = ["faster-whisper,float32,1", "faster-whisper,int8,1", "faster-whisper,float32,5"]
        sides = [side for pair in zip(sides, theirs, strict=True) for side in pair]
        sides += ["ours,dtype=f32,beam=5", "faster-whisper,int8,5", "ours,dtype=bf16,beam=5"]
    if arguments.genai:
        sides += ["genai,f32,1", "genai,bf16,1"]
    sides = arguments.sides or sides
    with tempfile.TemporaryDirectory() as sounds:
        speak(Path(sounds))
        for _ in range(arguments.turns):
            for side in sides:
                pythons = {"ours": sys.executable, "genai": arguments.genai_python}
                python = pythons.get(side.partition(",")[0], arguments.python)
                command = [python, __file__, arguments.directory, "--side", side]
                command += ["--genai", arguments.genai] if arguments.genai else []
                environment = {**os.environ, "PYTHONPATH": os.getcwd()}
                subprocess.run([*command, "--sounds", sounds], check=True, env=environment)


if __name__ == "__main__":
    main()
