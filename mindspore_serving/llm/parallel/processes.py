"""The processes of ranks 1 and up: started, watched and ended by rank 0."""

import os
import socket
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from itertools import combinations

from mindspore_serving.llm.parallel import messages
from mindspore_serving.llm.parallel.links import Links, create_memory
from mindspore_serving.llm.parallel.messages import FromRank
from mindspore_serving.process.channel import BlockingChannel
from mindspore_serving.process.child import Child, Program, exit_text
from mindspore_serving.process.vocabulary import Failed, Hello, Ready, why_other

MODULE = "mindspore_serving.llm.runtimes.rank"
END_SECONDS = 5.0  # for a rank to end by itself once it is to
CAUSE_SECONDS = 1.0  # for the kernel to say how a rank has ended
CONTROL_SECONDS = 120.0  # for a rank to read a step, or to say that it is loaded
LOST_STATUS = 3  # of a rank that ends because another one has


class RankProcess(Child):
    """The child process of one rank, with the descriptors of its `peers` and the shared `memory`.

    Raises OSError if it cannot be started.
    """

    def __init__(self, rank: int, peers: Mapping[int, socket.socket], memory: int) -> None:
        self.rank = rank
        descriptors = {peer: end.fileno() for peer, end in peers.items()}
        places = [f"{peer}={descriptor}" for peer, descriptor in descriptors.items()]
        with ExitStack() as on_failure:
            ours, theirs = socket.socketpair()
            self.channel = BlockingChannel[FromRank](ours, FromRank, CONTROL_SECONDS)
            on_failure.callback(self.channel.close)
            with theirs:
                control = theirs.fileno()
                options = {"--rank": rank, "--control": control, "--memory": memory}
                words = [str(word) for pair in options.items() for word in pair]
                inherited = [control, memory, *descriptors.values()]
                super().__init__(Program(MODULE, [*words, "--peers", *places], inherited))
            on_failure.pop_all()

    def wait_until_loaded(self) -> str:
        """Why it cannot load; "" if it has.  Raises OSError if it neither says nor ends."""
        try:
            while not (problem := _problem_in(message := self.channel.receive_one())):
                if isinstance(message, Ready):
                    return ""
        except EOFError:
            return exit_text(self.join(END_SECONDS))
        return problem

    def problem(self) -> str:
        """What it says of its end, or how it has ended; "" while it runs, and if it has ended
        because another rank has."""
        with suppress(OSError, EOFError):
            for message in self.channel.receive(wait=False):
                if problem := _problem_in(message):
                    return problem
        status = self.poll()
        return "" if status in (None, LOST_STATUS) else exit_text(status or 0)

    def close(self) -> None:
        """As `Child.close`, and close the connection."""
        self.channel.close()
        super().close()


def _problem_in(message: FromRank) -> str:
    """What `message` says that goes wrong; "" if nothing does."""
    if isinstance(message, Hello):
        return why_other(message, messages, "rank")
    return message.text if isinstance(message, Failed) else ""


def find_cause(processes: list[RankProcess]) -> str:
    """Which rank has ended, and how, as the end of a sentence; "" if none does so soon."""
    until = time.monotonic() + CAUSE_SECONDS
    while time.monotonic() < until:
        for process in processes:
            if problem := process.problem():
                return f"; rank {process.rank}: {problem}"
        time.sleep(0.01)
    return ""


def end_ranks(processes: list[RankProcess]) -> None:
    """Kill them all."""
    for process in processes:
        process.close()
    processes.clear()


def connect_ranks(size: int) -> list[dict[int, socket.socket]]:
    """For each rank its sockets to the others, by their numbers."""
    sockets: list[dict[int, socket.socket]] = [{} for _ in range(size)]
    for low, high in combinations(range(size), 2):
        pair = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        sockets[low][high], sockets[high][low] = pair
    return sockets


def start_ranks(size: int) -> tuple[Links, list[RankProcess]]:
    """The links of this process, which is rank 0 of `size`, and the processes of the others.

    Raises OSError if they cannot be started; then none is left.
    """
    with ExitStack() as passing, ExitStack() as failing:
        memory = create_memory(size)
        passing.callback(os.close, memory)
        sockets = connect_ranks(size)
        for rank, peers in enumerate(sockets):
            for end in peers.values():
                (passing if rank else failing).callback(end.close)
        processes: list[RankProcess] = []
        for rank in range(1, size):
            processes.append(RankProcess(rank, sockets[rank], memory))
            failing.callback(processes[-1].close)
        links = Links(0, sockets[0], memory)
        failing.pop_all()
        return links, processes
