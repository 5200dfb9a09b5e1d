"""Ranks of one machine that exchange arrays through shared memory.

Every rank writes its part, notifies the other ranks over a socket for each pair, and reads their
parts when they have notified it.  The parts alternate between two halves of the memory:

    exchange    0        1        2        3
    half        0        1        0        1

A rank that writes to a half again knows that the other ranks have read it, because they have
written to the other half since.  A message carries the step, the exchange and its size, so that
ranks that disagree are detected.

The groups of a rank are its grid: ranks that share layers, and ranks of which each has layers of
its own (stages).  Ranks are numbered stage after stage; within a stage they share its layers.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.parallel.links import Bytes, Links


class RankGroup:
    """Group of this rank and other ranks that `links` connect; used by one thread.

    An exchange is: write to `parts[half, rank]`, `barrier`, read `parts` of that half, which stay
    as they are until the exchange after the next.

    Args:
        links: connections of this rank to all ranks.
        members: the ranks of the group, numbered anew in their order; None for all.
        region: index of the memory in `links`; groups that share ranks use different ones.
    """

    def __init__(self, links: Links, members: range | None = None, region: int = 0) -> None:
        self.links = links
        self.members = range(links.size) if members is None else members
        self.rank = self.members.index(links.rank)
        self.size = len(self.members)
        of_members = slice(self.members.start, self.members.stop, self.members.step)
        self._region = region
        self.parts: Bytes = links.parts[region, :, of_members]  # [half, rank, bytes]
        self._other_members = [member for member in range(self.size) if member != self.rank]
        self._num_barriers = 0

    @property
    def half(self) -> int:
        """Half of the memory that the next exchange uses, 0 or 1."""
        return self._num_barriers % 2

    def minimum(self, number: int) -> int:
        """Return the minimum of the members' numbers."""
        return int(self.gather(np.array([number], np.int64)).min())

    def gather(self, numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the numbers of every member, [members, numbers]; as many of each."""
        half, size = self.half, numbers.nbytes
        self.parts[half, self.rank, :size].view(np.int64)[:] = numbers
        self.barrier(size)
        gathered: npt.NDArray[np.int64] = self.parts[half, :, :size].view(np.int64).copy()
        return gathered

    def barrier(self, num_bytes: int) -> None:
        """Notify the members that this rank's part, of `num_bytes`, is written; await theirs.

        Raises RunnerLost naming a rank that has ended, is stopped, or computes something else.
        """
        number = self._num_barriers
        self._num_barriers += 1
        for member in self._other_members:
            self.notify(member, number, num_bytes)
        for member in self._other_members:
            self.wait_for(member, number, num_bytes)

    def notify(self, member: int, number: int, num_bytes: int) -> None:
        """Notify a member that exchange `number`, of `num_bytes`, is done here.

        Raises RunnerLost as `barrier`.
        """
        self.links.notify(self.members[member], self._region, number, num_bytes)

    def wait_for(self, member: int, number: int, num_bytes: int) -> None:
        """Wait for the notice of a member.  Raises RunnerLost as `barrier`."""
        self.links.wait_for(self.members[member], self._region, number, num_bytes)


@dataclass(frozen=True, slots=True)
class Grid:
    """Groups of a rank: `peers` share its layers, `stages` are one rank of each stage in order.

    A group of this rank only has size 1.
    """

    everyone: RankGroup
    peers: RankGroup
    stages: RankGroup


def open_grid(links: Links, config: EngineConfig) -> Grid:
    """Return the grid of this rank for the ranks of `config`, as many as `links` connect."""
    width = config.tensor_parallel
    stage, column = divmod(links.rank, width)
    return Grid(
        RankGroup(links),
        RankGroup(links, range(stage * width, (stage + 1) * width), region=1),
        RankGroup(links, range(column, links.size, width), region=2),
    )
