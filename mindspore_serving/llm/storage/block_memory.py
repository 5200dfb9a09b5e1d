"""Memory in which a worker gets the blocks of a prompt from another process of this machine.

The reader makes it, of a fixed size, and reads; the writer opens it by a path below /proc.  It has
no name in a file system: it is freed when both have closed it, or have ended.
"""

import os
from fcntl import F_ADD_SEALS, F_SEAL_GROW, F_SEAL_SEAL, F_SEAL_SHRINK, fcntl
from secrets import token_hex


class BlockMemory:
    """Memory for blocks of `block_bytes`.  Raises OSError if it cannot be made, read or written."""

    def __init__(self, number: int, name: str, block_bytes: int) -> None:
        self._number, self.name, self._block_bytes = number, name, block_bytes

    @classmethod
    def create(cls, num_blocks: int, block_bytes: int) -> "BlockMemory":
        """Make memory for `num_blocks`; a page takes memory once it is written."""
        name = f"blocks-{token_hex(16)}"
        number = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        memory = cls(number, name, block_bytes)
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

    def write(self, index: int, block: memoryview) -> None:
        """Write block `index`."""
        if os.pwrite(self._number, block, index * self._block_bytes) != self._block_bytes:
            raise OSError("a block was written in part")

    def read(self, index: int) -> memoryview:
        """Return a copy of block `index`."""
        block = bytearray(self._block_bytes)
        if os.preadv(self._number, [block], index * self._block_bytes) != self._block_bytes:
            raise OSError("a block was read in part")
        return memoryview(block)

    def close(self) -> None:
        """Close the memory, which this process needs no longer."""
        number, self._number = self._number, -1
        if number >= 0:
            os.close(number)


def _check(path: str, name: str) -> None:
    target = os.readlink(path)
    if target != f"/memfd:{name} (deleted)":
        raise OSError(f"{path} is {target!r:.100}, expected the memory {name}")
