"""What it gives to cut a model over two ranks of one machine.

    python -m benchmarks.ranks [--model DIRECTORY] [--runtime openvino] [--rounds 5]
    python -m benchmarks.ranks --experts even|skewed [...]

In float32 on two threads: one process; `tensor_parallel=2`, two ranks with a thread each; and
`pipeline_parallel=2`, two stages that may use both.  All are loaded at once and asked in turns.
Printed are tokens per second, medians over the rounds, and how many times as fast as the process
the ranks and the stages are: the median of the rounds' ratios, the least and the most.

With `--experts`, ranks with parts of all experts of a mixture (`benchmarks.mixtures`) are compared
with ranks that hold whole experts: placed without counts, by counts of an earlier run, and with
copies of the hottest.  If routing is skewed, four of 32 experts, all of one rank, get most tokens.
Processor time of all processes of a way, relative to that of the first, is printed as well.
"""

import argparse
import multiprocessing
import statistics
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeAlias

from benchmarks.llm_model import FLOAT
from benchmarks.mixtures import PLACE, directory
from benchmarks.processor_time import server_time
from benchmarks.report import print_json, print_table
from mindspore_serving.llm import LLM, SamplingParams

PLACED = {"tensor_parallel": 2, "expert_parallel": True}
COUNTS = PLACE / "counts.json"
# name -> (prompts, tokens of each, tokens of each answer)
WORK = {
    "1 prompt of 512 tokens": (1, 512, 1),
    "1 answer of 48": (1, 4, 48),
    "8 answers of 24": (8, 4, 24),
}
OF_EXPERTS = {
    "1 prompt of 512 tokens": (1, 512, 1),
    "1 answer of 24": (1, 4, 24),
    "4 answers of 24": (4, 4, 24),
    "16 answers of 24": (16, 4, 24),
}
Options: TypeAlias = dict[str, Any]
WAYS: dict[str, Options] = {
    "one process": {}, "2 ranks": {"tensor_parallel": 2}, "2 stages": {"pipeline_parallel": 2}
}  # fmt: skip
EXPERT_WAYS: dict[str, Options] = {
    "parts": {"tensor_parallel": 2},
    "whole": PLACED,
    "by counts": {**PLACED, "expert_counts": str(COUNTS)},
    "with copies": {**PLACED, "expert_counts": str(COUNTS), "expert_replicas": 4},
}


def rate(llm: LLM, count: int, num_prompt: int, num_new: int) -> tuple[float, float]:
    """Tokens a second, of prompts if there is one new token, else of answers; processor seconds."""
    prompts = [[2 + (7 * i + j) % 1000 for j in range(num_prompt)] for i in range(count)]
    params = SamplingParams(temperature=0, max_tokens=num_new, ignore_eos=True)
    began, used = time.perf_counter(), time.process_time() + server_time()
    llm.generate(prompts, params, use_tqdm=False)
    elapsed = time.perf_counter() - began
    used = time.process_time() + server_time() - used
    return count * (num_prompt if num_new == 1 else num_new) / elapsed, used


def serve(model: Path, runtime: str, way: Options, asked: Connection) -> None:
    """The process of one way, as the number of threads is that of a process."""
    options = {
        "dtype": "f32", "num_threads": 2, "kv_cache_memory": 256 << 20, "max_num_seqs": 16,
        "enable_prefix_caching": False, "max_model_len": 1024, "num_speculative_tokens": 0,
    }  # fmt: skip
    with LLM(model, runtime, **way, **options) as llm:
        while (work := asked.recv()) is not None:
            asked.send(rate(llm, *work))


def record(model: Path, runtime: str) -> None:
    """Write the counts of an earlier run with other prompts, of as many tokens as those asked."""
    COUNTS.unlink(missing_ok=True)
    with LLM(model, runtime, **EXPERT_WAYS["by counts"], dtype="f32", max_model_len=1024) as llm:
        prompt = [3 + 11 * i % 1000 for i in range(512)]
        llm.generate([prompt], SamplingParams(temperature=0, max_tokens=48, ignore_eos=True))
        stats = llm.stats()
    uneven = 2 * stats.num_expert_tokens_peak / stats.num_expert_tokens
    print(f"without counts the busier rank of a layer has {uneven:.2f} times the mean", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", type=Path, default=FLOAT)
    parser.add_argument("--experts", choices=("even", "skewed"))
    parser.add_argument("--runtime", choices=("openvino", "torch"), default="openvino")
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    model, options, works = given.model, WAYS, WORK
    if given.experts:
        hot = 4 if given.experts == "skewed" else 0
        model = directory("qwen3-moe", "mixture", "float", hot=hot)
        options, works = EXPERT_WAYS, OF_EXPERTS
        record(model, given.runtime)
    context = multiprocessing.get_context("spawn")
    ways = []
    for way in options.values():
        ours, theirs = context.Pipe()
        context.Process(target=serve, args=(model, given.runtime, way, theirs)).start()
        theirs.close()
        ways.append(ours)
    rows = []
    for name, work in works.items():
        rounds = [[ask(way, work) for way in ways] for _ in range(given.rounds + 1)][1:]
        rates, seconds = ([[each[i] for each in row] for row in rounds] for i in (0, 1))
        medians = [f"{statistics.median(column):,.1f}" for column in zip(*rates, strict=True)]
        ratios = [compared(rates, way) for way in range(1, len(ways))]
        used = [compared(seconds, way) for way in range(1, len(ways))] if given.experts else []
        rows.append([name, *medians, *ratios, *used])
    for way in ways:
        way.send(None)
    first, *others = options
    header = [f"tokens/s, {given.runtime}", *options, *(f"{name}/{first}" for name in others)]
    if given.experts:
        header += [f"{name}/{first}, processor" for name in others]
    print_table(header, rows)
    print_json("ranks", runtime=given.runtime, **{row[0]: row[1:] for row in rows})


def compared(rounds: list[list[float]], way: int) -> str:
    ratios = [rates[way] / rates[0] for rates in rounds]
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


def ask(way: Connection, work: tuple[int, int, int]) -> tuple[float, float]:
    way.send(work)
    rate_and_seconds: tuple[float, float] = way.recv()
    return rate_and_seconds


if __name__ == "__main__":
    main()
