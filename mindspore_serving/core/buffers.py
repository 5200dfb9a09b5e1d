"""Large bodies in several buffers, copied only to their final address."""

from collections.abc import Callable, Sequence
from typing import TypeAlias

Buffer: TypeAlias = bytes | bytearray | memoryview

LARGE = 32 * 1024  # bytes; smaller buffers are joined, which costs less


class StoredBytes:
    """Bytes that are stored elsewhere until they are copied to their final address.

    `read(start, target)` fills `target` with the bytes from `start` on.
    """

    __slots__ = ("_read", "_start", "_size")

    def __init__(self, read: "Callable[[int, memoryview], None]", start: int, size: int) -> None:
        self._read, self._start, self._size = read, start, size

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, part: slice) -> "StoredBytes":
        start, stop, _ = part.indices(self._size)
        return StoredBytes(self._read, self._start + start, max(0, stop - start))

    def __bytes__(self) -> bytes:
        data = bytearray(self._size)
        self.write(memoryview(data))
        return bytes(data)

    def write(self, target: memoryview) -> None:
        """Fill `target`, which has the same size."""
        self._read(self._start, target)


class BufferList:
    """Concatenation of `buffers`, which are not joined."""

    __slots__ = ("buffers", "_size")

    def __init__(self, buffers: "Sequence[Buffer | StoredBytes]", size: int) -> None:
        self.buffers = buffers
        self._size = size

    def __len__(self) -> int:
        return self._size

    def write(self, target: memoryview) -> None:
        """Fill `target`, which has the same size."""
        start = 0
        for buffer in self.buffers:
            stop = start + len(buffer)
            if isinstance(buffer, StoredBytes):
                buffer.write(target[start:stop])
            else:
                target[start:stop] = buffer
            start = stop

    def join(self) -> bytes:
        return b"".join(map(in_memory, self.buffers))


def contiguous(body: "Buffer | BufferList") -> Buffer:
    """Return `body` as one buffer."""
    return body.join() if isinstance(body, BufferList) else body


def in_memory(data: "Buffer | StoredBytes") -> Buffer:
    """Return `data` in memory."""
    return bytes(data) if isinstance(data, StoredBytes) else data


def join(buffers: "Sequence[Buffer | StoredBytes]") -> "bytes | BufferList":
    """Concatenate `buffers`: to bytes if they are small."""
    size = sum(map(len, buffers))
    return b"".join(map(in_memory, buffers)) if size < LARGE else BufferList(buffers, size)
