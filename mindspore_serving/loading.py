"""Progress of loading a servable in this process, reported by the loading code.

The share is of steps, not of time; a text says what is being done, where that takes minutes.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

_readers: list[Callable[[float, str], None]] = []


def reached(share: float, doing: str = "") -> None:
    """Report that a `share` of the work is done, from 0 to 1, and what is being done."""
    for read in _readers:
        read(share, doing)


@contextmanager
def reported_to(read: Callable[[float, str], None]) -> Iterator[None]:
    """Call `read` with what the block reports, on the thread that reaches them."""
    _readers.append(read)
    try:
        yield
    finally:
        _readers.remove(read)
