"""Calls on a thread with a large stack, for a compiler that recurses natively.

On a usual stack of 8 MiB, a chain of 900 `$ref` or 3,000 rules, within the limit of a grammar's
size, would end the process.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

_STACK_BYTES = 128 << 20  # of address space; only what is used becomes memory
_lock = threading.Lock()

T = TypeVar("T")


def call_with_deep_stack(function: Callable[[], T]) -> T:
    """Return what `function` returns, or raise what it raises, on a thread of its own."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(function())
        except BaseException as error:
            future.set_exception(error)

    with _lock:  # the size is that of all threads that start meanwhile
        before = threading.stack_size(_STACK_BYTES)
        try:
            threading.Thread(target=run, name="grammar", daemon=True).start()
        finally:
            threading.stack_size(before)
    return future.result()
