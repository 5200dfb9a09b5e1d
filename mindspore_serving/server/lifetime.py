"""How long the process lives: a thread keeps it alive while servables run, signals end it.

Knows nothing of serving: it is given the function that shuts down.
"""

import os
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

from mindspore_serving import log
from mindspore_serving.log.settings import NAMES
from mindspore_serving.server.wakeups import Wakeups

WAKE = 0.2  # seconds from one attempt to wake the main thread to the next
REPEAT = 1.0  # seconds in which a signal that comes twice, to us and to our group, counts once
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_LEVEL_SIGNALS = {signal.SIGUSR1: -1, signal.SIGUSR2: 1}  # more in the log, and less


class Lifetime:
    """Between `begin` and `over` the process stays alive, also when the user's script has ended.

    SIGINT and SIGTERM shut down in the background; then the process exits with status 0, or raises
    KeyboardInterrupt in a script that still runs.  A second signal ends it at once.  SIGUSR1 and
    SIGUSR2 change the log level.
    """

    def __init__(self, shut_down: Callable[[], None]) -> None:
        self._shut_down = shut_down
        self._ended = threading.Event()  # somebody wants the end
        self._over = threading.Event()  # it is done
        self._has_ended_script = threading.Event()  # its signal has been heard
        self._restoring = threading.RLock()  # no signal is sent while others get their handlers
        self._thread: threading.Thread | None = None
        self._signal = 0
        self._signalled_at = 0.0
        self._previous: dict[int, Any] = {}
        self._wakeups = Wakeups(self._on_wakeup)
        self._came_at = 0.0  # the first signal, to `_on_wakeup`
        self._num_repeated = 0  # signals of our own that are still to come

    def begin(self) -> None:
        """From here on the process stays alive and handles signals."""
        if self._thread is not None:
            return
        self._ended.clear()
        self._over.clear()
        self._has_ended_script.clear()
        self._signal, self._came_at, self._num_repeated = 0, 0.0, 0
        self._install()
        self._thread = threading.Thread(target=self._wait, name="serving-lifetime")
        self._thread.start()

    def end(self) -> None:
        """Shut down in the background, from any thread."""
        self._ended.set()

    def over(self) -> None:
        """Everything is shut down: the process may end."""
        self._over.set()
        self._ended.set()
        thread, self._thread = self._thread, None
        if thread is not None and thread is not threading.current_thread():
            thread.join(5)
        if not self._signal:
            self._restore()

    def _wait(self) -> None:
        self._ended.wait()
        if not self._over.is_set():
            self._shut_down()
            if self._signal:
                self._end_script()

    def _end_script(self) -> None:
        """Send the signal to the main thread until its handler runs: one that comes between
        Python's look for signals and the system call that waits does not end the wait.
        """
        main = threading.main_thread()
        while main.is_alive():
            with self._restoring:
                if self._has_ended_script.is_set():
                    return
                signal.pthread_kill(main.ident or 0, self._signal)
            self._has_ended_script.wait(WAKE)

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        if self._over.is_set():  # the second round, raised by `_end_script` in the user's script
            with self._restoring:
                self._has_ended_script.set()
                self._restore()
            if number == signal.SIGINT:
                raise KeyboardInterrupt
            raise SystemExit(0)
        now = time.monotonic()
        if self._signal and now - self._signalled_at > REPEAT:
            os._exit(128 + number)
        if not self._signal:
            self._signal, self._signalled_at = number, now
        self._ended.set()

    def _on_wakeup(self, number: int) -> None:
        """In a thread, for each signal, also if another thread than the main one took it: then
        `_on_signal` does not run before the main one is woken.
        """
        if signal.getsignal(number) != self._on_signal or self._over.is_set():
            return
        if self._num_repeated:
            self._num_repeated -= 1
            return
        now = time.monotonic()
        if now - (self._came_at or now) > REPEAT:
            os._exit(128 + number)
        self._came_at = self._came_at or now
        while not self._ended.wait(WAKE):
            self._num_repeated += 1
            signal.pthread_kill(threading.main_thread().ident or 0, number)

    def _install(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return  # only the main thread may; an embedding program has its own way to end
        reactions = dict.fromkeys(_SIGNALS, self._on_signal)
        reactions |= dict.fromkeys(_LEVEL_SIGNALS, _on_level_signal)
        for number, react in reactions.items():
            current = signal.getsignal(number)
            if current in (signal.SIG_DFL, signal.default_int_handler):
                self._previous[number] = current
                signal.signal(number, react)
        self._wakeups.start()

    def _restore(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        self._wakeups.stop()
        while self._previous:
            signal.signal(*self._previous.popitem())


def _on_level_signal(number: int, _: FrameType | None) -> None:
    """What was interrupted may be writing to the log: the line is written by another thread."""
    threading.Thread(target=_change_level, args=(_LEVEL_SIGNALS[signal.Signals(number)],)).start()


def _change_level(step: int) -> None:
    names = {level: name for name, level in NAMES.items()}
    level = str(min(max(int(log.get_level()) + step, 0), len(names) - 1))
    if step < 0:  # who asks for more is to see the line, and who asks for less, too
        log.set_level(level)
    log.warning("a signal changed the log level to %s", names[level])
    log.set_level(level)
