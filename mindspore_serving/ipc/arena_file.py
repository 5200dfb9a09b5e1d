"""Files of arenas: shared memory without a name; knows nothing of what is in them."""

import os

ARENA_SIZE = 1 << 31  # bytes of address space, not of memory


def create() -> int:
    """Create the file of an arena and return its descriptor."""
    fd = os.memfd_create("serving", os.MFD_CLOEXEC)
    os.ftruncate(fd, ARENA_SIZE)
    return fd
