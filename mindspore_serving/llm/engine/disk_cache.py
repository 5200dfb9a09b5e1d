"""Prefix cache on disk, as an engine uses it: which blocks are written and read, and when.

    prompt queued -> look_up: reading, its blocks are requested from the threads
                  -> deliver: blocks arrive in the cache (in use, so that they are not evicted)
                  -> all arrived, or one is missing: no longer reading, the prompt is admitted

A block is written when there is nothing to compute, when it is evicted from the cache, and at the
end.  Blocks are read when a prompt arrives that continues with them; it waits for them, and then
finds them in the cache like any other.  Threads read and write the files; a step only copies
memory.
"""

import time
from collections import OrderedDict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import takewhile
from queue import Empty
from types import MappingProxyType

from mindspore_serving import log
from mindspore_serving.llm.engine.blocks import BlockPool
from mindspore_serving.llm.engine.sequence import Sequence
from mindspore_serving.llm.step import StoringRunner
from mindspore_serving.llm.storage.block_threads import BlockThreads

READ_AHEAD = 16 << 20  # bytes being read but not yet in the cache; a step copies as many at most
READ_TIMEOUT = 10.0  # seconds without a block, after which prompts no longer wait for the disk
CLOSING_SECONDS = 3.0
POLL_SECONDS = 0.05


@dataclass(slots=True, eq=False)
class _Reading:
    """Blocks that one prompt waits for."""

    digests: list[bytes]
    num_requested: int = 0
    num_delivered: int = 0
    blocks: list[int] = field(default_factory=list)  # in use until the last is delivered


class NoDisk:
    """Null object for engines that keep no blocks on disk."""

    reading: Mapping[bytes, object] = MappingProxyType({})
    num_tokens = 0
    num_bytes = (0, 0)

    def add(self, sequence: Sequence, digests: list[bytes]) -> None: ...

    def look_up(self, sequence: Sequence) -> None: ...

    def deliver(self) -> None: ...

    def wait(self) -> None: ...

    def save_next(self) -> None: ...

    def close(self) -> None: ...


