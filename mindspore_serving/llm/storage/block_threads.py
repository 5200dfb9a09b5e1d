"""Threads that read and write the blocks of a level, so that no step waits for a disk or a net."""

import threading
import time
from queue import SimpleQueue
from typing import TypeAlias

from mindspore_serving import log
from mindspore_serving.llm.storage.block_level import BlockLevel

MAX_QUEUED = 64 << 20  # bytes in memory that are queued for writing

Results: TypeAlias = SimpleQueue[tuple[BlockLevel, bytes, memoryview | None]]


class BlockThreads:
    """Threads that read the blocks of `level`, and a thread that writes them.

    `results` receives each block that was read: its level and digest, and its contents or None.
    """

    def __init__(self, level: BlockLevel, results: Results | None = None) -> None:
        self.level = level
        self.results: Results = SimpleQueue() if results is None else results
        self._num_queued = self._num_done = 0  # writes, and of these finished or failed
        self._max_queued = max(1, MAX_QUEUED // level.values.max_bytes)  # blocks
        self._reads: SimpleQueue[bytes | None] = SimpleQueue()
        self._writes: SimpleQueue[tuple[bytes, memoryview] | None] = SimpleQueue()
        self._is_closed = False
        runs = [self._read] * level.num_readers + [self._write]
        self._threads = [
            threading.Thread(target=run, name=f"prefix cache {level.name}", daemon=True)
            for run in runs
        ]
        for thread in self._threads:
            thread.start()

    @property
    def has_room(self) -> bool:
        """True if another block can be queued for writing, and the store takes blocks."""
        return self._num_queued - self._num_done < self._max_queued and self.is_writable

    @property
    def is_writable(self) -> bool:
        """True unless writing to the store has just failed."""
        return self.level.is_local or not self.level.writes.is_open

    @property
    def is_writing(self) -> bool:
        return self._num_done < self._num_queued

    def read(self, digest: bytes) -> None:
        self._reads.put(digest)

    def write(self, digest: bytes, content: memoryview) -> None:
        self._num_queued += 1
        self._writes.put((digest, content))

    def close(self, seconds: float) -> None:
        """Write the queued blocks for at most `seconds`, and end."""
        deadline = time.monotonic() + seconds
        for _ in range(self.level.num_readers):
            self._reads.put(None)
        self._writes.put(None)
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        self._is_closed = True
        if any(thread.is_alive() for thread in self._threads):
            log.warning(
                "not all queued blocks of the prefix cache were written to %s within %g s",
                self.level,
                seconds,
            )
        else:
            self.level.close()

    def _read(self) -> None:
        for digest in iter(self._reads.get, None):
            self.results.put((self.level, digest, self.level.read(digest)))

    def _write(self) -> None:
        for digest, content in iter(self._writes.get, None):
            if self._is_closed:
                return
            self.level.write(digest, content)
            self._num_done += 1
