"""Summing an array over ranks: by PyTorch's gloo, and as ranks of a model do.

    python -m benchmarks.all_reduce [--ranks 2] [--rounds 15] [--machines]

Ranks of one machine sum through shared memory; with `--machines` there are two ranks, each on its
"machine", a process at 127.0.0.1, which TLS connects (gloo has none).  Both ways sum float32
arrays in the same processes, in turns, one thread each.  Printed are rank 0's microseconds,
medians over the rounds, and how many times as long gloo takes: the median of the rounds' ratios,
and the interval that holds nine tenths of them.
"""

import argparse
import asyncio
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from torch import distributed

from benchmarks.report import print_json, print_table
from mindspore_serving.core.placement import GroupCredentials
from mindspore_serving.llm.parallel.bridge import Bridge, Ends
from mindspore_serving.llm.parallel.bridge_messages import FromMachine, Greeting
from mindspore_serving.llm.parallel.exchange import RankExchange
from mindspore_serving.llm.parallel.group import RankGroup
from mindspore_serving.llm.parallel.links import Links, RankMemory, create_memory
from mindspore_serving.llm.parallel.machine_end import MachineEnd
from mindspore_serving.llm.parallel.peer import Peer
from mindspore_serving.llm.parallel.processes import connect_machine, connect_ranks
from mindspore_serving.tls import make_group_certificate

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
    group.links.close()
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
    parser.add_argument("--machines", action="store_true", help="two ranks on a machine each")
    arguments = parser.parse_args()
    size = 2 if arguments.machines else arguments.ranks
    results = measured(size, arguments.rounds, by_machines=arguments.machines)
    rows = []
    for name, pairs in results.items():
        ratios = sorted(gloo / memory for gloo, memory in pairs)
        low, high = ratios[len(ratios) // 20], ratios[-1 - len(ratios) // 20]
        gloo, memory = (statistics.median(pair[way] for pair in pairs) * 1e6 for way in (0, 1))
        ratio = f"{statistics.median(ratios):.2f} ({low:.2f} to {high:.2f})"
        rows.append([name, f"{gloo:,.0f}", f"{memory:,.0f}", ratio])
    way = "machines, TLS" if arguments.machines else "shared memory"
    print_table([f"{size} ranks", "gloo, us", f"{way}, us", "gloo/ours"], rows)
    name = "all_reduce_machines" if arguments.machines else "all_reduce"
    print_json(name, ranks=size, **{row[0]: row[1:] for row in rows})


class OpenMachine(MachineEnd):
    """Machine of a pair, with a single rank."""

    def open(self, memory: int, ends: Ends) -> None:
        shared = RankMemory(memory, 2)
        self.bridge = Bridge(self.machine, (1, 1), shared, ends, self.peers)

    def on_message(self, peer: Peer, message: FromMachine) -> None:
        if not isinstance(message, Greeting):
            super().on_message(peer, message)


async def carry(
    number: int, memory: int, ends: Ends, credentials: GroupCredentials, ports: Connection
) -> None:
    """Carry notices between the rank of a machine and the other machine, until that ends."""
    end = OpenMachine(number, credentials)
    if number:
        accepted = asyncio.get_running_loop().create_future()

        def accept() -> Peer:
            peer = Peer(end, 0)
            end.add(peer)
            accepted.set_result(peer)
            return peer

        context = end.context(accepts=True)
        listening = await asyncio.get_running_loop().create_server(
            accept, "127.0.0.1", 0, ssl=context
        )
        ports.send(listening.sockets[0].getsockname()[1])
        await accepted
    else:
        await end.dial(1, f"127.0.0.1:{await asyncio.to_thread(ports.recv)}")
    end.open(memory, ends)
    await end.lost


def measured(size: int, rounds: int, *, by_machines: bool) -> dict[str, Rounds]:
    """By `size` processes that are forked, with their sockets."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    ports = context.Pipe(duplex=False)
    bridges = []
    if by_machines:
        memories = [create_memory(size) for _ in range(size)]
        connected = [connect_machine(range(rank, rank + 1), size) for rank in range(size)]
        peers = [sockets[rank] for rank, (sockets, _) in enumerate(connected)]
        credentials = GroupCredentials(*make_group_certificate())
        for number, (_, ends) in enumerate(connected):
            passed = number, memories[number], ends, credentials, ports[number]
            bridges.append(context.Process(target=run_bridge, args=passed, daemon=True))
    else:
        memories, peers = [create_memory(size)] * size, connect_ranks(size)
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory) / "gloo"

        def run(number: int) -> None:
            for other, sockets in enumerate(peers):
                if other != number:
                    for one in sockets.values():
                        one.close()
            links = Links(number, peers[number], memories[number])
            rank(RankGroup(links), place, rounds, theirs)
            os._exit(0)

        processes = [context.Process(target=run, args=(number,)) for number in range(size)]
        for process in bridges + processes:
            process.start()
        theirs.close()
        results: dict[str, Rounds] = ours.recv()
        for process in processes:
            process.join()
        for process in bridges:
            process.kill()
    return results


def run_bridge(*passed: Any) -> None:
    """Carry messages between machines, in a process beside the rank."""
    asyncio.run(carry(*passed))


if __name__ == "__main__":
    main()
