"""Shared memory for large payloads: the sender writes, the receiver reads, the sender frees.

An arena is an anonymous file (memfd) mapped by both ends of one channel. It has no name that could
leak or be guessed, and the kernel frees it with the last process, however that ends. Pages are
allocated when they are first written, kept for reuse, and returned to the kernel by `trim` if they
are not reused. The first bytes are `reserved` for the worker's status (`ipc.status`).
"""

import mmap
import threading
from collections import deque
from contextlib import suppress
from functools import partial

import numpy as np

from mindspore_serving.core.buffers import LARGE, Buffer, BufferList, contiguous
from mindspore_serving.core.lending import address_of, lend
from mindspore_serving.ipc.arena_file import ARENA_SIZE as ARENA_SIZE
from mindspore_serving.ipc.arena_file import create as create
from mindspore_serving.ipc.messages import Payload, Slice

INLINE_LIMIT = LARGE  # bytes; below this a copy through the socket is cheaper than a shared page
_SMALLEST = 64 * 1024
_LARGE_COPY = 1 << 20  # bytes
MAX_TAKEN = ARENA_SIZE // 2  # by `take`: clients cause it before they have sent any data
TRIM_SECONDS = 5.0  # pages that are unused for this long are returned to the kernel
_PAUSE = 0.1  # seconds between two calls of `trim` while more pages can be returned
_MAX_TRIMMED = 32 << 20  # bytes per call, which takes two milliseconds


