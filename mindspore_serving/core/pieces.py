"""A large body in several buffers, which is copied only to where it is to lie."""

from collections.abc import Sequence
from typing import TypeAlias

Buffer: TypeAlias = "bytes | bytearray | memoryview"

LARGE = 32 * 1024  # bytes; below, joining costs less than keeping apart


class Pieces:
    """`buffers`, one after another."""

    __slots__ = ("buffers", "_size")

    def __init__(self, buffers: Sequence[Buffer], size: int) -> None:
        self.buffers = buffers
        self._size = size

    def __len__(self) -> int:
        return self._size

    def write(self, target: memoryview) -> None:
        """Fill the bytes of `target`, of which there are as many."""
        start = 0
        for buffer in self.buffers:
            stop = start + len(buffer)
            target[start:stop] = buffer
            start = stop

    def join(self) -> bytes:
        return b"".join(self.buffers)


def whole(body: "Buffer | Pieces") -> Buffer:
    """`body` in one buffer."""
    return body.join() if isinstance(body, Pieces) else body


def join(buffers: Sequence[Buffer]) -> "bytes | Pieces":
    """`buffers` as one body: joined if that is small."""
    size = sum(map(len, buffers))
    return b"".join(buffers) if size < LARGE else Pieces(buffers, size)
