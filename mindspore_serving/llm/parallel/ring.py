"""Ring of stages: each rank sends arrays to the next one, and the last to the first.

An array stays in the sender's half of the shared memory until the receiver releases it, so it is
computed with in place; a sender is at most two arrays ahead:

    sender      write half 0, notify | write half 1, notify | wait for release | write half 0, ...
    receiver                 wait, compute with half 0, release | wait, compute with half 1, ...

Knows no runtime.
"""

import numpy as np
import numpy.typing as npt

from mindspore_serving.llm.parallel.group import RankGroup
from mindspore_serving.llm.parallel.links import PART_BYTES

Floats = npt.NDArray[np.float32]


class Ring:
    """Ring of the ranks of `group`, at least two, as one of them sees it."""

    def __init__(self, group: RankGroup) -> None:
        self._group = group
        self._next = (group.rank + 1) % group.size
        self._previous = (group.rank - 1) % group.size
        self._parts = group.parts.view(np.float32)  # [half, rank, numbers]
        self._num_sent = self._num_read = self._num_received = self._num_released = 0

    def begin(self) -> None:
        """Begin a step that all ranks compute; all arrays of the step before are read."""
        self._group.links.has_exchanged = True  # an error from here on is not a refusal of the step
        self._num_sent = self._num_read = self._num_received = self._num_released = 0

    def send(self, array: Floats) -> None:
        """Send an array of at most PART_BYTES to the next rank; waits until there is room."""
        if self._num_sent - self._num_read == len(self._parts):
            self._wait_until_read()
        half = self._num_sent % len(self._parts)
        self._parts[half, self._group.rank, : array.size] = array.reshape(-1)
        self._group.notify(self._next, self._num_sent, array.nbytes)
        self._num_sent += 1

    def flush(self) -> None:
        """Wait until all arrays sent are released."""
        while self._num_read < self._num_sent:
            self._wait_until_read()

    def receive(self, shape: tuple[int, int]) -> Floats:
        """Return an array of `shape` from the rank before; releases the one received before."""
        self.release()
        half, count = self._num_received % len(self._parts), shape[0] * shape[1]
        array: Floats = self._parts[half, self._previous, :count].reshape(shape)
        self._group.wait_for(self._previous, self._num_received, array.nbytes)
        self._num_received += 1
        return array

    def release(self) -> None:
        """Release the array received last."""
        if self._num_released < self._num_received:
            self._group.notify(self._previous, self._num_released, 0)
            self._num_released += 1

    def _wait_until_read(self) -> None:
        self._group.wait_for(self._next, self._num_read, 0)
        self._num_read += 1


def rows_at_once(width: int) -> int:
    """Return how many rows of `width` numbers an array may have."""
    return max(1, PART_BYTES // (4 * width))