class Arena:
    """Sender's side of an arena: an allocator of blocks whose sizes are powers of two.

    The block freed last is reused first, so that its pages stay warm. Thread-safe.

    A freed block passes through these states, and can be allocated again in each of them.  Blocks
    of `take` skip them, as their pages are returned at once.

        in use --free--> warm --trim--> cold --trim--> free, without pages
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
        self._num_lent = 0  # bytes of the blocks that `take` has given out
        self._returned: deque[int] = deque()  # offsets of such blocks that can be freed
        self._sent: dict[int, list[Buffer]] = {}  # offset -> data that was put from these blocks

    def take(self, size: int) -> memoryview | None:
        """Return `size` bytes of writable memory; None if there is no room.

        The block is freed when no view of it is left. Data put from this memory is sent without a
        copy.
        """
        length = _block_of(size)
        with self._lock:
            self._sort_in()
            if self._num_lent + length > MAX_TAKEN:
                return None
            offset = self._allocate(length)
            if offset is None:
                return None
            self._num_lent += length
        # `lend` appends on any thread, maybe in a finalizer: only deque.append is safe there.
        return lend(self._view[offset : offset + size], partial(self._returned.append, offset))

    def put(self, data: "Buffer | BufferList") -> Payload:
        """Write `data` into the arena and return its slice.

        Small data, and any data when the arena is full, is returned itself and travels inline.
        """
        length = len(data)
        if length < INLINE_LIMIT:
            return data  # type: ignore[return-value]  # msgpack takes a view as it takes bytes
        if self._num_lent and not isinstance(data, BufferList):
            at = address_of(data) - self._address
            if 0 <= at < ARENA_SIZE:
                self._sent.setdefault(at, []).append(data)
                return Slice(at, length)
        with self._lock:
            offset = self._allocate(_block_of(length))
        if offset is None:
            return contiguous(data)  # type: ignore[return-value]
        if isinstance(data, BufferList):
            data.write(self._view[offset : offset + length])
        else:
            _copy(self._view[offset : offset + length], data)
        return Slice(offset, length)

    def free(self, offset: int) -> None:
        """Free the payload at `offset`, which the receiver has finished reading."""
        sent = self._sent.get(offset)
        if sent:
            sent.pop()
            if not sent:
                del self._sent[offset]
            return
        with self._lock:
            self._warm[offset] = self._release(offset)

    def trim(self) -> float:
        """Return pages of blocks that were not reused to the kernel, at most `_MAX_TRIMMED` bytes.

        Returns the number of seconds until the next call is due.
        """
        with self._lock:
            self._sort_in()
            left = _MAX_TRIMMED
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
        """Mark the block at `offset` as free and return its size."""
        size = self._size_at.pop(offset)
        self._free.setdefault(size, []).append(offset)
        return size

    def _sort_in(self) -> None:
        """Free the blocks of `take` that were returned, and return their pages to the kernel."""
        while self._returned:
            offset = self._returned.popleft()
            size = self._release(offset)
            self._num_lent -= size
            self._map.madvise(mmap.MADV_REMOVE, offset, size)

    def _merge(self, size: int) -> None:
        """Merge adjacent free blocks and split them anew, if that can give a block of `size` bytes.

        Without this, block sizes that were needed once would take space from all other sizes for
        good.
        """
        blocks = sorted((offset, size) for size, at in self._free.items() for offset in at)
        if sum(length for _, length in blocks) + ARENA_SIZE - self._top < size:
            return
        for offset, length in (*self._warm.items(), *self._cold.items()):
            self._map.madvise(mmap.MADV_REMOVE, offset, length)
        self._warm, self._cold, self._free = {}, {}, {}
        begin = end = 0
        for offset, length in blocks:
            if offset != end:
                self._cut(begin, end, size)
                begin = offset
            end = offset + length
        self._cut(begin, end, size)

    def _cut(self, begin: int, end: int, size: int) -> None:
        """Split the free range from `begin` to `end` into blocks of at most `size` bytes."""
        if end == self._top:
            self._top = begin
            return
        while begin < end:
            length = min(1 << (end - begin).bit_length() - 1, size)
            self._free.setdefault(length, []).append(begin)
            begin += length


def _copy(target: memoryview, data: Buffer) -> None:
    """Copy `data`; numpy releases the GIL, which pays for large data only."""
    if len(target) < _LARGE_COPY:
        target[:] = data
    else:
        np.copyto(np.frombuffer(target, np.uint8), np.frombuffer(data, np.uint8))


def _block_of(size: int) -> int:
    return max(_SMALLEST, 1 << (size - 1).bit_length())


class ArenaView:
    """Receiver's side of an arena; read-only unless `is_writable`."""

    def __init__(self, fd: int, num_reserved: int = 0, *, is_writable: bool = False) -> None:
        access = mmap.ACCESS_WRITE if is_writable else mmap.ACCESS_READ
        self._map = mmap.mmap(fd, ARENA_SIZE, access=access)
        self._view = memoryview(self._map)
        self.reserved = self._view[:num_reserved]

    def get(self, payload: Payload) -> "bytes | memoryview":
        """Return the bytes of `payload` without copying them."""
        if isinstance(payload, bytes):
            return payload
        end = payload.offset + payload.length
        if payload.offset < 0 or payload.length < 0 or end > ARENA_SIZE:
            raise ValueError(f"slice {payload} lies outside the arena")
        return self._view[payload.offset : end]

    def close(self) -> None:
        """Unmap the arena as soon as no buffer lent from it is left."""
        self.reserved.release()
        with suppress(BufferError):
            self._view.release()
            self._map.close()


class NoArena:
    """Stand-in for an arena on a channel to another machine: all payloads travel inline.

    `reserved` maps the beginning of the shared memory `fd`; without `fd` it is private memory.
    """

    def __init__(self, num_reserved: int = 0, fd: int | None = None) -> None:
        memory = bytearray(num_reserved) if fd is None else mmap.mmap(fd, num_reserved)
        self.reserved = memoryview(memory)

    def put(self, data: "Buffer | BufferList") -> Payload:
        return contiguous(data)  # type: ignore[return-value]

    def get(self, payload: Payload) -> bytes:
        if isinstance(payload, Slice):
            raise ValueError(f"{payload} on a channel without shared memory")
        return payload

    def free(self, offset: int) -> None:
        raise ValueError(f"offset {offset} freed on a channel without shared memory")

    def trim(self) -> float:
        """Return the seconds until the next call; nothing is trimmed."""
        return TRIM_SECONDS

    def close(self) -> None:
        """Do nothing, as there is no shared memory to unmap."""
