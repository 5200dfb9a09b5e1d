"""Notification of signals that the kernel delivered to another thread than the main one.

Python runs handlers in its main thread, but the kernel delivers a signal to any thread that does
not block it.  A main thread that waits for other threads then does not notice the signal until the
next one.  Does not know the meaning of signals.
"""

import os
import signal
import threading
from collections.abc import Callable


class Wakeups:
    """A thread that calls `on_signal` for each signal that has a handler in Python.

    It is called whether the handler has run or not.  Create and use it in the main thread only.
    """

    def __init__(self, on_signal: Callable[[int], None]) -> None:
        self._on_signal = on_signal
        self._read = self._write = -1
        os.register_at_fork(after_in_child=self._forget)

    def start(self) -> None:
        """Start the thread, unless signals already wake other code, such as an event loop."""
        if self._write != -1:
            return
        read, write = os.pipe()
        os.set_blocking(write, False)
        previous = signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        if previous != -1:
            signal.set_wakeup_fd(previous)
            os.close(read)
            os.close(write)
            return
        self._read, self._write = read, write
        threading.Thread(target=self._report, args=(read,), name="signals", daemon=True).start()

    def stop(self) -> None:
        """Stop the thread."""
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
        """Stop in a forked process, which has no such thread."""
        if self._write != -1:
            self.stop()
            os.close(self._read)
