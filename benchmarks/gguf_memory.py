"""How much memory a GGUF file takes in a worker, while it loads and afterwards.

`python -m benchmarks.gguf_memory q4_k_m q8_0` (names of `gguf_models`, or paths of files) opens
each file in a process that has the settings of a worker.  MB are proportional (of a page that
several processes share, each has its part) and told apart: "own" is anonymous memory, "file" are
pages of files, which are clean, so that the system takes them when it wants.  The peak is the
largest of reports every 10 ms.  With the runtime "combined" there is a state more, when OpenVINO's
graph is packed.  The ratio is what loading has added to the own memory of a process
with a small compiled model, without keys and values, over the size of the file.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Event, Thread
from typing import Any

from benchmarks.gguf_models import gguf_model
from benchmarks.processes import ROOT
from benchmarks.report import print_json, print_table

CACHE = 2**28  # bytes, of which only those that tokens take are in memory
PROMPT, ANSWER = 128, 32  # tokens of each stream
STREAMS = (1, 16)
MB = 1e6
FIELDS = {"Pss_Anon": "own", "Pss_File": "file"}
PERIOD = 0.01  # seconds between two looks at a process


def memory(process: int | str = "self") -> dict[str, float]:
    """MB of a process by FIELDS."""
    found = dict.fromkeys(FIELDS.values(), 0.0)
    for line in Path(f"/proc/{process}/smaps_rollup").read_text().splitlines():
        name, _, rest = line.partition(":")
        if name in FIELDS:
            found[FIELDS[name]] = int(rest.split()[0]) * 1024 / MB
    return found


def states(path: Path, options: dict[str, Any]) -> Iterator[tuple[str, dict[str, float]]]:
    """The memory of this process in each state, by name."""
    import numpy as np
    import openvino as ov
    from openvino import opset13 as opset

    from mindspore_serving.llm import LLM, SamplingParams

    x = opset.parameter([-1, 64], ov.Type.f32)
    small = ov.Model(
        [opset.matmul(x, opset.constant(np.ones((64, 64), np.float32)), False, True)], [x]
    )
    compiled = ov.Core().compile_model(small, "CPU")
    compiled([np.ones((2, 64), np.float32)])
    yield "empty", memory()
    with LLM(path, kv_cache_memory=CACHE, **options) as llm:
        yield "loaded", memory()
        packing = getattr(llm._open_engine().runner, "packing", None)
        if packing is not None:
            while not packing.is_done:
                time.sleep(PERIOD)
            yield "packed", memory()
        for count in STREAMS:
            prompts = [[7 + stream] * PROMPT for stream in range(count)]
            llm.generate(prompts, SamplingParams(max_tokens=ANSWER, ignore_eos=True, temperature=0))
            yield f"{count} streams", memory()


def measured(path: Path, options: dict[str, Any]) -> dict[str, dict[str, float]]:
    """By state; "peak" is while it loads."""
    from mindspore_serving.process.child import large_pages

    command = [sys.executable, "-m", "benchmarks.gguf_memory", "--inside", str(path)]
    command += ["--options", json.dumps(options)]
    found: dict[str, dict[str, float]] = {}
    process = subprocess.Popen(
        command, cwd=ROOT, env=os.environ | large_pages(), stdout=subprocess.PIPE, text=True
    )
    over, peak = Event(), dict.fromkeys(FIELDS.values(), 0.0)
    watcher = Thread(target=_watch, args=(process.pid, peak, over))
    watcher.start()
    assert process.stdout is not None
    for line in process.stdout:
        name, state = json.loads(line)
        if name == "loaded":
            over.set()
            found["peak"] = peak
        found[name] = state
    over.set()
    watcher.join()
    if process.wait():
        raise SystemExit(f"{path} could not be measured")
    return found


def _watch(process: int, peak: dict[str, float], over: Event) -> None:
    while not over.wait(PERIOD):
        try:
            now = memory(process)
        except OSError:
            return
        for kind, size in now.items():
            peak[kind] = max(peak[kind], size)


def cache_megabytes(count: int) -> float:
    """What the keys and values of so many streams take at least, of 16 bits."""
    from benchmarks import gguf_models as sizes

    token = 2 * 2 * sizes.LAYERS * sizes.KEYS * sizes.HEAD_DIM
    return count * (PROMPT + ANSWER) * token / MB


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("models", nargs="*", default=["q4_k_m", "q8_0"])
    parser.add_argument("--options", type=json.loads, default={}, help="of LLM, as JSON")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.inside:
        for state in states(Path(asked.models[0]), asked.options):
            print(json.dumps(state), flush=True)
        return
    rows, results = [], {}
    for model in asked.models:
        path = Path(model) if os.sep in model else gguf_model(model)
        found = measured(path, asked.options)
        size, empty = path.stat().st_size / MB, found["empty"]["own"]
        results[path.stem] = {"MB": size, **found}
        for name, state in found.items():
            used = cache_megabytes(int(name.split()[0])) if "streams" in name else 0
            ratio = (state["own"] - empty - used) / size
            cells = [f"{state[kind]:.0f}" for kind in FIELDS.values()]
            rows.append([f"{path.stem} ({size:.0f} MB), {name}", *cells, f"{ratio:.2f}"])
    print_table(["", *FIELDS.values(), "ratio"], rows)
    print_json("gguf_memory", **results)


if __name__ == "__main__":
    main()
