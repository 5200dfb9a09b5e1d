"""How much of its servable this process has loaded, as those report who load it.  Knows no reader.

The share is of steps, not of time: it shows that something goes on.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

_readers: list[Callable[[float], None]] = []


def reached(share: float) -> None:
    """`share` of the work is done, from 0 to 1."""
    for read in _readers:
        read(share)


@contextmanager
def reported_to(read: Callable[[float], None]) -> Iterator[None]:
    """`read` gets the shares that are reached inside, on the thread that reaches them."""
    _readers.append(read)
    try:
        yield
    finally:
        _readers.remove(read)
