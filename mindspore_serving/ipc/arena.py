"""Shared memory for large payloads: the sender writes, the receiver reads, the sender frees.

An arena is an anonymous file (memfd) mapped by both ends of one channel; it has no name that could
leak or be guessed, and the kernel frees it with the last process, however that ends.  Pages are
taken only when first written, kept for reuse, and given back by `trim` when they are not reused.
The first bytes are `reserved` for what a worker says of itself, see `ipc.status`.
"""

import mmap
import os
import threading
from collections import deque
from contextlib import suppress
from functools import partial

import numpy as np

from mindspore_serving.core.lending import address_of, lend
from mindspore_serving.core.pieces import LARGE, Buffer, Pieces, whole
from mindspore_serving.ipc.messages import Payload, Slice

INLINE_LIMIT = LARGE  # below this a copy through the socket is cheaper than a shared page
ARENA_SIZE = 1 << 31  # address space, not memory
_SMALLEST = 64 * 1024
_MUCH = 1 << 20  # bytes
MOST_TAKEN = ARENA_SIZE // 2  # by `take`, which clients cause before they have sent anything
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
    Threads may share it.
    """

    def __init__(self, fd: int, num_reserved: int = 0) -> None:
        self._map = mmap.mmap(fd, ARENA_SIZE)
        self._view = memoryview(self._map)
        self._address = address_of(self._view)
        self.reserved = self._view[:num_reserved]
        self._lock = threading.Lock()
        self._top = -(-num_reserved // _SMALLEST) * _SMALLEST
        self._free: dict[int, list[int]] = {}  # size -> offsets
        self._size_at: dict[int, int] = {}  # offset -> size, of what is in use
        self._warm: dict[int, int] = {}  # offset -> size, of what was freed since the last trim
        self._cold: dict[int, int] = {}  # ... and before: bytes that still have pages
        self._num_taken = 0  # bytes of the blocks that `take` has given
        self._returned: deque[int] = deque()  # the offsets of those of them that came back
        self._sent: dict[int, list[Buffer]] = {}  # offset -> what was put where it lay

    def take(self, size: int) -> memoryview | None:
        """Writable memory of `size` bytes, which comes back when no view of it is left: what is
        put of it is not copied.  None if there is no room.
        """
        length = _block_of(size)
        with self._lock:
            self._sort_in()
            if self._num_taken + length > MOST_TAKEN:
                return None
            offset = self._allocate(length)
            if offset is None:
                return None
            self._num_taken += length
        # On any thread, so only what is safe there.
        return lend(self._view[offset : offset + size], partial(self._returned.append, offset))

    def put(self, data: "Buffer | Pieces") -> Payload:
        """Where `data` now lies; or `data` itself if it is small or there is no room."""
        length = len(data)
        if length < INLINE_LIMIT:
            return data  # type: ignore[return-value]  # msgpack takes a view as it takes bytes
        if self._num_taken and not isinstance(data, Pieces):
            place = address_of(data) - self._address
            if 0 <= place < ARENA_SIZE:
                self._sent.setdefault(place, []).append(data)
                return Slice(place, length)
        with self._lock:
            offset = self._allocate(_block_of(length))
        if offset is None:
            return whole(data)  # type: ignore[return-value]
        if isinstance(data, Pieces):
            data.write(self._view[offset : offset + length])
        else:
            _copy(self._view[offset : offset + length], data)
        return Slice(offset, length)

    def free(self, offset: int) -> None:
        """The receiver is done with what lies at `offset`."""
        sent = self._sent.get(offset)
        if sent:
            sent.pop()
            if not sent:
                del self._sent[offset]
            return
        with self._lock:
            self._warm[offset] = self._release(offset)

    def trim(self) -> float:
        """Give pages that are not reused back to the kernel, some at a time.  The seconds until
        this is to be called again.
        """
        with self._lock:
            self._sort_in()
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
        self._sent.clear()
        with suppress(BufferError):  # what is taken of it stays mapped until it comes back
            self._view.release()
            self._map.close()

    def _allocate(self, size: int) -> int | None:
        if not self._free.get(size) and self._top + size > ARENA_SIZE:
            self._merge(size)
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

    def _release(self, offset: int) -> int:
        """Its size."""
        size = self._size_at.pop(offset)
        self._free.setdefault(size, []).append(offset)
        return size

    def _sort_in(self) -> None:
        """Free what came back, and give its pages back: it was kept as long as it was of use."""
        while self._returned:
            offset = self._returned.popleft()
            size = self._release(offset)
            self._num_taken -= size
            self._map.madvise(mmap.MADV_REMOVE, offset, size)

    def _merge(self, wanted: int) -> None:
        """Cut what is free anew, if it may have a block of the size `wanted`: sizes that were asked
        for once must not take the room of all others for good.
        """
        free = sorted((offset, size) for size, found in self._free.items() for offset in found)
        if sum(size for _, size in free) + ARENA_SIZE - self._top < wanted:
            return
        for offset, size in (*self._warm.items(), *self._cold.items()):
            self._map.madvise(mmap.MADV_REMOVE, offset, size)
        self._warm, self._cold, self._free = {}, {}, {}
        begin = end = 0
        for offset, size in free:
            if offset != end:
                self._cut(begin, end, wanted)
                begin = offset
            end = offset + size
        self._cut(begin, end, wanted)

    def _cut(self, begin: int, end: int, wanted: int) -> None:
        """What is free from `begin` to `end`, blocks of the size `wanted` first."""
        if end == self._top:
            self._top = begin
            return
        while begin < end:
            size = min(1 << (end - begin).bit_length() - 1, wanted)
            self._free.setdefault(size, []).append(begin)
            begin += size


def _copy(target: memoryview, data: Buffer) -> None:
    """Other threads go on meanwhile if it is much."""
    if len(target) < _MUCH:
        target[:] = data
    else:
        np.copyto(np.frombuffer(target, np.uint8), np.frombuffer(data, np.uint8))


def _block_of(size: int) -> int:
    return max(_SMALLEST, 1 << (size - 1).bit_length())


class ArenaView:
    """The receiver's side: read only, unless what lies there is to be used in place."""

    def __init__(self, fd: int, num_reserved: int = 0, *, is_writable: bool = False) -> None:
        access = mmap.ACCESS_WRITE if is_writable else mmap.ACCESS_READ
        self._map = mmap.mmap(fd, ARENA_SIZE, access=access)
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
        """What is lent of it stays mapped until it is returned."""
        self.reserved.release()
        with suppress(BufferError):
            self._view.release()
            self._map.close()


class NoArena:
    """For a channel to another machine: everything travels inline.  `reserved` is the beginning of
    the shared memory `fd`, if there is one, else nobody but us reads it.
    """

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
