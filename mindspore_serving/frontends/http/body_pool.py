"""Pool of memory for large bodies.

Blocks are reused, as page faults of new memory cost more than reading the body into it.  Counts no
requests, and knows no connection.
"""

import mmap
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from mindspore_serving.core.lending import lend

MAX_POOLED = 256 << 20  # bytes of reusable blocks, in use or idle


@dataclass(slots=True, eq=False)
class _Block:
    memory: mmap.mmap | memoryview
    is_pooled: bool = False  # it counts in `_num_pooled`


class BodyPool:
    """Blocks whose sizes are powers of two.

    New blocks come from `make`, or are anonymous memory, which gets pages only when it is written.
    """

    def __init__(self, make: Callable[[int], memoryview | None] = lambda size: None) -> None:
        self._make = make
        self._returned: deque[_Block] = deque()  # appended by any thread
        self._warm: list[_Block] = []  # used since the last trim
        self._cold: list[_Block] = []
        self._num_pooled = 0

    def take(self, size: int) -> memoryview:
        """Return writable memory of `size` bytes, which is reused when no view of it is left.

        Raises OSError.
        """
        self._sort_in()
        length = 1 << (size - 1).bit_length()
        block = _find(self._warm, length) or _find(self._cold, length)
        block = block or _Block(self._make(length) or mmap.mmap(-1, length))
        return lend(memoryview(block.memory)[:size], partial(self._returned.append, block))

    def trim(self) -> None:
        """Free blocks that were not used since the call before the last."""
        self._sort_in()
        self._num_pooled -= sum(len(block.memory) for block in self._cold)
        self._cold, self._warm = self._warm, []

    def _sort_in(self) -> None:
        while self._returned:
            block = self._returned.popleft()
            if not block.is_pooled:
                if self._num_pooled + len(block.memory) > MAX_POOLED:
                    continue
                self._num_pooled += len(block.memory)
                block.is_pooled = True
            self._warm.append(block)


def _find(blocks: list[_Block], length: int) -> _Block | None:
    """Remove and return the last block of `length` bytes."""
    for index in range(len(blocks) - 1, -1, -1):
        if len(blocks[index].memory) == length:
            return blocks.pop(index)
    return None
