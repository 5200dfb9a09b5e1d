"""Prefix cache behind that in memory, as an engine uses it: what is written and read, and when.

    prompt queued -> look_up: reading, its blocks are requested from the threads of a level
                  -> deliver: blocks arrive in the cache (in use, so that they are not evicted)
                  -> all arrived, or one is missing: no longer reading, the prompt is admitted

A level is a disk or a store that servers share.  A block is written when there is nothing to
compute, when it is evicted from the cache, and at the end; to a shared store also between steps,
as other servers may need it soon.  Blocks are read when a prompt arrives that continues with them,
from the first level that has them; it waits for them, and then finds them in the cache like any
other.  Threads read and write; a step only copies memory.
"""

import time
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import suppress
from itertools import product, takewhile
from queue import Empty, SimpleQueue
from types import MappingProxyType
from typing import cast

from mindspore_serving import log
from mindspore_serving.llm.engine.block_cost import BlockCost
from mindspore_serving.llm.engine.blocks import BlockPool
from mindspore_serving.llm.engine.sequence import Sequence
from mindspore_serving.llm.engine.states import NoStates, StatePool
from mindspore_serving.llm.engine.stored_levels import BlockRead, LevelState
from mindspore_serving.llm.engine.stored_states import StateSearches, StoredStates
from mindspore_serving.llm.step import RunnerLost, StatefulRunner, StoringRunner
from mindspore_serving.llm.storage.block_level import BlockLevel
from mindspore_serving.llm.storage.block_threads import BlockThreads, Results

READ_AHEAD = 16 << 20  # bytes being read but not yet in the cache; a step copies as many at most
WRITE_AHEAD = 2 << 20  # bytes that are copied for a shared store between two steps
CLOSING_SECONDS = 3.0
POLL_SECONDS = 0.05
PROBE_SECONDS = 0.002  # that a step waits for the first block of a new prompt, if a store is quick
SLOWNESS = 1.0  # seconds that reading a prompt may take longer than computing it


class NoStoredBlocks:
    """Null object for engines that keep blocks in memory alone; it only measures their cost."""

    reading: Mapping[bytes, object] = MappingProxyType({})

    def __init__(self) -> None:
        self.cost = BlockCost()

    def counts(self) -> dict[str, int]:
        return {}

    def add(self, sequence: Sequence, digests: list[bytes]) -> None:
        self.cost.add(len(digests), time.monotonic())

    def look_up(self, sequence: Sequence) -> None: ...

    def deliver(self) -> None:
        self.cost.begin(time.monotonic())

    def wait(self) -> None: ...

    def save_next(self) -> None: ...

    def close(self) -> None: ...


