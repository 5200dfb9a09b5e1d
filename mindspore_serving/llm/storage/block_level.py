"""A level of the prefix cache behind that in memory: blocks of one model in one store.

Failures of the store are misses.  Knows no thread and no engine.
"""

import threading
import time
from contextlib import suppress
from dataclasses import dataclass

from mindspore_serving import log
from mindspore_serving.llm.storage.block_values import BlockValues
from mindspore_serving.stores.base import ValueStore
from mindspore_serving.stores.circuit import Circuit

_LATENCY_RATE = 0.2  # part of a new measurement in the mean


@dataclass(slots=True)
class LevelCounts:
    """Counters of a level."""

    bytes_read: int = 0
    bytes_written: int = 0
    misses: int = 0  # blocks that were not there
    errors: int = 0  # reads and writes that failed, and values that were wrong


class BlockLevel:
    """Blocks of one model in `store`, which is on this machine if it `is_local`.

    Any thread may call `read` and `write`.  The engine's thread may ask a local store for a block,
    and never another one.

    Args:
        name: in metrics, "disk" or "store".
        max_blocks: that the store can hold.
        patience: seconds without a block, after which prompts no longer wait.
        num_readers: blocks that are read at the same time.
    """

    def __init__(
        self,
        name: str,
        store: ValueStore,
        values: BlockValues,
        *,
        max_blocks: int,
        is_local: bool = True,
        patience: float = 10.0,
        num_readers: int = 1,
    ) -> None:
        self.name, self.values, self.is_local = name, values, is_local
        self.max_blocks, self.patience, self.num_readers = max_blocks, patience, num_readers
        self.counts = LevelCounts()
        self.reads, self.writes = Circuit(), Circuit()
        self.latency = 0.0  # mean seconds of a miss
        self._store, self._lock = store, threading.Lock()
        self._is_wrong = False  # whether the last value that was read was wrong

    def may_have(self, digest: bytes) -> bool:
        """Return whether it is worth to read the block.  Takes no time."""
        if not self.is_local:
            return not self.reads.is_open
        has = self.has(digest)
        if not has:
            self._count(misses=1)
        return has

    def has(self, digest: bytes) -> bool:
        """Return whether a local store has the block; of another this is not known."""
        return self.is_local and self._store.has(self.values.name(digest))

    def read(self, digest: bytes) -> memoryview | None:
        """Return a block, None if the store has no right one, fails or is paused."""
        if not self.is_local and self.reads.is_open:
            return None
        name, began = self.values.name(digest), time.perf_counter()
        try:
            # A longer value is wrong; the extra byte tells without reading all of it.
            value = self._store.get(name, self.values.max_bytes + 1)
        except self._store.errors as error:
            self._fail(self.reads, "read", error)
            return None
        seconds = time.perf_counter() - began
        self.reads.succeed()
        if value is None:
            self.latency += (seconds - self.latency) * _LATENCY_RATE
            self._count(misses=1)
            return None
        self.values.compression.observe(len(value), seconds)
        block = self.values.unpack(name, value)
        if block is None:
            self._reject(name)
            return None
        self._is_wrong = False
        self._count(bytes_read=len(value))
        return block

    def write(self, digest: bytes, block: memoryview) -> bool:
        """Write a block unless it is there; return whether this was possible."""
        if not self.is_local and self.writes.is_open:
            return False
        name = self.values.name(digest)
        try:
            if not self.is_local and self._store.has(name):
                self._store.touch(name)
                return True
            parts = self.values.pack(name, block)
            began = time.perf_counter()
            self._store.put(name, parts)
        except self._store.errors as error:
            self._fail(self.writes, "written", error)
            return False
        num_bytes = sum(map(len, parts))
        self.values.compression.observe(num_bytes, time.perf_counter() - began)
        self.writes.succeed()
        self._count(bytes_written=num_bytes)
        return True

    def touch(self, digest: bytes, at: int | None = None) -> None:
        """Mark a block of a local store as used now, or at `at` nanoseconds since the epoch."""
        if self.is_local:
            self._store.touch(self.values.name(digest), at)

    def close(self) -> None:
        """Close the store."""
        with suppress(*self._store.errors):
            self._store.close()

    def _fail(self, circuit: Circuit, verb: str, error: Exception) -> None:
        if not circuit.is_failing:  # one line for a store that is gone, not one per block
            cause = str(error).partition("\n")[0]  # obstore adds pages
            log.warning("a block of the prefix cache cannot be %s (%s): %s", verb, self, cause)
        circuit.fail()
        self._count(errors=1)

    def _reject(self, name: str) -> None:
        if not self._is_wrong:
            log.warning(
                "block %s in %s is damaged or no block of the prefix cache; it is removed, and so "
                "are further ones",
                name,
                self,
            )
        self._is_wrong = True
        self._count(errors=1)
        with suppress(*self._store.errors):
            self._store.remove(name)

    def _count(self, **numbers: int) -> None:
        with self._lock:
            for name, number in numbers.items():
                setattr(self.counts, name, getattr(self.counts, name) + number)

    def __str__(self) -> str:
        return str(self._store)
