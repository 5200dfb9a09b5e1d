"""A ring of stages: each rank sends arrays to the next one, and the last to the first.

An array lies in the sender's half of the shared memory until the receiver releases it, so that it
is computed with where it lies; a sender is two arrays ahead at most.  Knows no runtime.
"""

import numpy as np
import numpy.typing as npt

from mindspore_serving.llm.parallel.group import RankGroup
from mindspore_serving.llm.parallel.links import PART_BYTES

Floats = npt.NDArray[np.float32]


class Ring:
    """The place of one rank of `group`, of at least two."""

    def __init__(self, group: RankGroup) -> None:
        self._group = group
        self._next = (group.rank + 1) % group.size
        self._before = (group.rank - 1) % group.size
        self._parts = group.parts.view(np.float32)  # [half, rank, numbers]
        self._num_sent = self._num_read = self._num_received = self._num_released = 0

    def begin(self) -> None:
        """A step begins that all ranks compute; what the one before has sent is read."""
        self._group.links.has_exchanged = True  # so that an error from here on is no refusal
        self._num_sent = self._num_read = self._num_received = self._num_released = 0

    def send(self, array: Floats) -> None:
        """To the next rank; of PART_BYTES at most.  Waits until there is room."""
        if self._num_sent - self._num_read == len(self._parts):
            self._wait_until_read()
        half = self._num_sent % len(self._parts)
        self._parts[half, self._group.rank, : array.size] = array.reshape(-1)
        self._group.tell(self._next, self._num_sent, array.nbytes)
        self._num_sent += 1

    def flush(self) -> None:
        """Wait until all that was sent is released."""
        while self._num_read < self._num_sent:
            self._wait_until_read()

    def receive(self, shape: tuple[int, int]) -> Floats:
        """From the rank before, an array of `shape`; releases the one received before."""
        self.release()
        half, count = self._num_received % len(self._parts), shape[0] * shape[1]
        found: Floats = self._parts[half, self._before, :count].reshape(shape)
        self._group.hear(self._before, self._num_received, found.nbytes)
        self._num_received += 1
        return found

    def release(self) -> None:
        """What was received last is not read any more."""
        if self._num_released < self._num_received:
            self._group.tell(self._before, self._num_released, 0)
            self._num_released += 1

    def _wait_until_read(self) -> None:
        self._group.hear(self._next, self._num_read, 0)
        self._num_read += 1


def rows_at_once(width: int) -> int:
    """How many rows of `width` numbers one array may have."""
    return max(1, PART_BYTES // (4 * width))
