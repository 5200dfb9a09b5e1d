"""What it gives to cut a model over two ranks of one machine.

    python -m benchmarks.ranks [--model DIRECTORY] [--runtime openvino] [--rounds 5]

In float32 on two threads: one process; `tensor_parallel=2`, two ranks with a thread each; and
`pipeline_parallel=2`, two stages that may use both.  All are loaded at once and asked in turns.
Printed are tokens per second, medians over the rounds, and how many times as fast as the process
the ranks and the stages are: the median of the rounds' ratios, the least and the most.
"""

import argparse
import multiprocessing
import statistics
import time
from multiprocessing.connection import Connection
from pathlib import Path

from benchmarks.llm_model import FLOAT
from benchmarks.report import print_json, print_table
from mindspore_serving.llm import LLM, SamplingParams

# name -> (prompts, tokens of each, tokens of each answer)
WORK = {
    "1 prompt of 512 tokens": (1, 512, 1),
    "1 answer of 48": (1, 4, 48),
    "8 answers of 24": (8, 4, 24),
}
WAYS = {"one process": {}, "2 ranks": {"tensor_parallel": 2}, "2 stages": {"pipeline_parallel": 2}}


def rate(llm: LLM, count: int, num_prompt: int, num_new: int) -> float:
    """Tokens a second, of prompts if there is one new token, else of answers."""
    prompts = [[2 + (7 * i + j) % 1000 for j in range(num_prompt)] for i in range(count)]
    params = SamplingParams(temperature=0, max_tokens=num_new, ignore_eos=True)
    began = time.perf_counter()
    llm.generate(prompts, params, use_tqdm=False)
    elapsed = time.perf_counter() - began
    return count * (num_prompt if num_new == 1 else num_new) / elapsed


def serve(model: Path, runtime: str, way: dict[str, int], asked: Connection) -> None:
    """The process of one way, as the number of threads is that of a process."""
    options = {
        "dtype": "f32", "num_threads": 2, "kv_cache_memory": 256 << 20, "max_num_seqs": 8,
        "enable_prefix_caching": False, "max_model_len": 1024, "num_speculative_tokens": 0,
    }  # fmt: skip
    with LLM(model, runtime, **way, **options) as llm:
        while (work := asked.recv()) is not None:
            asked.send(rate(llm, *work))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", type=Path, default=FLOAT)
    parser.add_argument("--runtime", choices=("openvino", "torch"), default="openvino")
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    ways = []
    for way in WAYS.values():
        ours, theirs = context.Pipe()
        context.Process(target=serve, args=(given.model, given.runtime, way, theirs)).start()
        theirs.close()
        ways.append(ours)
    rows = []
    for name, work in WORK.items():
        rounds = [[ask(way, work) for way in ways] for _ in range(given.rounds + 1)][1:]
        rates = [f"{statistics.median(column):,.1f}" for column in zip(*rounds, strict=True)]
        rows.append([name, *rates, *(compared(rounds, way) for way in range(1, len(WAYS)))])
    for one in ways:
        one.send(None)
    names = list(WAYS)
    header = [f"tokens/s, {given.runtime}", *names, *(f"{name}/process" for name in names[1:])]
    print_table(header, rows)
    print_json("ranks", runtime=given.runtime, **{row[0]: row[1:] for row in rows})


def compared(rounds: list[list[float]], way: int) -> str:
    ratios = [rates[way] / rates[0] for rates in rounds]
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


def ask(way: Connection, work: tuple[int, int, int]) -> float:
    way.send(work)
    found: float = way.recv()
    return found


if __name__ == "__main__":
    main()
