"""Steps of the native runtime while its threads lose their cores: times, results and memory.

    python -m benchmarks.native_soak FILE [--seconds 1200] [--phase-seconds 15] [--seed 0]

A process computes the same steps of one and of 8 tokens again and again, in phases that follow each
other in a random order:

alone            nothing is done to it
one core         all its threads may use one core only (as by taskset)
busy neighbours  as many processes as there are cores compute too
stopped          it is stopped (SIGSTOP) for 5 to 100 ms, up to ten times a second
idle thread      a thread of the team runs only when nobody else wants its core (SCHED_IDLE), beside
                 busy neighbours: it is descheduled in the middle of its work

Every result must be that of the first step, bit for bit.  Told for each phase: milliseconds of a
step of one token (median, 99 %, longest) and the memory of the process at its end, without pages of
files.  The exit status is 1 if a result differs, or if memory has grown by more than 2 MB from the
third phase, when each kind of step has been computed, to the last.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np

from benchmarks.gguf_memory import memory
from benchmarks.processes import ROOT
from benchmarks.report import print_json, print_table

CONTEXT = 100
SIZES = (1, 8)  # tokens of the steps
MAX_GROWTH = 2.0  # MB
BUSY = "while True: pass"
Figures = dict[str, Any]


def compute(path: str) -> None:
    """Compute steps until stdin ends; reply to each line with the figures since the last one."""
    import threading

    from mindspore_serving.llm.config import EngineConfig
    from mindspore_serving.llm.runtimes import open_runner
    from mindspore_serving.llm.step import Row, Step

    config = EngineConfig(max_model_len=256, max_num_seqs=8, kv_cache_memory=64 << 20)
    runner: Any = open_runner(Path(path), "native", config)
    blocks = -(-CONTEXT // runner.block_size)
    for each in range(SIZES[-1]):
        ids = [3 + (each * 31 + at) % 40 for at in range(CONTEXT)]
        runner.run(Step((Row(ids, 0, range(each * blocks, (each + 1) * blocks), 1),)))
    steps = [
        Step(
            tuple(
                Row([7 + each], CONTEXT - 1, range(each * blocks, (each + 1) * blocks), 1)
                for each in range(size)
            )
        )
        for size in SIZES
    ]
    expected = [runner.run(step).copy() for step in steps]
    team = [each.native_id for each in threading.enumerate() if each.name.startswith("native-")]
    figures: dict[str, list[float]] = {"times": []}
    lock, num_wrong = threading.Lock(), 0
    print(json.dumps({"threads": team}), flush=True)

    def report() -> None:
        nonlocal num_wrong
        for _ in sys.stdin:
            with lock:
                times, figures["times"] = figures["times"], []
                wrong, num_wrong = num_wrong, 0
            ms = [1e3 * float(np.percentile(times or 0.0, q)) for q in (50, 99, 100)]
            about = {"steps": len(times), "ms": ms, "wrong": wrong, "own": memory()["own"]}
            print(json.dumps(about), flush=True)
        os._exit(0)

    Thread(target=report, daemon=True).start()
    number = 0
    while True:
        kind = int(number % 10 == 9)
        began = time.perf_counter()
        logits = runner.run(steps[kind])
        spent = time.perf_counter() - began
        with lock:
            num_wrong += not np.array_equal(logits, expected[kind])
            if kind == 0:
                figures["times"].append(spent)
        number += 1


class Computing:
    """The process that computes."""

    def __init__(self, path: Path) -> None:
        command = [sys.executable, "-m", "benchmarks.native_soak", "--inside", str(path)]
        self.process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.team: list[int] = self._read()["threads"]

    def figures(self) -> Figures:
        """Return the figures of the steps since the last call."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return self._read()

    def threads(self) -> list[int]:
        return [int(each.name) for each in Path(f"/proc/{self.process.pid}/task").iterdir()]

    def close(self) -> None:
        self.process.kill()
        with self.process:  # waits, and closes its streams
            return

    def _read(self) -> Figures:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"the process has ended with {self.process.wait()}")
        figures: Figures = json.loads(line)
        return figures


