"""Processes of ranks 1 and up: started, watched and ended by rank 0."""

import asyncio
import os
import socket
from collections.abc import Mapping
from contextlib import ExitStack
from itertools import combinations

from mindspore_serving.aio import BackgroundLoop, within
from mindspore_serving.llm.parallel import messages
from mindspore_serving.llm.parallel.links import Links, create_memory
from mindspore_serving.llm.parallel.messages import FromRank
from mindspore_serving.llm.parallel.msrun import (
    JoinedProcess,
    MsrunRole,
    check_user,
    connect,
    pass_to,
    read_role,
)
from mindspore_serving.process.channel import BlockingChannel
from mindspore_serving.process.child import Child, Program
from mindspore_serving.process.group import Group, ProcessMember

MODULE = "mindspore_serving.llm.runtimes.rank"
CHANNEL_SECONDS = 120.0  # timeout for a rank to read a step, or to load
LOST_STATUS = 3  # of a rank that ends because another one has


class RankProcess(ProcessMember):
    """Child process of one rank."""

    def __init__(self, rank: int, peers: Mapping[int, socket.socket], memory: int) -> None:
        """Start it with sockets to its `peers` and the shared `memory`.  Raises OSError."""
        self.rank = rank
        descriptors = {peer: end.fileno() for peer, end in peers.items()}
        arguments = [f"{peer}={descriptor}" for peer, descriptor in descriptors.items()]
        words = ["--rank", str(rank), "--memory", str(memory), "--peers", *arguments]
        inherited = [memory, *descriptors.values()]
        child = Child(Program(MODULE, words, inherited, channel=socket.SOCK_STREAM))
        channel = BlockingChannel[FromRank](child.stream, FromRank, CHANNEL_SECONDS)
        super().__init__(f"rank {rank}", child, channel, messages)

    def describe_exit(self, status: int) -> str:
        """Describe the end of the process; "" if it ended because another rank has."""
        return "" if status == LOST_STATUS else super().describe_exit(status)


class JoinedRank(ProcessMember):
    """Process of one rank that msrun has started."""

    def __init__(
        self, role: MsrunRole, rank: int, peers: Mapping[int, socket.socket], memory: int
    ) -> None:
        """Pass it what `RankProcess` passes.  Raises OSError, and StartError without such a rank.

        It has sockets to its `peers`, and the shared `memory`.
        """
        self.rank = rank
        stream = connect(role, rank)
        pass_to(stream, memory, peers)
        channel = BlockingChannel[FromRank](stream, FromRank, CHANNEL_SECONDS)
        super().__init__(f"rank {rank}", JoinedProcess(check_user(stream)), channel, messages)

    def describe_exit(self, status: int) -> str:
        return "has ended, see its log by msrun"


class Ranks:
    """Group of ranks 1 and up, for the thread of rank 0, which has no event loop."""

    def __init__(self) -> None:
        self.processes: list[RankProcess | JoinedRank] = []
        self._loop = BackgroundLoop()
        self._group = self._loop.run(_new_group())
        self._is_closed = False

    def add(self, process: RankProcess | JoinedRank) -> None:
        """Add a rank, which lives and ends with the other ranks."""
        self.processes.append(process)
        self._loop.run(_add(self._group, process))

    def wait_until_ready(self) -> None:
        """Wait until all ranks have loaded.

        Raises StartError with the failure or the end of the first rank that cannot load, and
        TimeoutError.
        """
        try:
            self._loop.run(within(CHANNEL_SECONDS, self._group.ready()))
        except asyncio.TimeoutError:
            raise TimeoutError(f"ranks have not loaded within {CHANNEL_SECONDS:g} s") from None

    def cause(self) -> str:
        """Return which rank has ended first, and how, as the end of a sentence; "" if none has."""
        text = "" if self._is_closed else self._loop.run(self._group.find_cause())
        return f"; {text}" if text else ""

    def close(self) -> None:
        """End all ranks.  Harmless a second time."""
        if not self._is_closed:
            self._is_closed = True
            self._loop.run(self._group.close())
            self._loop.close()


async def _new_group() -> Group:
    return Group()


async def _add(group: Group, process: ProcessMember) -> None:
    group.add(process)


def connect_ranks(size: int) -> list[dict[int, socket.socket]]:
    """Return for each rank its sockets to the other ranks, by their numbers."""
    sockets: list[dict[int, socket.socket]] = [{} for _ in range(size)]
    for low, high in combinations(range(size), 2):
        pair = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        sockets[low][high], sockets[high][low] = pair
    return sockets


def start_ranks(size: int) -> tuple[Links, Ranks]:
    """Return the links of this process, which is rank 0 of `size`, and the other ranks.

    Raises OSError or StartError if they cannot be started, or joined; then none is left.
    """
    role = read_role()
    with ExitStack() as passing, ExitStack() as failing:
        memory = create_memory(size)
        passing.callback(os.close, memory)
        sockets = connect_ranks(size)
        for rank, peers in enumerate(sockets):
            for end in peers.values():
                (passing if rank else failing).callback(end.close)
        ranks = Ranks()
        failing.callback(ranks.close)
        for rank in range(1, size):
            passed = rank, sockets[rank], memory
            ranks.add(RankProcess(*passed) if role is None else JoinedRank(role, *passed))
        links = Links(0, sockets[0], memory)
        failing.pop_all()
        return links, ranks
