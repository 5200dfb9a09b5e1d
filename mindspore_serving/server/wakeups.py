"""Signals that another thread than the main one took: the main thread is woken for them.

Python runs handlers in its main thread.  The kernel gives a signal to any thread that does not
block it; then a main thread that waits for others to end learns nothing of it, until the next one.
Knows nothing of what signals mean.
"""

import os
import signal
import threading
from collections.abc import Callable


class Wakeups:
    """Calls `on_signal` with the number of each signal that has a handler in Python, in a thread
    of its own, whether the handler has run or not.  In the main thread alone.
    """

    def __init__(self, on_signal: Callable[[int], None]) -> None:
        self._on_signal = on_signal
        self._read = self._write = -1
        os.register_at_fork(after_in_child=self._forget)

    def start(self) -> None:
        """Does nothing where something else, such as an event loop, is woken by signals."""
        if self._write != -1:
            return
        read, write = os.pipe()
        os.set_blocking(write, False)
        others = signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        if others != -1:
            signal.set_wakeup_fd(others)
            os.close(read)
            os.close(write)
            return
        self._read, self._write = read, write
        threading.Thread(target=self._report, args=(read,), name="signals", daemon=True).start()

    def stop(self) -> None:
        if self._write == -1:
            return
        current = signal.set_wakeup_fd(-1)
        if current != self._write:
            signal.set_wakeup_fd(current)
        os.close(self._write)
        self._write = -1

    def _report(self, read: int) -> None:
        while number := os.read(read, 1):
            self._on_signal(number[0])
        os.close(read)

    def _forget(self) -> None:
        """In a forked process, whose signals are not for this thread."""
        if self._write != -1:
            self.stop()
            os.close(self._read)
