"""Memory that is lent: its owner is called back when no view of it is left."""

import weakref
from collections.abc import Callable

import numpy as np


def address_of(memory: "bytes | bytearray | memoryview") -> int:
    """Return the address of the first byte."""
    address: int = np.frombuffer(memory, np.uint8).__array_interface__["data"][0]
    return address


def lend(memory: memoryview, on_returned: Callable[[], None]) -> memoryview:
    """Return a view of `memory`, writable if that is.

    `on_returned` is called once, when neither the view nor a slice or array of it is left: on the
    thread that drops the last of them, at any point of its code.
    """
    holder = np.frombuffer(memory, np.uint8)
    weakref.finalize(holder, on_returned).atexit = False
    return memoryview(holder)  # type: ignore[arg-type]  # an array is a buffer
