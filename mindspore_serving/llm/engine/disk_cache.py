"""The prefix cache on disk, as an engine uses it: which blocks are written and read, and when.

A block is written when nothing is to be computed, when it leaves the cache, and at the end.  Blocks
are read when a prompt comes that continues with them; it waits for them, and then finds them in the
cache like any other.  Files are read and written by threads; a step copies memory at most.
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

READ_AHEAD = 16 << 20  # bytes that are read and not in the cache yet; as much is copied in a step
PATIENCE = 10.0  # seconds for a block, after which prompts no longer wait for the disk
CLOSING_SECONDS = 3.0
POLL_SECONDS = 0.05


@dataclass(slots=True, eq=False)
class _Reading:
    """The blocks that one prompt waits for."""

    digests: list[bytes]
    num_asked: int = 0
    num_found: int = 0
    blocks: list[int] = field(default_factory=list)  # in use until the last is found


class NoDisk:
    """Of an engine that keeps no blocks on disk."""

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
    """Of `runner`, whose blocks `pool` hands out; used by the engine's thread.

    `reading` has the hashes of the blocks that will be in the cache soon.
    """

    def __init__(self, runner: StoringRunner, pool: BlockPool, threads: BlockThreads) -> None:
        self.reading: dict[bytes, _Reading] = {}
        self.num_tokens = 0  # that were read
        self._runner, self._pool, self._threads = runner, pool, threads
        self._files = threads.files
        # Of the blocks in the cache that may be written, those that are not, and those that are.
        self._unsaved: OrderedDict[bytes, None] = OrderedDict()
        self._saved: set[bytes] = set()
        self._queue: deque[_Reading] = deque()
        self._most = max(2, READ_AHEAD // runner.block_bytes)  # blocks in flight
        self._in_flight = 0
        self._heard = 0.0
        self._is_stuck = False
        pool.on_leave = self._leave

    @property
    def num_bytes(self) -> tuple[int, int]:
        """Read and written."""
        size = self._files.file_bytes
        return self._threads.num_read * size, self._threads.num_written * size

    def add(self, sequence: Sequence, digests: list[bytes]) -> None:
        """The blocks of `sequence` with these hashes are computed.  Those of adapters, whose
        numbers another process has for others, are not kept.
        """
        for digest in () if sequence.adapter else digests:
            if digest not in self._saved:
                self._unsaved[digest] = None

    def look_up(self, sequence: Sequence) -> None:
        """Begin to read the blocks of a prompt that are not in the cache but on disk."""
        if sequence.adapter:
            return
        hashes = sequence.hash_known(self._runner.block_size)
        missing = hashes[len(self._pool.find(hashes)) :]
        missing = missing[: max(0, self._pool.num_free - self._spare)]
        new = list(takewhile(lambda digest: digest not in self.reading, missing))
        if not new or self._is_stuck or not self._files.has(new[0]):
            return
        reading = _Reading(new)
        self.reading.update(dict.fromkeys(reading.digests, reading))
        self._queue.append(reading)
        if not self._in_flight:
            self._heard = time.monotonic()
        self._ask()

    def deliver(self) -> None:
        """Put what was read into the cache, as much as does not hold up a step."""
        for _ in range(self._most):
            try:
                self._take(*self._threads.results.get_nowait())
            except Empty:
                break
        if self.reading and time.monotonic() - self._heard > PATIENCE:
            log.warning(
                "the prefix cache's disk gave no block in %g s: prompts are computed", PATIENCE
            )
            self._is_stuck = True
            for reading in list(self.reading.values()):
                self._end(reading)

    def wait(self) -> None:
        """While nothing else can be done: until a block is there, or for a moment."""
        if self.reading:
            try:
                self._take(*self._threads.results.get(timeout=POLL_SECONDS))
            except Empty:
                return

    def save_next(self) -> float | None:
        """While there is nothing to compute: have a block written.  In how many seconds there is
        more to do; None if there is nothing.
        """
        if not self._unsaved:
            return POLL_SECONDS if self._threads.is_writing else None
        if not self._threads.has_room:
            return POLL_SECONDS
        self._save(next(iter(self._unsaved)))
        return 0.0

    def close(self) -> None:
        """Write what is not on disk, the blocks that were used last first, and end the threads."""
        deadline = time.monotonic() + CLOSING_SECONDS
        own = self._saved | self._unsaved.keys()
        digests = [digest for digest in self._pool.hashes() if digest in own]
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
        """Blocks that are left to running sequences."""
        return self._pool.num_blocks // 8

    def _save(self, digest: bytes) -> None:
        self._unsaved.pop(digest, None)
        self._saved.add(digest)
        (block,) = self._pool.find([digest])
        if not self._files.has(digest):
            self._threads.write(digest, self._runner.read_block(block))

    def _touch(self, digests: list[bytes], deadline: float) -> None:
        """Note on disk that these were used, the first of them last: memory alone knew it."""
        now = time.time_ns()
        for place, digest in enumerate(digests):
            if time.monotonic() > deadline:
                return
            self._files.touch(digest, now - place * 1000)

    def _leave(self, block: int, digest: bytes) -> None:
        self._saved.discard(digest)
        if digest in self._unsaved:
            del self._unsaved[digest]
            if self._threads.has_room and not self._files.has(digest):
                self._threads.write(digest, self._runner.read_block(block))

    def _ask(self) -> None:
        while self._queue and self._in_flight < self._most:
            reading = self._queue[0]
            if reading.num_asked == len(reading.digests):
                self._queue.popleft()
                continue
            self._threads.read(reading.digests[reading.num_asked])
            reading.num_asked += 1
            self._in_flight += 1

    def _take(self, digest: bytes, content: memoryview | None) -> None:
        self._heard, self._is_stuck = time.monotonic(), False
        self._in_flight -= 1
        reading = self.reading.get(digest)
        if reading is not None:
            if content is None or self._pool.num_free <= self._spare:
                self._end(reading)
            else:
                self._put(reading, digest, content)
        self._ask()

    def _put(self, reading: _Reading, digest: bytes, content: memoryview) -> None:
        if not self._pool.find([digest]):  # else another prompt has computed it
            block = self._pool.allocate()
            self._runner.write_block(block, content)
            self._pool.register(block, digest)
            self._saved.add(digest)
            reading.blocks.append(block)
            self.num_tokens += self._runner.block_size
        reading.num_found += 1
        if reading.num_found == len(reading.digests):
            self._end(reading)

    def _end(self, reading: _Reading) -> None:
        """Nobody waits for its blocks any more; those that were found are in the cache."""
        reading.num_asked = len(reading.digests)
        for digest in reading.digests:
            self.reading.pop(digest, None)
        self._pool.free(reading.blocks)
        reading.blocks = []
