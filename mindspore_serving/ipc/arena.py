"""Shared memory for large payloads: the sender writes, the receiver reads, the sender frees.

An arena is an anonymous file (memfd) mapped by both ends of one channel; it has no name that could
leak or be guessed, and the kernel frees it with the last process, however that ends.  Pages are
taken only when first written and kept for reuse.  Knows nothing of messages.
"""

import mmap
import os
import threading
from typing import cast

from mindspore_serving.ipc.messages import Payload, Slice

INLINE_LIMIT = 32 * 1024  # below this a copy through the socket is cheaper than a shared page
ARENA_SIZE = 1 << 31  # address space, not memory
_SMALLEST = 64 * 1024


def create() -> int:
    """The descriptor of a new arena."""
    fd = os.memfd_create("serving", os.MFD_CLOEXEC)
    os.ftruncate(fd, ARENA_SIZE)
    return fd


class Arena:
    """The sender's side: space by powers of two, last freed first used, so that pages stay warm.
    Threads may share it."""

    def __init__(self, fd: int) -> None:
        self._map = mmap.mmap(fd, ARENA_SIZE)
        self._view = memoryview(self._map)
        self._lock = threading.Lock()
        self._top = 0
        self._free: dict[int, list[int]] = {}  # size -> offsets
        self._size_at: dict[int, int] = {}  # offset -> size, of what is in use

    def put(self, data: "bytes | bytearray | memoryview") -> Payload:
        """Where `data` now lies; or `data` itself if it is small or there is no room."""
        length = len(data)
        if length < INLINE_LIMIT:
            return cast(bytes, data)  # msgpack takes a view as it takes bytes
        with self._lock:
            offset = self._allocate(max(_SMALLEST, 1 << (length - 1).bit_length()))
        if offset is None:
            return cast(bytes, data)
        self._view[offset : offset + length] = data
        return Slice(offset, length)

    def free(self, offset: int) -> None:
        """The receiver is done with what lies at `offset`."""
        with self._lock:
            size = self._size_at.pop(offset)
            self._free.setdefault(size, []).append(offset)

    def close(self) -> None:
        self._view.release()
        self._map.close()

    def _allocate(self, size: int) -> int | None:
        reusable = self._free.get(size)
        if reusable:
            offset = reusable.pop()
        elif self._top + size <= ARENA_SIZE:
            offset = self._top
            self._top += size
        else:
            return None
        self._size_at[offset] = size
        return offset


class ArenaView:
    """The receiver's side: read only."""

    def __init__(self, fd: int) -> None:
        self._map = mmap.mmap(fd, ARENA_SIZE, access=mmap.ACCESS_READ)
        self._view = memoryview(self._map)

    def get(self, payload: Payload) -> "bytes | memoryview":
        """The bytes of `payload`, without a copy."""
        if isinstance(payload, bytes):
            return payload
        end = payload.offset + payload.length
        if payload.offset < 0 or payload.length < 0 or end > ARENA_SIZE:
            raise ValueError(f"slice {payload} lies outside the arena")
        return self._view[payload.offset : end]

    def close(self) -> None:
        self._view.release()
        self._map.close()


class NoArena:
    """For a channel to another machine: everything travels inline."""

    def put(self, data: "bytes | bytearray | memoryview") -> Payload:
        return cast(bytes, data)

    def get(self, payload: Payload) -> bytes:
        if isinstance(payload, Slice):
            raise ValueError(f"{payload} on a channel without shared memory")
        return payload

    def free(self, offset: int) -> None:
        raise ValueError(f"offset {offset} freed on a channel without shared memory")

    def close(self) -> None:
        """Nothing to give back."""
