"""Ranks of one machine that exchange arrays through shared memory.

Every rank writes its part, says so to the others over a socket for each pair, and reads their parts
when they have said so.  The parts are in two halves of the memory in turn: a rank that writes again
to one half knows that the others have read it, because they have written to the other one since.
A message carries the step, the exchange and its size, so that ranks that disagree are found.

The groups of a rank are its grid: ranks that share layers, and ranks of which each has layers of
its own.  Ranks are numbered stage after stage; within one they share its layers.
"""

from dataclasses import dataclass

import numpy as np

from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.parallel.links import Bytes, Links


class RankGroup:
    """The place of this rank among `members` of the ranks that `links` connect, numbered anew in
    their order; without `members` all.  Used by one thread.

    An exchange is: write to `parts[half, rank]`, `meet`, read `parts` of that half, which stay as
    they are until the exchange after the next.

    Args:
        way: which memory of `links` is theirs; groups that share ranks take different ones.
    """

    def __init__(self, links: Links, members: range | None = None, way: int = 0) -> None:
        self.links = links
        self.members = range(links.size) if members is None else members
        self.rank = self.members.index(links.rank)
        self.size = len(self.members)
        of_members = slice(self.members.start, self.members.stop, self.members.step)
        self.parts: Bytes = links.parts[way, :, of_members]  # [half, rank, bytes]
        self._others = [other for other in range(self.size) if other != self.rank]
        self._num_meetings = 0

    @property
    def half(self) -> int:
        """Which half of the memory the next exchange uses."""
        return self._num_meetings % 2

    def least(self, number: int) -> int:
        """The least of the members' numbers."""
        half = self.half
        self.parts[half, self.rank, :8].view(np.int64)[0] = number
        self.meet(8)
        return int(self.parts[half, :, :8].view(np.int64).min())

    def meet(self, num_bytes: int) -> None:
        """Say that the own part, of `num_bytes`, is written, and wait until all others are.

        Raises RunnerLost naming a rank that has ended, is stopped, or computes something else.
        """
        number = self._num_meetings
        self._num_meetings += 1
        for other in self._others:
            self.tell(other, number, num_bytes)
        for other in self._others:
            self.hear(other, number, num_bytes)

    def tell(self, member: int, number: int, num_bytes: int) -> None:
        """Say to one member that exchange `number`, of `num_bytes`, is done here.  Raises as
        `meet`.
        """
        self.links.tell(self.members[member], number, num_bytes)

    def hear(self, member: int, number: int, num_bytes: int) -> None:
        """Wait until one member has said so.  Raises as `meet`."""
        self.links.hear(self.members[member], number, num_bytes)


@dataclass(frozen=True, slots=True)
class Grid:
    """`peers` share this rank's layers; `stages` are one rank of each stage, in their order.  A
    group of this rank alone has size 1.
    """

    everyone: RankGroup
    peers: RankGroup
    stages: RankGroup


def open_grid(links: Links, config: EngineConfig) -> Grid:
    """For the ranks of `config`, which are as many as `links` connect."""
    width = config.tensor_parallel
    stage, place = divmod(links.rank, width)
    return Grid(
        RankGroup(links),
        RankGroup(links, range(stage * width, (stage + 1) * width), way=1),
        RankGroup(links, range(place, links.size, width), way=2),
    )
