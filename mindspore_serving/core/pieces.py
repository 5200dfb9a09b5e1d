"""A large body in several buffers, which is copied only to where it is to lie."""

from collections.abc import Callable, Sequence
from typing import TypeAlias

Buffer: TypeAlias = bytes | bytearray | memoryview

LARGE = 32 * 1024  # bytes; below, joining costs less than keeping apart


class Stored:
    """`size` bytes that are somewhere else, until they are copied to where they are to lie:
    `read(start, target)` fills `target` with those from `start` on.
    """

    __slots__ = ("_read", "_start", "_size")

    def __init__(self, read: "Callable[[int, memoryview], None]", start: int, size: int) -> None:
        self._read, self._start, self._size = read, start, size

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, place: slice) -> "Stored":
        start, stop, _ = place.indices(self._size)
        return Stored(self._read, self._start + start, max(0, stop - start))

    def __bytes__(self) -> bytes:
        data = bytearray(self._size)
        self.write(memoryview(data))
        return bytes(data)

    def write(self, target: memoryview) -> None:
        """Fill the bytes of `target`, of which there are as many."""
        self._read(self._start, target)


class Pieces:
    """`buffers`, one after another."""

    __slots__ = ("buffers", "_size")

    def __init__(self, buffers: "Sequence[Buffer | Stored]", size: int) -> None:
        self.buffers = buffers
        self._size = size

    def __len__(self) -> int:
        return self._size

    def write(self, target: memoryview) -> None:
        """Fill the bytes of `target`, of which there are as many."""
        start = 0
        for buffer in self.buffers:
            stop = start + len(buffer)
            if isinstance(buffer, Stored):
                buffer.write(target[start:stop])
            else:
                target[start:stop] = buffer
            start = stop

    def join(self) -> bytes:
        return b"".join(map(here, self.buffers))


def whole(body: "Buffer | Pieces") -> Buffer:
    """`body` in one buffer."""
    return body.join() if isinstance(body, Pieces) else body


def here(data: "Buffer | Stored") -> Buffer:
    """`data` in memory."""
    return bytes(data) if isinstance(data, Stored) else data


def join(buffers: "Sequence[Buffer | Stored]") -> "bytes | Pieces":
    """`buffers` as one body: joined if that is small."""
    size = sum(map(len, buffers))
    return b"".join(map(here, buffers)) if size < LARGE else Pieces(buffers, size)
