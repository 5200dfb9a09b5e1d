"""Cache blocks and states of a model over ranks: rank 0 gathers the parts of all ranks.

So a block or a state is stored as one array of bytes with the parts of all ranks, or not at all.  A
part goes through the shared memory of the ranks, in pieces; it comes back in a message.  A stage
may have layers of one kind only, and then no part of the other.  Knows no store.
"""

from collections.abc import Callable
from typing import cast

import numpy as np

from mindspore_serving.llm.parallel.links import PART_BYTES, Links
from mindspore_serving.llm.parallel.messages import (
    DescribeBlocks,
    FromStore,
    ReadPart,
    WritePart,
)
from mindspore_serving.llm.step import StatefulRunner, StoringRunner

REGION = 0  # of the memory; unused after loading


class RankBlocks:
    """Blocks and states of all ranks, for rank 0, of which `local` has the part.

    `send` sends a message to a rank, or to all with None; all steps must have ended.
    """

    def __init__(
        self,
        local: StoringRunner,
        links: Links,
        send: Callable[[FromStore, int | None], None],
    ) -> None:
        self._local, self._links, self._send = local, links, send
        self._num_exchanges = 0
        sizes, forms = [_sizes_of(local)], [local.block_format]
        for part in self._gather(DescribeBlocks(self._next())):
            block_bytes, state_bytes, form = bytes(part).decode().split(" ", 2)
            sizes.append((int(block_bytes), int(state_bytes)))
            forms.append(form)
        self._block_sizes = [block_bytes for block_bytes, _ in sizes]  # by rank
        self._state_sizes = [state_bytes for _, state_bytes in sizes]
        self.block_bytes, self.state_bytes = sum(self._block_sizes), sum(self._state_sizes)
        self.block_format = "\0".join(forms)

    def read(self, index: int, *, is_state: bool = False) -> memoryview:
        """Return a copy of the contents of a block or a state, the parts in the order of ranks."""
        parts = [np.empty(size, np.uint8) for size in self._sizes(is_state=is_state)]
        parts[0][:] = _read_part(self._local, index, is_state=is_state)
        for begin in range(0, max(map(len, parts[1:])), PART_BYTES):
            request = ReadPart(self._next(), index, begin, begin + PART_BYTES, is_state)
            for part, piece in zip(parts[1:], self._gather(request), strict=True):
                part[begin : begin + len(piece)] = piece
        return np.concatenate(parts).data

    def write(self, index: int, content: memoryview, *, is_state: bool = False) -> None:
        """Restore the contents of a block or a state."""
        begin, *sizes = self._sizes(is_state=is_state)
        _write_part(self._local, index, content[:begin], is_state=is_state)
        for rank, size in enumerate(sizes, 1):
            part = bytes(content[begin : begin + size])
            self._send(WritePart(rank, index, part, is_state), rank)
            begin += size

    def _sizes(self, *, is_state: bool) -> list[int]:
        return self._state_sizes if is_state else self._block_sizes

    def _next(self) -> int:
        self._num_exchanges += 1
        return self._num_exchanges

    def _gather(self, request: DescribeBlocks | ReadPart) -> list[memoryview]:
        """Return the answers of the other ranks; they are copies."""
        self._send(request, None)
        links, answers = self._links, []
        for rank in range(1, links.size):
            tag = links.receive(rank)
            links.compare(rank, tag, (links.step, REGION, request.number, tag[-1]))
            array = links.parts[REGION, request.number % 2, rank, : tag[-1]]
            answers.append(memoryview(array.tobytes()))
        return answers


def answer_request(runner: StoringRunner, links: Links, request: FromStore) -> None:
    """Do what rank 0 requests of another rank's `runner`."""
    if isinstance(request, WritePart):
        if request.rank == links.rank:
            content = memoryview(bytearray(request.content))
            _write_part(runner, request.index, content, is_state=request.is_state)
        return
    if isinstance(request, ReadPart):
        content = _read_part(runner, request.index, is_state=request.is_state)
        content = content[request.begin : request.end]
    else:
        sizes = " ".join(map(str, _sizes_of(runner)))
        content = memoryview(f"{sizes} {runner.block_format}".encode())
    part = links.parts[REGION, request.number % 2, links.rank]
    part[: len(content)] = np.frombuffer(content, np.uint8)
    links.notify(0, REGION, request.number, len(content))


def _sizes_of(runner: StoringRunner) -> tuple[int, int]:
    """Return the bytes of a rank's part of a block, and of a state."""
    return runner.block_bytes, getattr(runner, "state_bytes", 0)


def _read_part(runner: StoringRunner, index: int, *, is_state: bool) -> memoryview:
    if not _sizes_of(runner)[is_state]:
        return memoryview(b"")
    return cast(StatefulRunner, runner).read_state(index) if is_state else runner.read_block(index)


def _write_part(runner: StoringRunner, index: int, content: memoryview, *, is_state: bool) -> None:
    if not content:
        return
    if is_state:
        cast(StatefulRunner, runner).write_state(index, content)
    else:
        runner.write_block(index, content)
