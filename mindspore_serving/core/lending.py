"""Memory that is lent: its owner hears when nobody has it any more.  Knows no owner."""

import weakref
from collections.abc import Callable

import numpy as np


def address_of(memory: "bytes | bytearray | memoryview") -> int:
    """Where it begins."""
    found: int = np.frombuffer(memory, np.uint8).__array_interface__["data"][0]
    return found


def lend(memory: memoryview, on_returned: Callable[[], None]) -> memoryview:
    """`memory`, writable if that is.  `on_returned` is called once, when neither it nor a view of
    it (a slice, an array) is left: on whatever thread lets go of the last, amid anything else.
    """
    holder = np.frombuffer(memory, np.uint8)
    weakref.finalize(holder, on_returned).atexit = False
    return memoryview(holder)  # type: ignore[arg-type]  # an array is a buffer
