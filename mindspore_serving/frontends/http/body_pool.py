"""Memory in which large bodies are received, used again while it is warm: pages that are new cost
more than what is read into them.  Counts no requests, and knows no connection.
"""

import mmap
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from mindspore_serving.core.lending import lend

MOST_KEPT = 256 << 20  # bytes that are used again, idle or not: nobody has sent them


@dataclass(slots=True, eq=False)
class _Block:
    memory: mmap.mmap | memoryview
    is_kept: bool = False  # it has been used before


class BodyPool:
    """Blocks by powers of two.  New ones are what `make` gives, if it does, and take pages only as
    bytes come in.
    """

    def __init__(self, make: Callable[[int], memoryview | None] = lambda size: None) -> None:
        self._make = make
        self._returned: deque[_Block] = deque()  # by any thread
        self._warm: list[_Block] = []  # since the last trim
        self._cold: list[_Block] = []
        self._num_kept = 0

    def take(self, size: int) -> memoryview:
        """Writable memory of `size` bytes, which comes back when no view of it is left.  Raises
        OSError.
        """
        self._sort_in()
        length = 1 << (size - 1).bit_length()
        block = _find(self._warm, length) or _find(self._cold, length)
        block = block or _Block(self._make(length) or mmap.mmap(-1, length))
        return lend(memoryview(block.memory)[:size], partial(self._returned.append, block))

    def trim(self) -> None:
        """Give back what was not used since the call before the last."""
        self._sort_in()
        self._num_kept -= sum(len(block.memory) for block in self._cold)
        self._cold, self._warm = self._warm, []

    def _sort_in(self) -> None:
        while self._returned:
            block = self._returned.popleft()
            if not block.is_kept:
                if self._num_kept + len(block.memory) > MOST_KEPT:
                    continue
                self._num_kept += len(block.memory)
                block.is_kept = True
            self._warm.append(block)


def _find(blocks: list[_Block], length: int) -> _Block | None:
    """The last of `length` bytes, taken out."""
    for place in range(len(blocks) - 1, -1, -1):
        if len(blocks[place].memory) == length:
            return blocks.pop(place)
    return None
