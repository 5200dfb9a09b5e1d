"""Ring of stages: each rank sends arrays to the next one, and the last to the first.

An array stays in the sender's half of the shared memory until the receiver releases it, so it is
computed with in place; a sender is at most two arrays ahead:

    sender      write half 0, notify | write half 1, notify | wait for release | write half 0, ...
    receiver                 wait, compute with half 0, release | wait, compute with half 1, ...

Arrays are numbered from the first step on, as a rank may send those of a step before the next rank
has read those of the step before.  Knows no runtime.
"""

from collections import deque

import numpy as np
import numpy.typing as npt

from mindspore_serving.llm.parallel.group import RankGroup
from mindspore_serving.llm.parallel.links import PART_BYTES, Tag

Floats = npt.NDArray[np.float32]


class Ring:
    """Ring of the ranks of `group`, at least two, as one of them sees it.

    `step` is the number of the step whose arrays are received.
    """

    def __init__(self, group: RankGroup) -> None:
        self.step = 0
        self._group = group
        self._next = (group.rank + 1) % group.size
        self._previous = (group.rank - 1) % group.size
        self._parts = group.parts.view(np.float32)  # [half, rank, numbers]
        self._num_sent = self._num_read = self._num_received = self._num_released = 0
        self._arrived: deque[Tag] = deque()  # of arrays that are not received yet

    def begin(self) -> int:
        """Begin the step of the links, which all ranks compute; return its number."""
        self._group.links.has_exchanged = True  # an error from here on is not a refusal of the step
        self.step = self._group.links.step
        return self.step

    def send(self, array: Floats) -> None:
        """Send an array of at most PART_BYTES to the next rank; waits until there is room."""
        while self._num_sent - self._num_read == len(self._parts):
            self._take(self._next)
        half = self._num_sent % len(self._parts)
        self._parts[half, self._group.rank, : array.size] = array.reshape(-1)
        self._group.notify(self._next, self._num_sent, array.nbytes)
        self._num_sent += 1

    def receive(self, shape: tuple[int, int]) -> Floats:
        """Return an array of `shape` from the rank before; releases the one received before."""
        self.release()
        half, count = self._num_received % len(self._parts), shape[0] * shape[1]
        array: Floats = self._parts[half, self._previous, :count].reshape(shape)
        while not self._arrived:
            self._take(self._previous)
        self._compare(
            self._previous, self._arrived.popleft(), (self.step, self._num_received, array.nbytes)
        )
        self._num_received += 1
        return array

    def release(self) -> None:
        """Release the array received last."""
        if self._num_released < self._num_received:
            self._group.notify(self._previous, self._num_released, 0)
            self._num_released += 1

    def settle(self) -> None:
        """Wait until all arrays sent are released."""
        while self._num_read < self._num_sent:
            self._take(self._next)

    def _take(self, member: int) -> None:
        """Wait for a notice of `member`: of an array that it sent, or of a release.

        Of two ranks, each is the next and the previous one of the other.
        """
        group = self._group
        tag = group.links.receive(group.members[member])
        step, _, _, num_bytes = tag
        if num_bytes:
            self._arrived.append(tag)
        else:
            self._compare(member, tag, (step, self._num_read, 0))
            self._num_read += 1

    def _compare(self, member: int, tag: Tag, expected: tuple[int, int, int]) -> None:
        step, number, num_bytes = expected
        group = self._group
        group.links.compare(group.members[member], tag, (step, group.region, number, num_bytes))


def rows_at_once(width: int) -> int:
    """Return how many rows of `width` numbers an array may have."""
    return max(1, PART_BYTES // (4 * width))