class StoredBlocks:
    """Stored blocks of `runner`, whose cache blocks `pool` allocates; used by the engine's thread.

    `reading` has the hashes of the blocks that will be in the cache soon.  Prompts ask `levels` one
    after the other.
    """

    def __init__(
        self,
        runner: StoringRunner,
        pool: BlockPool,
        levels: Iterable[BlockLevel],
        threads: type[BlockThreads] = BlockThreads,
        *,
        states: StatePool | NoStates | None = None,
    ) -> None:
        self.reading: dict[bytes, BlockRead] = {}
        self._runner, self._pool = runner, pool
        self._results: Results = SimpleQueue()
        self._states = {level: LevelState(threads(level, self._results)) for level in levels}
        self._queue: deque[BlockRead] = deque()
        self._max_in_flight = max(2, READ_AHEAD // runner.block_bytes)  # blocks
        self.cost = BlockCost()
        pool.on_evict = self._save_evicted
        self._snapshots: StoredStates | None = None
        if isinstance(states, StatePool):
            self._snapshots = StoredStates(cast(StatefulRunner, runner), states)
            states.on_keep = self._add_state
            states.pool.on_evict = self._save_evicted_state
            self._searches = StateSearches(self._snapshots, self._request, self._read_until)

    def counts(self) -> dict[str, int]:
        """Return the counters of the levels, by the fields of `EngineStats`."""
        counts: dict[str, int] = {}
        for state in self._states.values():
            level = state.level
            counts[f"num_{level.name}_hits"] = state.num_tokens
            counts[f"num_{level.name}_misses"] = level.counts.misses
            counts[f"num_{level.name}_errors"] = level.counts.errors
            counts[f"num_{level.name}_bytes_read"] = level.counts.bytes_read
            counts[f"num_{level.name}_bytes_written"] = level.counts.bytes_written
        return counts

    def add(self, sequence: Sequence, digests: list[bytes]) -> None:
        """Note that the blocks of `sequence` with the hashes `digests` are computed."""
        self.cost.add(len(digests), time.monotonic())
        for digest in digests if _is_known(sequence) else ():
            for state in self._states.values():
                if digest not in state.saved:
                    state.unsaved[digest] = None

    def look_up(self, sequence: Sequence) -> None:
        """Start to read the blocks of a prompt that are stored and not in the cache."""
        if not _is_known(sequence):
            return
        hashes = sequence.hash_reusable(self._runner.block_size)
        missing = hashes[len(self._pool.find(hashes)) :]
        missing = missing[: max(0, self._pool.num_free - self._spare)]
        new = list(takewhile(lambda digest: digest not in self.reading, missing))
        if not new:
            return
        reading = BlockRead(new, set(new), time.monotonic())
        self.reading.update(dict.fromkeys(reading.digests, reading))
        if self._snapshots is None:
            self._queue.append(reading)
        else:
            self._searches.add(reading)
        self._request_blocks()

    def deliver(self) -> None:
        """Move blocks that were read into the cache, at most as many as do not hold up a step."""
        self.cost.begin(time.monotonic())
        self._await_probes()
        for _ in range(self._max_in_flight):
            try:
                self._accept(*self._results.get_nowait())
            except Empty:
                break
        if self.reading:
            self._give_up_slow()
        for state in self._states.values():
            if not state.level.is_local:
                self._save_some(state)

    def wait(self) -> None:
        """Wait for a block for a moment, while there is nothing to compute."""
        if self.reading:
            try:
                self._accept(*self._results.get(timeout=POLL_SECONDS))
            except Empty:
                return

    def save_next(self) -> float | None:
        """Start to write a block, while there is nothing to compute.

        Returns the seconds after which to call again; None if there is nothing more to write.
        """
        for state in self._states.values():
            if state.unsaved and state.threads.has_room:
                self._save(state, next(iter(state.unsaved)))
                return 0.0
        is_busy = any(
            state.threads.is_writing or (state.unsaved and state.threads.is_writable)
            for state in self._states.values()
        )
        return POLL_SECONDS if is_busy else None

    def close(self) -> None:
        """Write blocks that are not stored, the last used ones first, and end the threads.

        Takes at most `CLOSING_SECONDS`.
        """
        deadline = time.monotonic() + CLOSING_SECONDS
        for state in self._states.values():
            known = state.saved | state.unsaved.keys()
            digests = self._pool.hashes()
            digests += self._snapshots.hashes() if self._snapshots else ()
            digests = [digest for digest in digests if digest in known]
            digests = digests[: state.level.max_blocks]
            for digest in digests:
                if not state.level.is_local and digest in state.saved:
                    continue
                while not state.threads.has_room and time.monotonic() < deadline:
                    time.sleep(0.001)
                if time.monotonic() > deadline:
                    break
                with suppress(RunnerLost):  # with its blocks
                    self._save(state, digest)
            state.threads.close(max(0.0, deadline - time.monotonic()))
            self._touch(state.level, digests, deadline)

    def _await_probes(self) -> None:
        """Wait a moment for stores that are quick, so that a miss does not cost a prompt a step."""
        levels = [state.level for state in self._states.values() if not state.level.is_local]
        if any(level.latency > PROBE_SECONDS / 2 for level in levels):
            return
        while began := [reading.began for reading in self._queue if reading.is_probing]:
            try:
                seconds = max(began) + PROBE_SECONDS - time.monotonic()
                self._accept(*self._results.get(timeout=max(0.0, seconds)))
            except Empty:
                return

    @property
    def _spare(self) -> int:
        """Number of blocks left free for running sequences."""
        return self._pool.num_blocks // 8

    def _save(self, state: LevelState, digest: bytes) -> None:
        state.unsaved.pop(digest, None)
        state.saved.add(digest)
        content = None if state.level.has(digest) else self._content(digest)
        if content is not None:
            state.threads.write(digest, content)

    def _content(self, digest: bytes) -> memoryview | None:
        """Return the contents of a block, or of a piece of a state, that is in memory."""
        blocks = self._pool.find([digest])
        if blocks:
            return self._runner.read_block(blocks[0])
        return self._snapshots.read(digest) if self._snapshots else None

    def _add_state(self, digest: bytes) -> None:
        """Note that a prompt has left a state behind the block with the hash `digest`."""
        assert self._snapshots is not None
        pieces = self._snapshots.add(digest)
        for state in self._states.values():
            state.unsaved.update((piece, None) for piece in pieces if piece not in state.saved)

    def _save_evicted_state(self, slot: int, digest: bytes) -> None:
        assert self._snapshots is not None
        for state, piece in product(self._states.values(), self._snapshots.pieces(digest)):
            if piece in state.unsaved and state.threads.has_room:
                self._save(state, piece)
            state.unsaved.pop(piece, None)
            state.saved.discard(piece)
        self._snapshots.remove(digest)

    def _save_some(self, state: LevelState) -> None:
        for _ in range(max(1, WRITE_AHEAD // self._runner.block_bytes)):
            if not (state.unsaved and state.threads.has_room):
                return
            self._save(state, next(iter(state.unsaved)))

    def _touch(self, level: BlockLevel, digests: list[bytes], deadline: float) -> None:
        """Set the times of the files, the first as the newest: the order of use was in memory."""
        now = time.time_ns()
        for index, digest in enumerate(digests if level.is_local else ()):
            if time.monotonic() > deadline:
                return
            level.touch(digest, now - index * 1000)

    def _save_evicted(self, block: int, digest: bytes) -> None:
        for state in self._states.values():
            state.saved.discard(digest)
            if digest in state.unsaved:
                del state.unsaved[digest]
                if state.threads.has_room and not state.level.has(digest):
                    state.threads.write(digest, self._runner.read_block(block))

    def _request_blocks(self) -> None:
        """Request blocks of the prompts in turn, as many as may be in flight.

        Of a shared store only the first block is requested until that has arrived, as the store
        has nothing of most prompts.
        """
        for reading in list(self._queue):
            while reading.num_requested < len(reading.digests):
                if sum(state.in_flight for state in self._states.values()) >= self._max_in_flight:
                    return
                if reading.is_probing:
                    break
                digest = reading.digests[reading.num_requested]
                reading.num_requested += 1
                if not self._request(reading, digest):
                    self._cut(reading, digest)
            else:
                self._queue.remove(reading)

    def _request(self, reading: BlockRead, digest: bytes, below: BlockLevel | None = None) -> bool:
        """Request a block from the first level, `below` one if any, that may have it."""
        states = list(self._states.values())
        if below is not None:
            states = states[states.index(self._states[below]) + 1 :]
        for state in states:
            if state.request(digest):
                if not state.level.is_local:
                    reading.probe = reading.probe or digest
                return True
        return False

    def _read_until(self, reading: BlockRead, digest: bytes) -> None:
        """Read the blocks of `reading` up to `digest`, whose state is there; none with b""."""
        behind = reading.digests.index(digest) + 1 if digest else 0
        if behind < len(reading.digests):
            self._cut(reading, reading.digests[behind])
        if behind:
            self._queue.append(reading)

    def _accept(self, level: BlockLevel, digest: bytes, content: memoryview | None) -> None:
        state = self._states[level]
        state.last_delivery, state.is_stuck = time.monotonic(), False
        state.in_flight -= 1
        reading = self.reading.get(digest)
        if self._snapshots is not None and self._searches.has(digest):
            self._searches.accept(level, digest, content)
        elif reading is not None:
            if content is None:
                if not self._request(reading, digest, level):
                    self._cut(reading, digest)
            elif self._pool.num_free <= self._spare:
                self._end(reading)
            else:
                self._put(state, reading, digest, content)
        self._request_blocks()

    def _put(
        self, state: LevelState, reading: BlockRead, digest: bytes, content: memoryview
    ) -> None:
        if not self._pool.find([digest]):  # else another prompt has computed this block
            block = self._pool.allocate()
            self._runner.write_block(block, content)
            self._pool.register(block, digest)
            for other in self._states.values():
                if other is state:
                    state.saved.add(digest)
                elif digest not in other.saved:
                    other.unsaved[digest] = None
            reading.blocks.append(block)
            state.num_tokens += self._runner.block_size
        reading.num_delivered += 1
        reading.awaited.discard(digest)
        if not reading.awaited:
            state.slow.succeed()
            self._end(reading)

    def _give_up_slow(self) -> None:
        """Compute prompts whose blocks do not come, or come slower than they can be computed."""
        for state in self._states.values():
            if state.is_late and not state.is_stuck:
                log.warning(
                    "%s delivered no block of the prefix cache in %g s: computing the prompts "
                    "instead",
                    state.level,
                    state.level.patience,
                )
                state.is_stuck = True
                for reading in list(self.reading.values()):
                    self._end(reading)
        for reading in {id(reading): reading for reading in self.reading.values()}.values():
            seconds = time.monotonic() - reading.began
            worth = SLOWNESS + reading.num_delivered * self.cost.seconds
            if not reading.probe or not self.cost.seconds or seconds <= worth:
                continue
            log.info(
                "%d blocks of the prefix cache took %.3g s, longer than computing them: computing "
                "the prompt instead",
                reading.num_delivered,
                seconds,
            )
            for state in self._states.values():
                if not state.level.is_local:
                    state.slow.fail()
            self._end(reading)

    def _cut(self, reading: BlockRead, digest: bytes) -> None:
        """End a reading at a block that no level has; those before it may be under way."""
        count = reading.digests.index(digest)
        for missing in reading.digests[count:]:
            self.reading.pop(missing, None)
            reading.awaited.discard(missing)
        del reading.digests[count:]
        reading.num_requested = min(reading.num_requested, count)
        if not reading.awaited:
            self._end(reading)

    def _end(self, reading: BlockRead) -> None:
        """Stop waiting for the blocks of `reading`; those that arrived are in the cache."""
        reading.num_requested = len(reading.digests)
        reading.awaited.clear()
        for digest in reading.digests:
            self.reading.pop(digest, None)
        self._pool.free(reading.blocks)
        reading.blocks = []
        if self._snapshots is not None:
            self._searches.remove(reading)


def _is_known(sequence: Sequence) -> bool:
    """Return whether other processes have the same hashes: they may number adapters otherwise."""
    return not sequence.adapter or bool(sequence.adapter_digest)
