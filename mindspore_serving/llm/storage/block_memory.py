"""Memory in which a worker gets the blocks of a prompt from another process.

The reader makes it, of a fixed size, and reads; a writer of this machine opens it by a path below
/proc, for one of another machine a connection writes.  It has no name in a file system: it is freed
when both have closed it, or have ended.
"""

import mmap
import os
import sys
from collections.abc import Iterable
from fcntl import F_ADD_SEALS, F_SEAL_GROW, F_SEAL_SEAL, F_SEAL_SHRINK, fcntl
from secrets import token_hex
from typing import Protocol

from mindspore_serving.core.prefill_messages import BlocksWritten


class BlockWriter(Protocol):
    """Way of blocks to the worker that has asked for them; for the engine's thread."""

    @property
    def room(self) -> int:
        """Number of blocks that may be written now."""
        ...

    @property
    def is_done(self) -> bool:
        """True if all that was written has arrived, after `finish`."""
        ...

    def write(
        self, first: int, blocks: Iterable[memoryview], written: BlocksWritten
    ) -> list[BlocksWritten]:
        """Write blocks, the first of which has the index `first`.

        Returns what the worker is to be told by a reply: `written`, unless this tells it.  Raises
        OSError, at once or with a later call.
        """
        ...

    def check(self) -> None:
        """Raise OSError if writing has failed."""
        ...

    def finish(self) -> None:
        """End writing: no blocks will follow."""
        ...

    def close(self) -> None:
        """Drop what has not been written, and close."""
        ...


class BlockMemory:
    """Memory for `num_blocks` of `block_bytes`; also a `BlockWriter`, of this machine.

    Raises OSError if it cannot be made, read or written.
    """

    room = sys.maxsize
    is_done = True

    def __init__(self, number: int, name: str, block_bytes: int, num_blocks: int = 0) -> None:
        self._number, self.name = number, name
        self.block_bytes, self.num_blocks = block_bytes, num_blocks
        self._view: memoryview | None = None  # if a connection writes

    @classmethod
    def create(cls, num_blocks: int, block_bytes: int) -> "BlockMemory":
        """Make memory for `num_blocks`; a page takes memory once it is written."""
        name = f"blocks-{token_hex(16)}"
        number = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        memory = cls(number, name, block_bytes, num_blocks)
        try:
            os.ftruncate(number, num_blocks * block_bytes)
            fcntl(number, F_ADD_SEALS, F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL)
        except BaseException:
            memory.close()
            raise
        return memory

    @classmethod
    def open(cls, path: str, name: str, block_bytes: int) -> "BlockMemory":
        """Open memory of another process for writing.

        Its number there may be that of another file by now, so the `name` is compared.
        """
        _check(path, name)  # before a file is opened: to open some has an effect
        memory = cls(os.open(path, os.O_RDWR | os.O_CLOEXEC), name, block_bytes)
        try:
            _check(memory.path, name)
        except BaseException:
            memory.close()
            raise
        return memory

    @property
    def path(self) -> str:
        """Path by which another process opens the memory."""
        return f"/proc/{os.getpid()}/fd/{self._number}"

    def view(self) -> memoryview:
        """Return the memory, for a connection to write to.  Raises ValueError if it is closed."""
        view, number = self._view, self._number
        if view is None:
            if number < 0:  # which `mmap` would take for new memory
                raise ValueError("the memory is closed")
            view = self._view = memoryview(mmap.mmap(number, self.num_blocks * self.block_bytes))
        return view

    def write(
        self, first: int, blocks: Iterable[memoryview], written: BlocksWritten
    ) -> list[BlocksWritten]:
        for index, block in enumerate(blocks, first):
            if os.pwrite(self._number, block, index * self.block_bytes) != self.block_bytes:
                raise OSError("a block was written in part")
        return [written]

    def check(self) -> None: ...

    def read(self, index: int) -> memoryview:
        """Return block `index`: a copy, unless only this process can write to it."""
        if self._view is not None:
            return self._view[index * self.block_bytes : (index + 1) * self.block_bytes]
        block = bytearray(self.block_bytes)
        if os.preadv(self._number, [block], index * self.block_bytes) != self.block_bytes:
            raise OSError("a block was read in part")
        return memoryview(block)

    def finish(self) -> None:
        self.close()

    def close(self) -> None:
        """Close the memory, which this process needs no longer."""
        number, self._number, self._view = self._number, -1, None
        if number >= 0:
            os.close(number)


def _check(path: str, name: str) -> None:
    target = os.readlink(path)
    if target != f"/memfd:{name} (deleted)":
        raise OSError(f"{path} is {target!r:.100}, expected the memory {name}")
