"""Shared memory for large payloads: the sender writes, the receiver reads, the sender frees.

An arena is an anonymous file (memfd) mapped by both ends of one channel; it has no name that could
leak or be guessed, and the kernel frees it with the last process, however that ends.  Pages are
taken only when first written, kept for reuse, and given back by `trim` when they are not reused.
The first bytes are `reserved` for what a worker says of itself, see `ipc.status`.
"""

import mmap
import os
import threading
from contextlib import suppress

from mindspore_serving.core.pieces import LARGE, Buffer, Pieces, whole
from mindspore_serving.ipc.messages import Payload, Slice

INLINE_LIMIT = LARGE  # below this a copy through the socket is cheaper than a shared page
ARENA_SIZE = 1 << 31  # address space, not memory
_SMALLEST = 64 * 1024
TRIM_SECONDS = 5.0  # what is not used for so long is given back
_PAUSE = 0.1  # seconds between two calls of `trim` while there is more to give back
_MOST_TRIMMED = 32 << 20  # bytes at a time, which takes two milliseconds


def create() -> int:
    """The descriptor of a new arena."""
    fd = os.memfd_create("serving", os.MFD_CLOEXEC)
    os.ftruncate(fd, ARENA_SIZE)
    return fd


class Arena:
    """The sender's side: space by powers of two, last freed first used, so that pages stay warm.
    Threads may share it."""

    def __init__(self, fd: int, num_reserved: int = 0) -> None:
        self._map = mmap.mmap(fd, ARENA_SIZE)
        self._view = memoryview(self._map)
        self.reserved = self._view[:num_reserved]
        self._lock = threading.Lock()
        self._top = -(-num_reserved // _SMALLEST) * _SMALLEST
        self._free: dict[int, list[int]] = {}  # size -> offsets
        self._size_at: dict[int, int] = {}  # offset -> size, of what is in use
        self._warm: dict[int, int] = {}  # offset -> size, of what was freed since the last trim
        self._cold: dict[int, int] = {}  # ... and before: bytes that still have pages

    def put(self, data: "Buffer | Pieces") -> Payload:
        """Where `data` now lies; or `data` itself if it is small or there is no room."""
        length = len(data)
        if length < INLINE_LIMIT:
            return data  # type: ignore[return-value]  # msgpack takes a view as it takes bytes
        with self._lock:
            offset = self._allocate(max(_SMALLEST, 1 << (length - 1).bit_length()))
        if offset is None:
            return whole(data)  # type: ignore[return-value]
        if isinstance(data, Pieces):
            data.write(self._view[offset : offset + length])
        else:
            self._view[offset : offset + length] = data
        return Slice(offset, length)

    def free(self, offset: int) -> None:
        """The receiver is done with what lies at `offset`."""
        with self._lock:
            size = self._size_at.pop(offset)
            self._free.setdefault(size, []).append(offset)
            self._warm[offset] = size

    def trim(self) -> float:
        """Give pages that are not reused back to the kernel, some at a time.  The seconds until
        this is to be called again."""
        with self._lock:
            left = _MOST_TRIMMED
            for offset, size in list(self._cold.items()):
                count = min(size, left)
                self._map.madvise(mmap.MADV_REMOVE, offset + size - count, count)
                left -= count
                self._cold[offset] -= count
                if not self._cold[offset]:
                    del self._cold[offset]
                if not left:
                    break
            if self._cold:
                return _PAUSE
            self._cold, self._warm = self._warm, {}
            return TRIM_SECONDS

    def close(self) -> None:
        self.reserved.release()
        self._view.release()
        self._map.close()

    def _allocate(self, size: int) -> int | None:
        reusable = self._free.get(size)
        if reusable:
            offset = reusable.pop()
            if self._warm.pop(offset, None) is None:
                self._cold.pop(offset, None)
        elif self._top + size <= ARENA_SIZE:
            offset = self._top
            self._top += size
        else:
            return None
        self._size_at[offset] = size
        return offset


class ArenaView:
    """The receiver's side: read only."""

    def __init__(self, fd: int, num_reserved: int = 0) -> None:
        self._map = mmap.mmap(fd, ARENA_SIZE, access=mmap.ACCESS_READ)
        self._view = memoryview(self._map)
        self.reserved = self._view[:num_reserved]

    def get(self, payload: Payload) -> "bytes | memoryview":
        """The bytes of `payload`, without a copy."""
        if isinstance(payload, bytes):
            return payload
        end = payload.offset + payload.length
        if payload.offset < 0 or payload.length < 0 or end > ARENA_SIZE:
            raise ValueError(f"slice {payload} lies outside the arena")
        return self._view[payload.offset : end]

    def close(self) -> None:
        """What is still read stays mapped until it is not."""
        self.reserved.release()
        self._view.release()
        with suppress(BufferError):
            self._map.close()


class NoArena:
    """For a channel to another machine: everything travels inline.  `reserved` is the beginning of
    the shared memory `fd`, if there is one, else nobody but us reads it."""

    def __init__(self, num_reserved: int = 0, fd: int | None = None) -> None:
        memory = bytearray(num_reserved) if fd is None else mmap.mmap(fd, num_reserved)
        self.reserved = memoryview(memory)

    def put(self, data: "Buffer | Pieces") -> Payload:
        return whole(data)  # type: ignore[return-value]

    def get(self, payload: Payload) -> bytes:
        if isinstance(payload, Slice):
            raise ValueError(f"{payload} on a channel without shared memory")
        return payload

    def free(self, offset: int) -> None:
        raise ValueError(f"offset {offset} freed on a channel without shared memory")

    def trim(self) -> float:
        """Nothing to give back.  Seconds until the next call."""
        return TRIM_SECONDS

    def close(self) -> None:
        """Nothing to give back."""
