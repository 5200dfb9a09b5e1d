"""Progress of loading a servable in this process, reported by the loading code.

The share is of steps, not of time.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

_readers: list[Callable[[float], None]] = []


def reached(share: float) -> None:
    """Report that a `share` of the work is done, from 0 to 1."""
    for read in _readers:
        read(share)


@contextmanager
def reported_to(read: Callable[[float], None]) -> Iterator[None]:
    """Call `read` with the shares that the block reaches, on the thread that reaches them."""
    _readers.append(read)
    try:
        yield
    finally:
        _readers.remove(read)
