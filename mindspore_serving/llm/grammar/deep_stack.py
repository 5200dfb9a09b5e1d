"""Calls on a thread with a large stack, for a compiler that recurses natively.

On a usual stack of 8 MiB, a chain of 900 `$ref` or 3,000 rules, within the limit of a grammar's
size, would end the process.
"""

import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, TypeAlias, TypeVar

_STACK_BYTES = 128 << 20  # of address space; only what is used becomes memory

T = TypeVar("T")
_Calls: TypeAlias = "SimpleQueue[tuple[Callable[[], Any], Future[Any]]]"


class _DeepThread:
    """A thread of a process, which begins with the first call and ends with the process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process = 0
        self._calls: _Calls = SimpleQueue()

    def call(self, function: Callable[[], T]) -> T:
        """Run `function` on the thread."""
        future: Future[T] = Future()
        with self._lock:
            if self._process != os.getpid():  # a fork has no thread of its parent
                self._process, self._calls = os.getpid(), SimpleQueue()
                self._start()
        self._calls.put((function, future))
        return future.result()

    def _start(self) -> None:
        before = threading.stack_size(_STACK_BYTES)  # of all threads that start meanwhile
        try:
            threading.Thread(target=_work, args=(self._calls,), name="grammar", daemon=True).start()
        finally:
            threading.stack_size(before)


def _work(calls: _Calls) -> None:
    while True:
        function, future = calls.get()
        try:
            future.set_result(function())
        except BaseException as error:
            future.set_exception(error)
        del function, future  # and what they refer to, until the next call


_thread, _slow_thread = _DeepThread(), _DeepThread()


def call_with_deep_stack(function: Callable[[], T], *, is_slow: bool = False) -> T:
    """Return what `function` returns, or raise what it raises, on a thread of the process.

    Calls that are slow have a thread of their own, so that others do not wait for them.
    """
    return (_slow_thread if is_slow else _thread).call(function)
