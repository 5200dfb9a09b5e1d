"""Processes of ranks 1 and up: started, watched and ended by rank 0.

Ranks of other machines are started by hosts there; the process of a bridge connects them.
"""

import asyncio
import os
import socket
from collections.abc import Mapping
from contextlib import ExitStack
from itertools import combinations, product
from typing import TypeAlias

from mindspore_serving.aio import BackgroundLoop, within
from mindspore_serving.core.placement import RankPlacement
from mindspore_serving.llm.parallel import messages
from mindspore_serving.llm.parallel.links import Links, create_memory
from mindspore_serving.llm.parallel.machines import read_placement
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
BRIDGE = "mindspore_serving.llm.parallel.bridge_process"
CHANNEL_SECONDS = 120.0  # timeout for a rank to read a step, or to load
LOST_STATUS = 3  # of a rank that ends because another one has
Pair: TypeAlias = tuple[int, int]


class RankProcess(ProcessMember):
    """Child process of one rank."""

    def __init__(
        self, rank: int, peers: Mapping[int, socket.socket], memory: int, num_local: int = 0
    ) -> None:
        """Start it with sockets to its `peers` and the shared `memory`.  Raises OSError.

        `num_local` is the number of ranks on this machine; 0 for all.
        """
        self.rank = rank
        descriptors = {peer: end.fileno() for peer, end in peers.items()}
        arguments = [f"{peer}={descriptor}" for peer, descriptor in descriptors.items()]
        words = ["--rank", str(rank), "--memory", str(memory), "--local", str(num_local)]
        words += ["--peers", *arguments]
        inherited = [memory, *descriptors.values()]
        child = Child(Program(MODULE, words, inherited, channel=socket.SOCK_STREAM))
        channel = BlockingChannel[FromRank](child.stream, FromRank, CHANNEL_SECONDS)
        super().__init__(f"rank {rank}", child, channel, messages)

    def describe_exit(self, status: int) -> str:
        """Describe the end of the process; "" if it ended because another rank has."""
        return "" if status == LOST_STATUS else super().describe_exit(status)


class BridgeProcess(ProcessMember):
    """Child process that connects ranks of this machine with `rank` and all after it."""

    def __init__(
        self, placement: RankPlacement, root: str, memory: int, ends: Mapping[Pair, socket.socket]
    ) -> None:
        """Start it with the shared `memory` and the `ends` of sockets to other machines.

        `root` is the directory of servables.  Raises OSError.
        """
        self.rank = placement.counts[0]
        words = ["--memory", str(memory), "--ends"]
        words += [f"{pair[0]}:{pair[1]}={end.fileno()}" for pair, end in ends.items()]
        inherited = [memory, *(end.fileno() for end in ends.values())]
        child = Child(Program(BRIDGE, words, inherited, channel=socket.SOCK_STREAM))
        channel = BlockingChannel[FromRank](child.stream, FromRank, CHANNEL_SECONDS)
        super().__init__("ranks on other machines", child, channel, messages)
        channel.send(messages.Connect(placement, root))


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
        self.processes: list[RankProcess | JoinedRank | BridgeProcess] = []
        self._loop = BackgroundLoop()
        self._group = self._loop.run(_new_group())
        self._is_closed = False

    def add(self, process: RankProcess | JoinedRank | BridgeProcess) -> None:
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
        sockets[low][high], sockets[high][low] = _socket_pair()
    return sockets


def connect_machine(
    local: range, size: int
) -> tuple[dict[int, dict[int, socket.socket]], dict[Pair, socket.socket]]:
    """Return the sockets of each rank of a machine, and the ends for its bridge.

    `local` are the ranks of the machine, of `size`.
    """
    sockets: dict[int, dict[int, socket.socket]] = {rank: {} for rank in local}
    ends = {}
    for low, high in combinations(local, 2):
        sockets[low][high], sockets[high][low] = _socket_pair()
    for rank, other in product(local, range(size)):
        if other not in local:
            sockets[rank][other], ends[rank, other] = _socket_pair()
    return sockets, ends


def _socket_pair() -> tuple[socket.socket, socket.socket]:
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def start_ranks(size: int) -> tuple[Links, Ranks]:
    """Return the links of this process, which is rank 0 of `size`, and the other ranks.

    Raises OSError or StartError if they cannot be started, or joined; then none is left.
    """
    placed = read_placement()
    if placed is not None:
        return _start_placed(size, *placed)
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


def _start_placed(size: int, placement: RankPlacement, root: str) -> tuple[Links, Ranks]:
    """Start the ranks of this machine, and the bridge to those of others, as `start_ranks`."""
    local = placement.ranks_of(0)
    with ExitStack() as passing, ExitStack() as failing:
        memory = create_memory(size)
        passing.callback(os.close, memory)
        sockets, ends = connect_machine(local, size)
        for rank, peers in sockets.items():
            for end in peers.values():
                (passing if rank else failing).callback(end.close)
        for end in ends.values():
            passing.callback(end.close)
        ranks = Ranks()
        failing.callback(ranks.close)
        for rank in local[1:]:
            ranks.add(RankProcess(rank, sockets[rank], memory, len(local)))
        ranks.add(BridgeProcess(placement, root, memory, ends))
        links = Links(0, sockets[0], memory, num_local=len(local))
        failing.pop_all()
        return links, ranks
