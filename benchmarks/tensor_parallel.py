"""What it gives to cut a model over two ranks of one machine.

    python -m benchmarks.tensor_parallel [--model DIRECTORY] [--rounds 5]

The torch runtime in float32 on two threads: one process with both, and two ranks with one each.
All are loaded at once and asked in turns; printed are tokens per second, medians over the rounds,
and how many times as fast the ranks are: the median of the rounds' ratios, the least and the most.
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
WAYS = (1, 2)


def rate(llm: LLM, count: int, num_prompt: int, num_new: int) -> float:
    """Tokens a second, of prompts if there is one new token, else of answers."""
    prompts = [[2 + (7 * i + j) % 1000 for j in range(num_prompt)] for i in range(count)]
    params = SamplingParams(temperature=0, max_tokens=num_new, ignore_eos=True)
    began = time.perf_counter()
    llm.generate(prompts, params, use_tqdm=False)
    elapsed = time.perf_counter() - began
    return count * (num_prompt if num_new == 1 else num_new) / elapsed


def serve(model: Path, size: int, asked: Connection) -> None:
    """The process of one way, as the number of threads is that of a process."""
    options = {
        "dtype": "f32", "num_threads": 2, "kv_cache_memory": 256 << 20,
        "enable_prefix_caching": False, "max_num_seqs": 8, "max_model_len": 1024,
    }  # fmt: skip
    with LLM(model, "torch", tensor_parallel=size, **options) as llm:
        while (work := asked.recv()) is not None:
            asked.send(rate(llm, *work))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", type=Path, default=FLOAT)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    ways = []
    for size in WAYS:
        ours, theirs = context.Pipe()
        context.Process(target=serve, args=(arguments.model, size, theirs)).start()
        theirs.close()
        ways.append(ours)
    rows = []
    for name, work in WORK.items():
        pairs = [[ask(way, work) for way in ways] for _ in range(arguments.rounds + 1)][1:]
        one, two = (statistics.median(column) for column in zip(*pairs, strict=True))
        ratios = [pair[1] / pair[0] for pair in pairs]
        found = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
        rows.append([name, f"{one:,.1f}", f"{two:,.1f}", found])
    for way in ways:
        way.send(None)
    print_table(["tokens/s", "one process", "two ranks", "ranks/process"], rows)
    print_json("tensor_parallel", **{row[0]: row[1:] for row in rows})


def ask(way: Connection, work: tuple[int, int, int]) -> float:
    way.send(work)
    found: float = way.recv()
    return found


if __name__ == "__main__":
    main()
