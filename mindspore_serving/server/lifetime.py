"""Lifetime of the process: a thread keeps it alive while servables run, and signals end it.

Does not know servers: it gets a function that shuts down.
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

WAKE = 0.2  # seconds between attempts to wake the main thread
REPEAT = 1.0  # seconds: a signal that is sent to us and to our group arrives twice but counts once
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_LEVEL_SIGNALS = {signal.SIGUSR1: -1, signal.SIGUSR2: 1}  # changes of the log level


class Lifetime:
    """The lifetime of this process from `begin` to `over`, also after the user's script has ended.

    SIGINT and SIGTERM shut down in the background; then the process exits with status 0, or raises
    KeyboardInterrupt in a script that still runs.  A second signal kills it at once.  SIGUSR1 and
    SIGUSR2 change the log level.

        begin -> running -(signal or `end`)-> shutting down -(`over`)-> over
                                                   |                      |
                                          second signal: _exit   signal to a running script
    """

    def __init__(self, shut_down: Callable[[], None]) -> None:
        """Create the lifetime; `shut_down` has to call `over` at its end."""
        self._shut_down = shut_down
        self._ended = threading.Event()  # shutdown was requested
        self._over = threading.Event()  # shutdown is complete
        self._has_ended_script = threading.Event()  # the handler of the last signal has run
        self._restoring = threading.RLock()  # held while handlers are restored: send no signal
        self._thread: threading.Thread | None = None
        self._signal = 0
        self._signalled_at = 0.0
        self._previous: dict[int, Any] = {}
        self._wakeups = Wakeups(self._on_wakeup)
        self._came_at = 0.0  # time of the first signal in `_on_wakeup`
        self._num_repeated = 0  # signals that we sent ourselves and that have not arrived yet

    def begin(self) -> None:
        """Keep the process alive and handle signals from now on."""
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
        """Shut down in the background; from any thread."""
        self._ended.set()

    def over(self) -> None:
        """Let the process exit, as everything is shut down."""
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
        """Send the signal to the main thread until its handler runs.

        A signal that arrives between Python's check for signals and a blocking system call does not
        interrupt the call, so it has to be repeated.
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
        """Handle a signal on the thread of `Wakeups`.

        If the kernel delivered the signal to another thread than the main one, `_on_signal` does
        not run before the main thread is woken: send the signal to it until it does.
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
            return  # Python allows it in the main thread only; an embedding program ends itself
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
    """Change the log level on another thread: the interrupted code may hold the log's lock."""
    threading.Thread(target=_change_level, args=(_LEVEL_SIGNALS[signal.Signals(number)],)).start()


def _change_level(step: int) -> None:
    names = {level: name for name, level in NAMES.items()}
    level = str(min(max(int(log.get_level()) + step, 0), len(names) - 1))
    if step < 0:  # log the line at the more verbose of both levels
        log.set_level(level)
    log.warning("a signal changed the log level to %s", names[level])
    log.set_level(level)
