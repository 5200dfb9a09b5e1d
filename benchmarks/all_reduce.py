"""Summing an array over the ranks of one machine: by PyTorch's gloo, and through shared memory.

    python -m benchmarks.all_reduce [--ranks 2] [--rounds 15]

Both sum float32 arrays in the same processes, in turns, one thread each.  Printed are rank 0's
microseconds, medians over the rounds, and how many times as long gloo takes: the median of the
rounds' ratios, and the interval that holds nine tenths of them.
"""

import argparse
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

import torch
from torch import distributed

from benchmarks.report import print_json, print_table
from mindspore_serving.llm.parallel.exchange import RankExchange
from mindspore_serving.llm.parallel.group import RankGroup
from mindspore_serving.llm.parallel.links import Links, create_memory
from mindspore_serving.llm.parallel.processes import connect_ranks

SIZES = {"4 KB": 4 << 10, "64 KB": 64 << 10, "512 KB": 512 << 10, "4 MB": 4 << 20}
SECONDS = 0.1  # of a way in a round, about

Rounds = list[tuple[float, float]]  # seconds of one sum by gloo and through shared memory


def rank(group: RankGroup, place: Path, rounds: int, found: Connection) -> None:
    """One process."""
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo", init_method=f"file://{place}", rank=group.rank, world_size=group.size
    )
    exchange = RankExchange(group, group.size)
    results: dict[str, Rounds] = {}
    for name, size in SIZES.items():
        one = torch.full((size // 4,), 1.0 / (group.rank + 1))
        given = one.clone()
        distributed.all_reduce(given)
        exchange.sum(one.numpy(), one.numpy())
        torch.testing.assert_close(given, one)
        x = torch.zeros(size // 4)  # of which the sum is that, however often
        count = max(5, int(SECONDS / (200e-6 + size / 1e9)))

        ways = (partial(distributed.all_reduce, x), partial(exchange.sum, x.numpy(), x.numpy()))
        results[name] = [(seconds(ways[0], count), seconds(ways[1], count)) for _ in range(rounds)]
    if group.rank == 0:
        found.send(results)
    group.close()
    distributed.destroy_process_group()


def seconds(work: Callable[[], object], count: int) -> float:
    """Of one call, after a few that are not counted."""
    for _ in range(3):
        work()
    began = time.perf_counter()
    for _ in range(count):
        work()
    return (time.perf_counter() - began) / count


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=15)
    arguments = parser.parse_args()
    size = arguments.ranks
    results = measured(size, arguments.rounds)
    rows = []
    for name, pairs in results.items():
        ratios = sorted(gloo / memory for gloo, memory in pairs)
        low, high = ratios[len(ratios) // 20], ratios[-1 - len(ratios) // 20]
        gloo, memory = (statistics.median(pair[way] for pair in pairs) * 1e6 for way in (0, 1))
        ratio = f"{statistics.median(ratios):.2f} ({low:.2f} to {high:.2f})"
        rows.append([name, f"{gloo:,.0f}", f"{memory:,.0f}", ratio])
    print_table([f"{size} ranks", "gloo, us", "shared memory, us", "gloo/shared"], rows)
    print_json("all_reduce", ranks=size, **{row[0]: row[1:] for row in rows})


def measured(size: int, rounds: int) -> dict[str, Rounds]:
    """By `size` processes that are forked, with their sockets."""
    context = multiprocessing.get_context("fork")
    memory, peers = create_memory(size), connect_ranks(size)
    ours, theirs = context.Pipe(duplex=False)
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory) / "gloo"

        def run(number: int) -> None:
            for other, sockets in enumerate(peers):
                if other != number:
                    for one in sockets.values():
                        one.close()
            rank(RankGroup(Links(number, peers[number], memory)), place, rounds, theirs)
            os._exit(0)

        processes = [context.Process(target=run, args=(number,)) for number in range(size)]
        for process in processes:
            process.start()
        theirs.close()
        results: dict[str, Rounds] = ours.recv()
        for process in processes:
            process.join()
    return results


if __name__ == "__main__":
    main()
