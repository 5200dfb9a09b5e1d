"""Cache blocks of a model over ranks, as one array of bytes: rank 0 gathers the parts of all ranks.

So a block is stored with the parts of all ranks, or not at all.  A part goes through the shared
memory of the ranks, in pieces; it comes back in a message.  Knows no store.
"""

from collections.abc import Callable

import numpy as np

from mindspore_serving.llm.parallel.links import PART_BYTES, Links
from mindspore_serving.llm.parallel.messages import (
    DescribeBlocks,
    FromStore,
    ReadBlock,
    WriteBlock,
)
from mindspore_serving.llm.step import StoringRunner

REGION = 0  # of the memory; unused after loading


class RankBlocks:
    """Blocks of all ranks, for rank 0, of which `local` has the part.

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
        self._sizes = [local.block_bytes]  # of the parts, by rank
        forms = [local.block_format]
        for part in self._gather(DescribeBlocks(self._next())):
            size, _, form = bytes(part).decode().partition(" ")
            self._sizes.append(int(size))
            forms.append(form)
        self.block_bytes = sum(self._sizes)
        self.block_format = "\0".join(forms)

    def read(self, block: int) -> memoryview:
        """Return a copy of the contents of a block, the parts in the order of ranks."""
        parts = [np.empty(size, np.uint8) for size in self._sizes]
        parts[0][:] = self._local.read_block(block)
        for begin in range(0, max(self._sizes[1:]), PART_BYTES):
            pieces = self._gather(ReadBlock(self._next(), block, begin, begin + PART_BYTES))
            for part, piece in zip(parts[1:], pieces, strict=True):
                part[begin : begin + len(piece)] = piece
        return np.concatenate(parts).data

    def write(self, block: int, content: memoryview) -> None:
        """Restore the contents of a block."""
        self._local.write_block(block, content[: self._sizes[0]])
        begin = self._sizes[0]
        for rank, size in enumerate(self._sizes[1:], 1):
            self._send(WriteBlock(rank, block, bytes(content[begin : begin + size])), rank)
            begin += size

    def _next(self) -> int:
        self._num_exchanges += 1
        return self._num_exchanges

    def _gather(self, request: DescribeBlocks | ReadBlock) -> list[memoryview]:
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
    if isinstance(request, WriteBlock):
        if request.rank == links.rank:
            runner.write_block(request.block, memoryview(bytearray(request.content)))
        return
    if isinstance(request, ReadBlock):
        content = runner.read_block(request.block)[request.begin : request.end]
    else:
        content = memoryview(f"{runner.block_bytes} {runner.block_format}".encode())
    part = links.parts[REGION, request.number % 2, links.rank]
    part[: len(content)] = np.frombuffer(content, np.uint8)
    links.notify(0, REGION, request.number, len(content))