@contextmanager
def alone(computing: Computing) -> Iterator[None]:
    yield


@contextmanager
def one_core(computing: Computing) -> Iterator[None]:
    cores = os.sched_getaffinity(0)
    threads = computing.threads()
    for thread in threads:
        os.sched_setaffinity(thread, {min(cores)})
    yield
    for thread in threads:
        os.sched_setaffinity(thread, cores)


@contextmanager
def busy(computing: Computing) -> Iterator[None]:
    command = [sys.executable, "-c", BUSY]
    neighbours = [subprocess.Popen(command) for _ in os.sched_getaffinity(0)]
    yield
    for each in neighbours:
        each.kill()
        each.wait()


@contextmanager
def stopped(computing: Computing) -> Iterator[None]:
    is_over, pause = False, random.Random(0)

    def stop_again_and_again() -> None:
        while not is_over:
            computing.process.send_signal(signal.SIGSTOP)
            time.sleep(pause.uniform(0.005, 0.1))
            computing.process.send_signal(signal.SIGCONT)
            time.sleep(pause.uniform(0.02, 0.2))

    thread = Thread(target=stop_again_and_again)
    thread.start()
    yield
    is_over = True
    thread.join()


@contextmanager
def idle_thread(computing: Computing) -> Iterator[None]:
    for thread in computing.team:
        os.sched_setscheduler(thread, os.SCHED_IDLE, os.sched_param(0))
    with busy(computing):
        yield
    for thread in computing.team:
        os.sched_setscheduler(thread, os.SCHED_OTHER, os.sched_param(0))


PHASES = {
    "alone": alone, "one core": one_core, "busy neighbours": busy, "stopped": stopped,
    "idle thread": idle_thread,
}  # fmt: skip


def soak(path: Path, seconds: float, phase_seconds: float, seed: int) -> list[Figures]:
    """Return the figures of each phase, in order."""
    order = random.Random(seed)
    phases: list[Figures] = []
    computing = Computing(path)
    try:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for name in order.sample(list(PHASES), len(PHASES)):
                computing.figures()
                with PHASES[name](computing):
                    time.sleep(phase_seconds)
                    phases.append({"phase": name, **computing.figures()})
    finally:
        computing.close()
    return phases


def faults(phases: list[Figures]) -> list[str]:
    """Return what is wrong with the results or the memory."""
    wrong = sum(each["wrong"] for each in phases)
    growth = phases[-1]["own"] - phases[2]["own"]
    texts = [f"{wrong} results differ from the first"] if wrong else []
    if growth > MAX_GROWTH:
        texts.append(f"memory has grown by {growth:.1f} MB")
    return texts


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("path", type=Path, metavar="FILE")
    parser.add_argument("--seconds", type=float, default=1200)
    parser.add_argument("--phase-seconds", type=float, default=15)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.inside:
        compute(str(asked.path))
        return
    phases = soak(asked.path.absolute(), asked.seconds, asked.phase_seconds, asked.seed)
    by_name: dict[str, list[Figures]] = defaultdict(list)
    for each in phases:
        by_name[each["phase"]].append(each)
    rows = []
    for name, figures in by_name.items():
        medians = np.median([each["ms"] for each in figures], axis=0)
        longest = max(each["ms"][-1] for each in figures)
        cells = [f"{value:.1f}" for value in (*medians[:2], longest, figures[-1]["own"])]
        rows.append([name, str(sum(each["steps"] for each in figures)), *cells])
    print_table(["", "steps", "median, ms", "99 %", "longest", "own MB at the end"], rows)
    print_json("native_soak", phases=phases)
    if texts := faults(phases):
        raise SystemExit("; ".join(texts))


if __name__ == "__main__":
    main()
