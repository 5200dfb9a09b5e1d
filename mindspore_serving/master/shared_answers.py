"""Level of a cache of answers that is in a store: what other servers have computed is a hit here.

Threads ask the store, and each request waits for it at most a deadline.  Whatever is wrong with the
store is a miss, and the store is then not asked for a while.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from queue import SimpleQueue

import msgspec

from mindspore_serving import log
from mindspore_serving.master.answer_cache import Key
from mindspore_serving.stores.base import ValueStore
from mindspore_serving.stores.circuit import Circuit
from mindspore_serving.stores.sealing import Seal

MAGIC = b"MSAN001"
MAX_STORED = 8 << 20  # bytes of an answer
MAX_LOOKUPS = 256  # at the same time; further requests are computed
MAX_QUEUED = 16 << 20  # bytes of answers that are queued for writing
MAX_SKEW = 60.0  # seconds by which the clocks of servers may differ


class StoredAnswer(msgspec.Struct, array_like=True, frozen=True):
    """Encoded instances of an answer that was computed at `created`, seconds since 1970."""

    created: float
    instances: list[bytes]


OnAnswer = Callable[[StoredAnswer | None], None]


@dataclass(slots=True)
class StoreCounts:
    """Counts of what a store did for a method."""

    hit: int = 0
    miss: int = 0
    late: int = 0  # no answer within the timeout
    failed: int = 0
    wrong: int = 0  # values that were damaged or forged
    skipped: int = 0  # the store was not asked, as it has just failed or has too much to do
    written: int = 0
    unwritten: int = 0  # the store failed, is full or too slow, or the answer is too large


class AnswerLevel:
    """Answers of one method in a store; `seal` is of the method and all that its answers depend on.

    An answer is valid for `max_seconds`, whatever the store keeps.
    """

    def __init__(self, threads: "AnswerThreads", seal: Seal, max_seconds: float) -> None:
        self.seal = seal
        self.counts = StoreCounts()
        self._threads = threads
        self._max_seconds = max_seconds

    def get(self, key: Key, on_answer: OnAnswer) -> "AnswerLookup | None":
        """Ask for an answer, which `on_answer` gets within the timeout; None if nothing is asked.

        It is called later on this event loop, with None if there is no valid answer.
        """
        if self._threads.has_room:
            lookup = AnswerLookup(self, self._name(key), on_answer)
            self._threads.get(lookup)
            return lookup
        self.counts.skipped += 1
        return None

    def put(self, key: Key, instances: Sequence[bytes]) -> None:
        """Write an answer that has just been computed, if the store takes it."""
        size = sum(map(len, instances))
        if size > MAX_STORED // 2 or len(instances) > 10_000 or not self._threads.takes(size):
            self.counts.unwritten += 1
            return
        name, answer = self._name(key), StoredAnswer(time.time(), list(instances))
        self._threads.put(self, name, answer, size)

    def is_valid(self, answer: StoredAnswer) -> bool:
        """Return whether an answer is not too old."""
        return -MAX_SKEW <= time.time() - answer.created < self._max_seconds

    def count(self, result: str) -> None:
        """Count a result, a field of `StoreCounts`.  On the event loop only."""
        setattr(self.counts, result, getattr(self.counts, result) + 1)

    def _name(self, key: Key) -> str:
        tenant, digest = key
        return self.seal.name(blake2b(tenant.encode() + b"\0" + digest).digest())


class AnswerLookup:
    """Answer that a request waits for."""

    __slots__ = ("_on_answer", "_timer", "is_done", "level", "name")

    def __init__(self, level: AnswerLevel, name: str, on_answer: OnAnswer) -> None:
        self.level, self.name = level, name
        self.is_done = False
        self._on_answer = on_answer
        self._timer: asyncio.TimerHandle | None = None

    def limit(self, timer: asyncio.TimerHandle) -> None:
        """Set the timer that ends the lookup."""
        self._timer = timer

    def finish(self, result: str, answer: StoredAnswer | None = None) -> bool:
        """End the lookup, unless it has ended; return whether it is ended by this call."""
        if self.is_done:
            return False
        self.cancel()
        self.level.count(result)
        self._on_answer(answer)
        return True

    def cancel(self) -> None:
        """End the lookup without a result."""
        self.is_done = True
        if self._timer is not None:
            self._timer.cancel()


class AnswerThreads:
    """Threads that ask `store`, which ends each call about `timeout` seconds after its begin."""

    def __init__(self, store: ValueStore, num_readers: int, timeout: float) -> None:
        self._store, self._timeout = store, timeout
        self._loop = asyncio.get_running_loop()
        self._is_reading, self._is_writing = Circuit(), Circuit()
        self._num_lookups = self._num_queued = 0  # lookups that have no thread, bytes to write
        self._lookups: SimpleQueue[AnswerLookup | None] = SimpleQueue()
        self._writes: SimpleQueue[tuple[AnswerLevel, str, StoredAnswer, int] | None] = SimpleQueue()
        self._readers = num_readers
        self._writer = threading.Thread(target=self._write, name="answers", daemon=True)
        self._writer.start()
        for _ in range(num_readers):
            threading.Thread(target=self._read, name="answers", daemon=True).start()

    def __str__(self) -> str:
        return str(self._store)

    @property
    def has_room(self) -> bool:
        """True unless the store has just failed, or too many requests wait for it."""
        return self._num_lookups < MAX_LOOKUPS and not self._is_reading.is_open

    def takes(self, size: int) -> bool:
        """Return whether `size` bytes can be queued for writing."""
        return self._num_queued + size <= MAX_QUEUED and not self._is_writing.is_open

    def get(self, lookup: AnswerLookup) -> None:
        """Let a thread ask for an answer."""
        self._num_lookups += 1
        lookup.limit(self._loop.call_later(self._timeout, self._expire, lookup))
        self._lookups.put(lookup)

    def put(self, level: AnswerLevel, name: str, answer: StoredAnswer, size: int) -> None:
        """Let a thread write an answer."""
        self._num_queued += size
        self._writes.put((level, name, answer, size))

    def close(self) -> None:
        """Write what is queued, for about the timeout, and end.  Not on an event loop."""
        for _ in range(self._readers):
            self._lookups.put(None)
        self._writes.put(None)
        self._writer.join(max(1.0, self._timeout))

    def _expire(self, lookup: AnswerLookup) -> None:
        if lookup.finish("late"):
            self._fail(self._is_reading, "read", f"no answer within {self._timeout:g} s")

    def _read(self) -> None:
        for lookup in iter(self._lookups.get, None):
            result, answer = ("late", None) if lookup.is_done else self._fetch(lookup)
            self._on_loop(self._finish, lookup, result, answer)

    def _finish(self, lookup: AnswerLookup, result: str, answer: StoredAnswer | None) -> None:
        self._num_lookups -= 1
        lookup.finish(result, answer)

    def _fetch(self, lookup: AnswerLookup) -> tuple[str, StoredAnswer | None]:
        name, level = lookup.name, lookup.level
        try:
            # A longer value is wrong; the extra byte tells without reading all of it.
            value = self._store.get(name, MAX_STORED + 1)
        except self._store.errors as error:
            self._fail(self._is_reading, "read", str(error).partition("\n")[0])
            return "failed", None
        if not lookup.is_done:
            self._is_reading.succeed()
        if value is None:
            return "miss", None
        opened = None if len(value) > MAX_STORED else level.seal.open(name, value)
        try:
            answer = msgspec.msgpack.decode(opened[1], type=StoredAnswer) if opened else None
        except msgspec.MsgspecError:
            answer = None
        if answer is None:
            log.warning("an answer in %s is damaged or no answer; it is removed", self)
            with suppress(*self._store.errors):
                self._store.remove(name)
            return "wrong", None
        return ("hit", answer) if level.is_valid(answer) else ("miss", None)

    def _write(self) -> None:
        for level, name, answer, size in iter(self._writes.get, None):
            result = "written" if self._store_answer(level, name, answer) else "unwritten"
            self._on_loop(self._on_written, level, size, result)
        with suppress(*self._store.errors):
            self._store.close()

    def _store_answer(self, level: AnswerLevel, name: str, answer: StoredAnswer) -> bool:
        if self._is_writing.is_open:
            return False
        content = msgspec.msgpack.encode(answer)
        try:
            self._store.put(name, (level.seal.head(name, content), content))
        except self._store.errors as error:
            self._fail(self._is_writing, "written", str(error).partition("\n")[0])
            return False
        self._is_writing.succeed()
        return True

    def _on_written(self, level: AnswerLevel, size: int, result: str) -> None:
        self._num_queued -= size
        level.count(result)

    def _fail(self, circuit: Circuit, verb: str, cause: str) -> None:
        if not circuit.is_failing:  # one line for a store that is gone, not one per answer
            log.warning("an answer cannot be %s (%s): %s", verb, self, cause)
        circuit.fail()

    def _on_loop(self, function: Callable[..., object], *arguments: object) -> None:
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(function, *arguments)
