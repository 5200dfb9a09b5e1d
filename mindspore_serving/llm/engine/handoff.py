"""Blocks of prompts that move between the caches of two workers, as an engine's thread sees it.

    worker that computes prompts:  Exports   a step has computed blocks: they are written
    worker that decodes:           Imports   between steps, blocks are copied to the cache; then the
                                             request is added, and finds them like any cached ones

Memory of the same machine is written at once; a connection to another one has limited room, so that
blocks stay in the cache until they can be sent.  Nothing depends on a block that moved: one that is
missing is computed.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from mindspore_serving import log
from mindspore_serving.core.llm_messages import BlocksWritten
from mindspore_serving.errors import ServingError
from mindspore_serving.llm.engine.blocks import BlockPool
from mindspore_serving.llm.engine.handoff_choice import HandoffCosts
from mindspore_serving.llm.engine.sequence import Sequence as TokenSequence
from mindspore_serving.llm.step import StoringRunner
from mindspore_serving.llm.storage.block_memory import BlockMemory, BlockWriter

IMPORT_AHEAD = 8 << 20  # bytes that are copied into the cache between two steps, or one block

Outputs = list[tuple[str, Any]]


@dataclass(slots=True, eq=False)
class MovingBlocks:
    """Blocks of a prompt that another worker computes: their hashes, and the memory for them."""

    digests: list[bytes]
    memory: BlockMemory
    num_imported: int = 0
    blocks: list[int] = field(default_factory=list)  # in use until the request is added


class Imports:
    """Blocks on their way into the cache of `runner`, whose blocks `pool` allocates."""

    def __init__(self, runner: StoringRunner, pool: BlockPool) -> None:
        self.costs = HandoffCosts()
        self.num_prompts = self.num_failed = self.num_tokens = self.num_bytes = 0
        self.num_local = 0  # prompts that this worker has computed
        self.microseconds = 0  # that prompts have waited for their blocks
        self._runner, self._pool = runner, pool
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

    def arrived(self, moving: MovingBlocks, count: int) -> None:
        """Note that the first `count` blocks of `moving` are in its memory."""
        self._queue.append((moving, min(count, len(moving.digests))))

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
        try:
            for index in range(begin, end):
                digest = moving.digests[index]
                if pool.find([digest]):  # another prompt has computed it
                    continue
                if pool.num_free <= self.spare:
                    moving.num_imported = len(moving.digests)
                    return 0
                content = moving.memory.read(index)
                block = pool.allocate()
                self._runner.write_block(block, content)
                pool.register(block, digest)
                moving.blocks.append(block)
                self.num_tokens += self._runner.block_size
                self.num_bytes += len(content)
        except OSError as error:
            log.warning("blocks of a prompt cannot be read: %s", error)
            moving.num_imported = len(moving.digests)
            return 0
        moving.num_imported = end
        if end > begin:
            self.costs.observe(copy=(time.perf_counter() - began) / (end - begin))
        return end - begin


@dataclass(frozen=True, slots=True)
class BlocksSent:
    """Output: the blocks of a prompt that has been computed are where they were to go."""


@dataclass(slots=True)
class _Export:
    digests: Sequence[bytes]
    writer: BlockWriter
    num_cached: int
    began: float
    num_written: int = 0
    is_computed: bool = False
    blocks: list[int] = field(default_factory=list)  # in use until they are written

    @property
    def is_sent(self) -> bool:
        return self.is_computed and not self.blocks and self.writer.is_done


class Exports:
    """Prompts that are computed for other workers, and the ways that their blocks go."""

    def __init__(self, runner: StoringRunner, pool: BlockPool) -> None:
        self.num_prompts = self.num_bytes = 0
        self._runner, self._pool = runner, pool
        self._block_seconds = 0.0
        self._open: dict[str, _Export] = {}

    def begin(self, request_id: str, digests: Sequence[bytes], writer: BlockWriter) -> None:
        """Write the blocks `digests` as they are computed, until `finish` or `end`."""
        self.num_prompts += 1
        num_cached = len(self._pool.find(digests))
        self._open[request_id] = _Export(digests, writer, num_cached, time.perf_counter())

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
        """Note that a prompt is computed; its blocks stay in the cache until they are written."""
        export = self._open.get(request_id)
        if export is None:
            return
        export.blocks = self._pool.find(export.digests[export.num_written :])
        self._pool.share(export.blocks)
        export.is_computed = True
        if not export.blocks:
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
        blocks = blocks[: writer.room]
        if blocks:
            export.num_written += len(blocks)
            self.num_bytes += len(blocks) * self._runner.block_bytes
            seconds = time.perf_counter() - export.began
            written = BlocksWritten(
                export.num_written, export.num_cached, seconds, self._block_seconds
            )
            yield from writer.write(first, map(self._runner.read_block, blocks), written)
        if export.is_computed and blocks:
            del export.blocks[: len(blocks)]
            self._pool.free(blocks)
            if not export.blocks:
                writer.finish()
        if export.is_sent:
            yield BlocksSent()


def full_blocks(engine: Any, tokens: Sequence[int], salt: str, adapter: int = 0) -> list[bytes]:
    """Return the hashes of the full blocks of a prompt."""
    sequence = TokenSequence(
        list(tokens), len(tokens) + 1, (0, 0, 0), salt=salt, adapter=adapter,
        adapter_digest=engine.adapters.digests.get(adapter, b""),
    )  # fmt: skip
    engine.cache.prepare(sequence)
    return sequence.hash_blocks(len(tokens) // engine.block_size, engine.block_size)


def reusable_blocks(engine: Any, tokens: Sequence[int], salt: str, adapter: int = 0) -> list[bytes]:
    """Return the hashes of the blocks of a prompt that may be computed without the rest of it.

    There are none if the keys of the whole prompt are rotated by another table.
    """
    count = (len(tokens) - 1) // engine.block_size
    digests = full_blocks(engine, tokens[: count * engine.block_size], salt, adapter)
    return digests if digests == full_blocks(engine, tokens, salt, adapter)[:count] else []
