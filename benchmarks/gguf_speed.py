"""GGUF files beside llama.cpp, request by request in turns: step times, prompts and processor time.

    python -m benchmarks.gguf_speed FILE ... [--rounds 8] [--warm-up 20] [--only "ours native"]
        [--streams 1,4,16] [--threads 1]

Each engine has a process of its own, which is stopped while another computes (`llm_process`).
In each round each gets the same tasks: answers of one, 4 and 16 streams behind prompts of 128
tokens, and two prompts of 256 tokens.  Before the first round it computes such tasks for so many
seconds, in which the runtime "combined" packs OpenVINO's graph and measures.

Told are the best and the median of milliseconds from token to token, or of prompt tokens per
second, the median of processor milliseconds of such a step, or of processor seconds of the prompts,
and the ratio to llama.cpp in the same round, its median with the middle 80 %, above 1 where ours is
faster.  llama.cpp's threads wait for each other in a loop: where other programs use the cores,
compare processor times with one thread.  "read" is what the best step of one stream reads per
second, if it reads the file once.
"""

import argparse
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np

from benchmarks import llm_workloads as workloads
from benchmarks.llm_contenders import Contender
from benchmarks.llm_figures import Reply, processor_ms, prompt_rate, step_ms
from benchmarks.llm_process import Process
from benchmarks.llm_steps import numbers
from benchmarks.processes import end_on_sigterm
from benchmarks.report import print_json, print_table

PEER = "llama.cpp"
CACHE = 256 << 20  # bytes for keys and values of ours
CONTEXT = 8192  # tokens that llama.cpp has them for


@dataclass(frozen=True, slots=True)
class Case:
    """A task, and its figure, of which more is faster if `is_rate`."""

    name: str
    task: Callable[[int], workloads.Task]
    figure: Callable[[Reply], float]
    spent: Callable[[Reply], float]
    is_rate: bool = False


def streams(count: int) -> Case:
    name = f"{count} stream{'s' * (count > 1)}, ms"
    return Case(
        name, lambda seed: workloads.decode(count, seed), lambda reply: step_ms(reply, count),
        lambda reply: processor_ms(reply, count),
    )  # fmt: skip


PROMPTS = Case(
    "prompts, tokens/s", lambda seed: workloads.prefill(256, seed, 512), prompt_rate,
    lambda reply: reply["processor"], is_rate=True,
)  # fmt: skip


def contenders(threads: int | None) -> list[Contender]:
    ours = "benchmarks.runners.ours"
    options: dict[str, object] = {
        "kv_cache_memory": CACHE,
        "num_speculative_tokens": 0,
        "max_num_seqs": 16,
    }
    options["num_threads"] = threads
    made = [
        Contender(f"ours {name}", "ours", "gguf", ours, None, 0.0, {**options, "runtime": name})
        for name in ("native", "combined")
    ]
    module, place = "benchmarks.runners.llama_cpp_batched", "llm_llama_cpp"
    sizes: dict[str, object] = {"n_ctx": CONTEXT}
    if threads is not None:
        sizes |= {"n_threads": threads, "n_threads_batch": threads}
    return [Contender(PEER, PEER, "gguf", module, place, 0.0, sizes), *made]


def warm_up(process: Process, cases: Sequence[Case], seconds: float) -> None:
    end, seed = time.monotonic() + seconds, 1000
    while time.monotonic() < end or seed < 1001:
        for case in cases:
            process.ask(case.task(seed))
        seed += 1


def measured(
    processes: list[Process], cases: Sequence[Case], rounds: int
) -> dict[tuple[str, str], list[tuple[float, float]]]:
    """Return by case and engine the figure, and the processor seconds, of each round."""
    values = defaultdict(list)
    for number in range(rounds):
        for case in cases:
            task = case.task(number)
            for process in processes[:: 1 if number % 2 else -1]:
                before = process.processor_seconds()
                reply = process.ask(task)
                reply["processor"] = process.processor_seconds() - before
                figures = case.figure(reply), case.spent(reply)
                values[case.name, process.contender.name].append(figures)
    return values


def print_file(path: Path, asked: argparse.Namespace) -> None:
    rounds, names = asked.rounds, asked.only.split(",")
    cases = [*(streams(count) for count in asked.streams), PROMPTS]
    chosen = contenders(asked.threads)
    chosen = [each for each in chosen if not asked.only or each.name in (PEER, *names)]
    processes = []
    try:
        for contender in chosen:
            processes.append(Process(contender, None, path))
            warm_up(processes[-1], cases, asked.warm_up)
        values = measured(processes, cases, rounds)
    finally:
        for process in processes:
            process.close()
    rows = []
    for case in cases:
        theirs = np.array(values[case.name, PEER])
        for contender in chosen:
            ours = np.array(values[case.name, contender.name])
            figures, spent = (median(column.tolist()) for column in ours.T)
            best = float(ours[:, 0].max() if case.is_rate else ours[:, 0].min())
            cells = [contender.name, f"{best:.1f}", f"{figures:.1f}", f"{spent:.2f}"]
            speeds = (ours / theirs if case.is_rate else theirs / ours)[:, 0]
            for ratios in (speeds, (theirs / ours)[:, 1]):
                low, high = np.percentile(ratios, [10, 90])
                cells.append(f"{np.median(ratios):.2f} ({low:.2f} to {high:.2f})")
            is_single = case.name.startswith("1 ")
            cells.append(f"{path.stat().st_size / best / 1e6:.1f}" if is_single else "")
            rows.append([f"{path.stem}, {case.name}", *cells])
    header = ["engine", "best", "median", "processor", "speed", "by processor time", "read, GB/s"]
    print_table(["", *header], rows)
    by_case = {f"{case}, {name}": each for (case, name), each in values.items()}
    print_json("gguf_speed", path=path.name, rounds=rounds, **by_case)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gguf_speed")
    parser.add_argument("paths", nargs="+", type=Path, metavar="FILE")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--warm-up", type=float, default=20.0, help="seconds")
    parser.add_argument("--only", default="", help="engines beside llama.cpp, by commas")
    parser.add_argument("--streams", type=numbers, default=[1, 4, 16])
    parser.add_argument("--threads", type=int, help="of each engine")
    asked = parser.parse_args()
    end_on_sigterm()
    for path in asked.paths:
        print_file(path.absolute(), asked)


if __name__ == "__main__":
    main()
