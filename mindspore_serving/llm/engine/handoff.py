"""Blocks of prompts that move between the caches of two workers, as an engine's thread sees it.

    worker that computes prompts:  Exports   a step has computed blocks: they are written
    worker that decodes:           Imports   between steps, blocks are copied to the cache; then the
                                             request is added, and finds them like any cached ones

If layers have a state, that behind the last block follows it, in pieces as large as a block.
Memory of the same machine is written at once; a connection to another one has limited room, so that
blocks stay in the cache until they can be sent.  Nothing depends on a block that moved: one that is
missing is computed.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, cast

from mindspore_serving import log
from mindspore_serving.core.prefill_messages import BlocksWritten
from mindspore_serving.errors import ServingError
from mindspore_serving.llm.engine.cache import SequenceCache
from mindspore_serving.llm.engine.handoff_choice import HandoffCosts
from mindspore_serving.llm.engine.prompt_images import PromptImages
from mindspore_serving.llm.engine.sequence import Sequence as TokenSequence
from mindspore_serving.llm.engine.states import StatePool
from mindspore_serving.llm.engine.stored_states import StoredStates
from mindspore_serving.llm.step import StatefulRunner, StoringRunner
from mindspore_serving.llm.storage.block_memory import BlockMemory, BlockWriter

IMPORT_AHEAD = 8 << 20  # bytes that are copied into the cache between two steps, or one block

Outputs = list[tuple[str, Any]]


@dataclass(slots=True, eq=False)
class MovingBlocks:
    """Blocks of a prompt that another worker computes: their hashes, and the memory for them.

    Behind them are `num_pieces` of the state behind the block with the hash `state`.
    """

    digests: list[bytes]
    memory: BlockMemory
    state: bytes = b""
    num_pieces: int = 0
    num_imported: int = 0
    blocks: list[int] = field(default_factory=list)  # in use until the request is added

    @property
    def count(self) -> int:
        """Number of blocks and pieces."""
        return len(self.digests) + self.num_pieces


@dataclass(frozen=True, slots=True)
class Missing:
    """Part of a prompt that another worker may compute.

    Args:
        num_before: blocks in the cache, which are not to be sent.
        num_shared: blocks of these that need not be computed here.
        num_pieces: of the state behind the last block.
    """

    num_before: int
    num_shared: int
    num_pieces: int


class Imports:
    """Blocks on their way into the `cache` of `runner`."""

    def __init__(self, runner: StoringRunner, cache: SequenceCache) -> None:
        self.costs = HandoffCosts()
        self.num_prompts = self.num_failed = self.num_tokens = self.num_bytes = 0
        self.num_local = 0  # prompts that this worker has computed
        self.microseconds = 0  # that prompts have waited for their blocks
        self._runner, self._pool, self._states = runner, cache.pool, cache.states
        self._stored = _stored_states(runner, cache)
        self._queue: deque[tuple[MovingBlocks, int]] = deque()  # with the number that has arrived
        self._ends: deque[tuple[MovingBlocks, str, Callable[[Any], Any]]] = deque()

    @property
    def has_work(self) -> bool:
        return bool(self._queue or self._ends)

    @property
    def spare(self) -> int:
        """Number of blocks that are left free for running sequences."""
        return self._pool.num_blocks // 8

    def counts(self) -> dict[str, int]:
        """Return the counters by the fields of `EngineStats`."""
        return {
            "num_handoffs": self.num_prompts,
            "num_handoffs_failed": self.num_failed,
            "num_handoffs_local": self.num_local,
            "num_handoff_tokens": self.num_tokens,
            "num_handoff_bytes_read": self.num_bytes,
            "num_handoff_microseconds": self.microseconds,
        }

    def missing(self, digests: Sequence[bytes]) -> Missing:
        """Return what is missing of the prompt with the full blocks `digests`."""
        num_before = len(self._pool.find(digests))
        num_shared = self._states.num_shared(digests[:num_before])
        has_state = self._stored is None or num_shared == len(digests)
        num_pieces = 0 if has_state or self._stored is None else self._stored.num_pieces
        return Missing(num_before, num_shared, num_pieces)

    def arrived(self, moving: MovingBlocks, count: int) -> None:
        """Note that the first `count` blocks and pieces of `moving` are in its memory."""
        self._queue.append((moving, min(count, moving.count)))

    def end(self, moving: MovingBlocks, request_id: str, command: Callable[[Any], Any]) -> None:
        """Run `command` with the engine once the blocks that have arrived are in the cache."""
        self._ends.append((moving, request_id, command))

    def deliver(self, engine: Any) -> Outputs:
        """Copy blocks into the cache, as many as do not hold up a step; return outputs."""
        left = max(1, IMPORT_AHEAD // self._runner.block_bytes) if self._queue else 0
        while self._queue and left:
            moving, count = self._queue[0]
            left -= self._import(moving, min(count, moving.num_imported + left))
            if moving.num_imported >= count:
                self._queue.popleft()
        outputs: Outputs = []
        for _ in range(len(self._ends)):
            moving, request_id, command = self._ends.popleft()
            if any(queued is moving for queued, _ in self._queue):
                self._ends.append((moving, request_id, command))
                continue
            try:
                outputs += command(engine) or []
            except ServingError as error:
                outputs.append((request_id, error))
            self.release(moving)
        return outputs

    def release(self, moving: MovingBlocks) -> None:
        """Give up what `moving` holds; blocks that have arrived stay in the cache."""
        self._queue = deque(entry for entry in self._queue if entry[0] is not moving)
        moving.memory.close()
        self._pool.free(moving.blocks)
        moving.blocks = []

    def _import(self, moving: MovingBlocks, end: int) -> int:
        began, begin, pool = time.perf_counter(), moving.num_imported, self._pool
        num_blocks = min(end, len(moving.digests)) - begin
        try:
            for index in range(begin, begin + num_blocks):
                digest = moving.digests[index]
                if pool.find([digest]):  # another prompt has computed it
                    continue
                if pool.num_free <= self.spare:
                    moving.num_imported = moving.count
                    return 0
                content = moving.memory.read(index)
                block = pool.allocate()
                self._runner.write_block(block, content)
                pool.register(block, digest)
                moving.blocks.append(block)
                self.num_tokens += self._runner.block_size
                self.num_bytes += len(content)
            if num_blocks > 0:
                self.costs.observe(copy=(time.perf_counter() - began) / num_blocks)
            if begin < end == moving.count:
                self._import_state(moving)
        except OSError as error:
            log.warning("blocks of a prompt cannot be read: %s", error)
            moving.num_imported = moving.count
            return 0
        moving.num_imported = end
        return end - begin

    def _import_state(self, moving: MovingBlocks) -> None:
        """Restore the state behind the blocks; it may be evicted before its request begins."""
        if self._stored is None or not moving.num_pieces:
            return
        pieces = [moving.memory.read(i) for i in range(len(moving.digests), moving.count)]
        self._stored.restore(moving.state, pieces)
        self.num_bytes += sum(map(len, pieces))


@dataclass(frozen=True, slots=True)
class BlocksSent:
    """Output: the blocks of a prompt that has been computed are where they were to go."""


@dataclass(slots=True)
class _Export:
    digests: Sequence[bytes]
    writer: BlockWriter
    num_cached: int
    began: float
    state: bytes  # hash of the last block
    num_written: int = 0
    is_computed: bool = False
    blocks: list[int] = field(default_factory=list)  # in use until they are written
    pieces: list[memoryview] = field(default_factory=list)  # of the state, behind the blocks

    @property
    def is_written(self) -> bool:
        return self.is_computed and not self.blocks and not self.pieces

    @property
    def is_sent(self) -> bool:
        return self.is_written and self.writer.is_done


class Exports:
    """Prompts that are computed for other workers, and the ways that their blocks go."""

    def __init__(self, runner: StoringRunner, cache: SequenceCache) -> None:
        self.num_prompts = self.num_bytes = 0
        self._runner, self._pool, self._states = runner, cache.pool, cache.states
        self._stored = _stored_states(runner, cache)
        self._block_seconds = 0.0
        self._open: dict[str, _Export] = {}

    def begin(
        self, request_id: str, digests: Sequence[bytes], writer: BlockWriter, num_before: int = 0
    ) -> None:
        """Write the blocks of a prompt as they are computed, until `finish` or `end`.

        `digests` are those of all its blocks; the `num_before` first ones are not written.
        """
        self.num_prompts += 1
        num_cached = self._states.num_shared(digests[: len(self._pool.find(digests))])
        self._open[request_id] = _Export(
            digests[num_before:], writer, num_cached, time.perf_counter(), state=digests[-1]
        )

    def counts(self) -> dict[str, int]:
        """Return the counters by the fields of `EngineStats`."""
        return {
            "num_handoffs_computed": self.num_prompts,
            "num_handoff_bytes_written": self.num_bytes,
        }

    def collect(self, block_seconds: float) -> Outputs:
        """Write the blocks that the last step has computed; return outputs that say how many."""
        self._block_seconds = block_seconds
        outputs: Outputs = []
        for request_id in list(self._open):
            outputs += self.advance(request_id)
        return outputs

    def advance(self, request_id: str) -> Outputs:
        """Write the blocks of a request that are computed, as far as there is room for them."""
        export = self._open.get(request_id)
        if export is None:
            return []
        try:
            return [(request_id, output) for output in self._write(export)]
        except OSError as error:
            log.warning("blocks of a prompt cannot be written: %s", error)
            self.end(request_id)
            return [(request_id, ServingError(f"blocks cannot be written: {error}"))]
        finally:
            if export.is_sent:
                self.end(request_id)

    def finish(self, request_id: str) -> None:
        """Note that a prompt is computed; its blocks stay in the cache until they are written.

        Its state is copied, as running sequences may need the slot.
        """
        export = self._open.get(request_id)
        if export is None:
            return
        left = export.digests[export.num_written :]
        export.blocks = self._pool.find(left)
        self._pool.share(export.blocks)
        if self._stored is not None and len(export.blocks) == len(left):
            export.pieces = self._stored.snapshot(export.state)
        export.is_computed = True
        if export.is_written:
            export.writer.finish()

    def end(self, request_id: str) -> None:
        """Close the way of the blocks of a request that has ended; those not written are lost."""
        export = self._open.pop(request_id, None)
        if export is not None:
            export.writer.close()
            self._pool.free(export.blocks)

    def _write(self, export: _Export) -> Iterator[Any]:
        writer, first = export.writer, export.num_written
        writer.check()
        blocks = export.blocks
        if not export.is_computed:
            blocks = self._pool.find(export.digests[first:])
        room = writer.room
        is_end = export.is_computed and len(blocks) <= room
        pieces = export.pieces[: room - len(blocks)] if is_end else []
        blocks = blocks[:room]
        count = len(blocks) + len(pieces)
        if count:
            export.num_written += count
            self.num_bytes += count * self._runner.block_bytes
            seconds = time.perf_counter() - export.began
            written = BlocksWritten(
                export.num_written, export.num_cached, seconds, self._block_seconds
            )
            contents = chain(map(self._runner.read_block, blocks), pieces)
            yield from writer.write(first, contents, written)
        if export.is_computed and count:
            del export.blocks[: len(blocks)], export.pieces[: len(pieces)]
            self._pool.free(blocks)
            if export.is_written:
                writer.finish()
        if export.is_sent:
            yield BlocksSent()


def _stored_states(runner: StoringRunner, cache: SequenceCache) -> StoredStates | None:
    """Return the states of a runner that can be read, None if it has none."""
    states = cache.states
    if not isinstance(states, StatePool) or not getattr(runner, "state_bytes", 0):
        return None
    return StoredStates(cast(StatefulRunner, runner), states) if runner.block_bytes else None


def full_blocks(
    engine: Any,
    tokens: Sequence[int],
    salt: str,
    adapter: int = 0,
    images: PromptImages | None = None,
) -> list[bytes]:
    """Return the hashes of the full blocks of a prompt."""
    sequence = TokenSequence(
        list(tokens), len(tokens) + 1, (0, 0, 0), salt=salt, adapter=adapter, images=images,
        adapter_digest=engine.adapters.digests.get(adapter, b""),
    )  # fmt: skip
    engine.cache.prepare(sequence)
    return sequence.hash_blocks(len(tokens) // engine.block_size, engine.block_size)


def reusable_blocks(engine: Any, tokens: Sequence[int], salt: str, **options: Any) -> list[bytes]:
    """Return the hashes of the blocks of a prompt that may be computed without the rest of it.

    There are none if the keys of the whole prompt are rotated by another table.  `options` are
    those of `full_blocks`.
    """
    count = (len(tokens) - 1) // engine.block_size
    if images := options.get("images"):
        count = images.num_whole(count, engine.block_size)
    digests = full_blocks(engine, tokens[: count * engine.block_size], salt, **options)
    return digests if digests == full_blocks(engine, tokens, salt, **options)[:count] else []
