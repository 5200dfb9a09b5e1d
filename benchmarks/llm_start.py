"""Seconds from starting `serve MODEL.gguf` to the first token of a completion, and where they go.

`python -m benchmarks.llm_start PATH[@OPTIONS] ... [--rounds N] [--against CHECKOUT] [--parts]
[--alone] [--llama-cpp PYTHON]`

OPTIONS are those of `serve`, as `runtime=openvino` or `memory=low`, divided by commas.

Each round starts a server with an empty cache directory and then a second one, which finds what
the first has kept.  "processor" is the time of the server and its worker, which a busy machine
changes less than seconds.  With another checkout both start in turns; its time over this one's is
told with the interval of that median by bootstrap.  `--alone` runs all at real-time priority, so
that other programs of a busy machine wait meanwhile (as root).  PYTHON has the package xllamacpp,
whose server is started in turns.  `--parts` loads each model twice in a process
like a worker's instead, and tells the parts of that apart; time in a part that another part calls
is the other's.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any, ClassVar

from benchmarks.llm_figures import interval
from benchmarks.processes import ROOT, free_ports, running
from benchmarks.report import print_json, print_table

CACHE = "MINDSPORE_SERVING_CACHE"
STARTS = ("first start", "second start")
BESIDE = "beside: "  # before parts on another thread
LLM = "mindspore_serving.llm."
OPENVINO = LLM + "runtimes.openvino."
# Parts of loading by the functions that do them, as "module:name".
PARTS = {
    "map the file, read metadata": LLM + "checkpoint.gguf.reader:GgufFile.__init__",
    "tokenizer.json": LLM + "tokenization.tokenizer:read_tokenizer",
    "other tokenizer": LLM + "loader:Tokenizer.open",
    "chat template": LLM + "loader:ChatTemplate.open",
    "recommended sampling": LLM + "loader:read_recommended",
    "check paged attention": OPENVINO + "opening:check_paged_attention",
    "check repacking": OPENVINO + "opening:packed_once",
    "build the graph": OPENVINO + "opening:build_model",
    "compile": OPENVINO + "opening:compile_graph",
    "pack weights": OPENVINO + "runner:OpenVINORunner._pack",
    "warm up": OPENVINO + "runner:OpenVINORunner._warm_up",
    "plan of native": LLM + "runtimes.combined.opening:plan_model",
    "steps of native": LLM + "runtimes.native.runner:NativeRunner.run",
}


class Clock(threading.local):
    """Seconds and processor seconds of parts; those of a part inside another are its own.

    Other threads than the main one have an own clock, whose parts are called "beside: ...".
    """

    spent: ClassVar[dict[str, list[float]]] = {}  # of all threads

    def __init__(self) -> None:
        self._is_main = threading.current_thread() is threading.main_thread()
        self._open: list[str] = []
        self._since = self._now()

    def _now(self) -> tuple[float, float]:
        spent = time.process_time() if self._is_main else time.thread_time()
        return time.perf_counter(), spent

    def _charge(self, part: str) -> None:
        now = self._now()
        spent = self.spent.setdefault(part, [0.0, 0.0])
        for i in range(2):
            spent[i] += now[i] - self._since[i]
        self._since = now

    def timed(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*values: Any, **options: Any) -> Any:
            if self._open or self._is_main:
                self._charge(self._open[-1] if self._open else "other")
            else:
                self._since = self._now()
            self._open.append(part if self._is_main else f"{BESIDE}{part}")
            try:
                return function(*values, **options)
            finally:
                self._charge(self._open.pop())

        return run

    def follow(self, part: str, place: str) -> None:
        module, _, path = place.partition(":")
        owner: Any = import_module(module)
        *outer, name = path.split(".")
        for each in outer:
            owner = getattr(owner, each)
        setattr(owner, name, self.timed(part, getattr(owner, name)))


def parts(path: Path) -> dict[str, list[float]]:
    """Load `path` in this process; seconds and processor seconds by part."""
    clock = Clock()
    clock.timed("import", import_module)("mindspore_serving.llm.serving.async_engine")
    clock.timed("import", import_module)("mindspore_serving.llm.runtimes.openvino.opening")
    for part, place in PARTS.items():
        clock.follow(part, place)

    def opened() -> None:
        from mindspore_serving.llm import LLM, SamplingParams

        with LLM(path) as llm:
            clock.timed("first token", llm.generate)(["Hello"], SamplingParams(max_tokens=1))
            print(json.dumps(clock.spent), flush=True)

    clock.timed("other", opened)()
    return clock.spent


def started(text: str, cache: str, root: Path = ROOT, llama_cpp: str = "") -> tuple[float, float]:
    """Seconds, and processor seconds of all its processes, from the start to the first token.

    Of our server in `root`, or of llama.cpp's by the interpreter `llama_cpp`.
    """
    name, _, options = text.partition("@")
    path = Path(name).absolute()
    (port,) = free_ports(1)
    url = f"http://127.0.0.1:{port}/v1/completions"
    body = json.dumps({"model": path.stem, "prompt": "Hello", "max_tokens": 1}).encode()
    spent = 0.0

    def ready() -> bool:
        nonlocal spent
        request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
        with suppress(urllib.error.HTTPError), urllib.request.urlopen(request, timeout=60) as reply:
            has_token = bool(json.load(reply)["choices"])
            spent = processor_seconds(cache)
            return has_token
        return False

    command = [sys.executable, "-m", "mindspore_serving", "serve", str(path), "--no-grpc"]
    command += ["--http-port", str(port), *(f"--{one}" for one in options.split(",") if one)]
    if llama_cpp:
        command = [llama_cpp, str(ROOT / "benchmarks/servers/llama_cpp.py"), str(path), str(port)]
    command = ["env", "-C", str(root), f"{CACHE}={cache}", *command]
    with running("llm_start", command, ready, limit=300) as seconds:
        return seconds, spent


def processor_seconds(cache: str) -> float:
    """Return the processor time of the processes with `cache` in their environment, in seconds."""
    total, mark = 0, f"{CACHE}={cache}".encode()
    for directory in Path("/proc").iterdir():
        with suppress(OSError, ValueError):
            if mark in (directory / "environ").read_bytes().split(b"\0"):
                fields = (directory / "stat").read_text().rpartition(")")[2].split()
                total += int(fields[11]) + int(fields[12])  # utime, stime
    return total / os.sysconf("SC_CLK_TCK")


def loaded(path: Path) -> Iterator[dict[str, list[float]]]:
    command = [sys.executable, "-m", "benchmarks.llm_start", "--inside", str(path)]
    with tempfile.TemporaryDirectory() as cache:
        for _ in STARTS:
            done = subprocess.run(
                command, cwd=ROOT, env={**os.environ, CACHE: cache}, check=True, text=True,
                stdout=subprocess.PIPE,
            )  # fmt: skip
            yield json.loads(done.stdout.splitlines()[-1])


def print_parts(path: Path) -> None:
    first, second = loaded(path)
    names = [*first, *(name for name in second if name not in first)]
    rows = []
    for name in names:
        cells = [*first.get(name, (0, 0)), *second.get(name, (0, 0))]
        rows.append([name, *(f"{cell:.2f}" for cell in cells)])
    totals = [
        sum(part[i] for name, part in found.items() if not name.startswith(BESIDE))
        for found in (first, second)
        for i in (0, 1)
    ]
    rows.append(["all", *(f"{total:.2f}" for total in totals)])
    header = [path.name, *(f"{start}, {unit}" for start in STARTS for unit in ("s", "processor"))]
    print_table(header, rows)
    print_json("llm_start_parts", path=path.name, first=first, second=second)


def print_starts(paths: list[str], rounds: int, roots: list[Path], llama_cpp: str = "") -> None:
    found: dict[tuple[str, str, Path], list[tuple[float, float]]] = {}
    for _ in range(rounds):
        for path in paths:
            with ExitStack() as stack:
                caches = [stack.enter_context(tempfile.TemporaryDirectory()) for _ in roots]
                for start in STARTS:
                    for root, cache in zip(roots, caches, strict=True):
                        key = (Path(path).name, start, root)
                        found.setdefault(key, []).append(started(path, cache, root))
                if llama_cpp:
                    key = (Path(path).name, "llama.cpp", ROOT)
                    found.setdefault(key, []).append(started(path, caches[0], ROOT, llama_cpp))
    rows, results = [], {}
    for (stem, start, root), values in found.items():
        seconds, spent = zip(*values, strict=True)
        cells = [f"{each:.2f}" for each in (median(seconds), *_ends(seconds), median(spent))]
        here = found[stem, start, ROOT]
        for unit in (0, 1):
            ratios = [a[unit] / b[unit] for a, b in zip(values, here, strict=True)]
            low, high = interval(ratios)
            cells.append(f"{median(ratios):.2f} ({low:.2f} to {high:.2f})" if root != ROOT else "")
        name = f"{stem}, {start}" + (", other checkout" if root != ROOT else "")
        rows.append([name, *cells])
        results[name] = values
    header = ["seconds", "best", "worst", "processor", "ratio, seconds", "ratio, processor"]
    print_table(["", *header], rows)
    print_json("llm_start", rounds=rounds, **results)


def _ends(values: Sequence[float]) -> tuple[float, float]:
    return min(values), max(values)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.llm_start")
    parser.add_argument("paths", nargs="+", metavar="PATH[@OPTIONS]")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--against", type=Path, help="another checkout, in turns with this one")
    parser.add_argument("--parts", action="store_true")
    parser.add_argument("--alone", action="store_true", help="at real-time priority")
    parser.add_argument("--llama-cpp", default="", metavar="PYTHON", help="that has xllamacpp")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.alone:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    if asked.inside:
        parts(*map(Path, asked.paths))
    elif asked.parts:
        for path in asked.paths:
            print_parts(Path(path).absolute())
    else:
        roots = [ROOT, *([asked.against.absolute()] if asked.against else [])]
        print_starts(asked.paths, asked.rounds, roots, asked.llama_cpp)


if __name__ == "__main__":
    main()