class DiskCache:
    """Blocks on disk of `runner`, whose cache blocks `pool` allocates; used by the engine's thread.

    `reading` has the hashes of the blocks that will be in the cache soon.
    """

    def __init__(self, runner: StoringRunner, pool: BlockPool, threads: BlockThreads) -> None:
        self.reading: dict[bytes, _Reading] = {}
        self.num_tokens = 0  # tokens whose blocks were read
        self._runner, self._pool, self._threads = runner, pool, threads
        self._files = threads.files
        # Registered blocks of the cache that are not on disk yet, and those that are.
        self._unsaved: OrderedDict[bytes, None] = OrderedDict()
        self._saved: set[bytes] = set()
        self._queue: deque[_Reading] = deque()
        self._max_in_flight = max(2, READ_AHEAD // runner.block_bytes)  # blocks in flight
        self._in_flight = 0
        self._last_delivery = 0.0  # by `time.monotonic`
        self._is_stuck = False
        pool.on_evict = self._save_evicted

    @property
    def num_bytes(self) -> tuple[int, int]:
        """Number of bytes read, and of bytes written."""
        size = self._files.file_bytes
        return self._threads.num_read * size, self._threads.num_written * size

    def add(self, sequence: Sequence, digests: list[bytes]) -> None:
        """Note that the blocks of `sequence` with the hashes `digests` are computed.

        Blocks of adapters are not kept: another process may give their numbers to other adapters.
        """
        for digest in () if sequence.adapter else digests:
            if digest not in self._saved:
                self._unsaved[digest] = None

    def look_up(self, sequence: Sequence) -> None:
        """Start to read the blocks of a prompt that are on disk and not in the cache."""
        if sequence.adapter:
            return
        hashes = sequence.hash_reusable(self._runner.block_size)
        missing = hashes[len(self._pool.find(hashes)) :]
        missing = missing[: max(0, self._pool.num_free - self._spare)]
        new = list(takewhile(lambda digest: digest not in self.reading, missing))
        if not new or self._is_stuck or not self._files.has(new[0]):
            return
        reading = _Reading(new)
        self.reading.update(dict.fromkeys(reading.digests, reading))
        self._queue.append(reading)
        if not self._in_flight:
            self._last_delivery = time.monotonic()
        self._request_blocks()

    def deliver(self) -> None:
        """Move blocks that were read into the cache, at most as many as do not hold up a step."""
        for _ in range(self._max_in_flight):
            try:
                self._accept(*self._threads.results.get_nowait())
            except Empty:
                break
        if self.reading and time.monotonic() - self._last_delivery > READ_TIMEOUT:
            log.warning(
                "the disk of the prefix cache delivered no block in %g s: computing the prompts "
                "instead",
                READ_TIMEOUT,
            )
            self._is_stuck = True
            for reading in list(self.reading.values()):
                self._end(reading)

    def wait(self) -> None:
        """Wait for a block for a moment, while there is nothing to compute."""
        if self.reading:
            try:
                self._accept(*self._threads.results.get(timeout=POLL_SECONDS))
            except Empty:
                return

    def save_next(self) -> float | None:
        """Start to write a block, while there is nothing to compute.

        Returns the seconds after which to call again; None if there is nothing more to write.
        """
        if not self._unsaved:
            return POLL_SECONDS if self._threads.is_writing else None
        if not self._threads.has_room:
            return POLL_SECONDS
        self._save(next(iter(self._unsaved)))
        return 0.0

    def close(self) -> None:
        """Write blocks that are not on disk, the last used ones first, and end the threads.

        Takes at most `CLOSING_SECONDS`.
        """
        deadline = time.monotonic() + CLOSING_SECONDS
        known = self._saved | self._unsaved.keys()
        digests = [digest for digest in self._pool.hashes() if digest in known]
        digests = digests[: self._files.max_bytes // self._files.file_bytes]
        for digest in digests:
            while not self._threads.has_room and time.monotonic() < deadline:
                time.sleep(0.001)
            if time.monotonic() > deadline:
                break
            self._save(digest)
        self._threads.close(max(0.0, deadline - time.monotonic()))
        self._touch(digests, deadline)

    @property
    def _spare(self) -> int:
        """Number of blocks left free for running sequences."""
        return self._pool.num_blocks // 8

    def _save(self, digest: bytes) -> None:
        self._unsaved.pop(digest, None)
        self._saved.add(digest)
        (block,) = self._pool.find([digest])
        if not self._files.has(digest):
            self._threads.write(digest, self._runner.read_block(block))

    def _touch(self, digests: list[bytes], deadline: float) -> None:
        """Set the times of the files, the first as the newest: the order of use was in memory."""
        now = time.time_ns()
        for index, digest in enumerate(digests):
            if time.monotonic() > deadline:
                return
            self._files.touch(digest, now - index * 1000)

    def _save_evicted(self, block: int, digest: bytes) -> None:
        self._saved.discard(digest)
        if digest in self._unsaved:
            del self._unsaved[digest]
            if self._threads.has_room and not self._files.has(digest):
                self._threads.write(digest, self._runner.read_block(block))

    def _request_blocks(self) -> None:
        while self._queue and self._in_flight < self._max_in_flight:
            reading = self._queue[0]
            if reading.num_requested == len(reading.digests):
                self._queue.popleft()
                continue
            self._threads.read(reading.digests[reading.num_requested])
            reading.num_requested += 1
            self._in_flight += 1

    def _accept(self, digest: bytes, content: memoryview | None) -> None:
        self._last_delivery, self._is_stuck = time.monotonic(), False
        self._in_flight -= 1
        reading = self.reading.get(digest)
        if reading is not None:
            if content is None or self._pool.num_free <= self._spare:
                self._end(reading)
            else:
                self._put(reading, digest, content)
        self._request_blocks()

    def _put(self, reading: _Reading, digest: bytes, content: memoryview) -> None:
        if not self._pool.find([digest]):  # else another prompt has computed this block
            block = self._pool.allocate()
            self._runner.write_block(block, content)
            self._pool.register(block, digest)
            self._saved.add(digest)
            reading.blocks.append(block)
            self.num_tokens += self._runner.block_size
        reading.num_delivered += 1
        if reading.num_delivered == len(reading.digests):
            self._end(reading)

    def _end(self, reading: _Reading) -> None:
        """Stop waiting for the blocks of `reading`; those that arrived are in the cache."""
        reading.num_requested = len(reading.digests)
        for digest in reading.digests:
            self.reading.pop(digest, None)
        self._pool.free(reading.blocks)
        reading.blocks = []
