"""A thread that opens a second runner while the first computes, at low priority, and measures both.

The plugin's threads, which later compute steps, are made before the priority is lowered: a thread
inherits it, and most users may not raise it again.
"""

import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TypeVar
from weakref import finalize

from mindspore_serving import log
from mindspore_serving.errors import ServingError
from mindspore_serving.llm.runtimes.combined.choice import Choice
from mindspore_serving.llm.runtimes.pages import trim
from mindspore_serving.llm.step import EmbeddingRunner

DELAY = 1.0  # seconds before it begins, so that the first answer does not wait for it
NICENESS = 10  # added to that of the process

Check = Callable[[], None]


T = TypeVar("T")


class _Closed(Exception):
    """The runner is closed meanwhile."""


class Packing:
    """Opening of a runner in the background.

    Args:
        name: of the model, for the log.
        prepare: starts the library and its threads.
        opens: opens the runner; calls its argument between parts of that, which may raise.
        measures: measures the runner and decides which steps it computes.

    `is_done` is True once nothing is computed here any more; then `choice` is the decision, or None
    after a failure.  `decision` says the same to people.
    """

    def __init__(
        self, name: str, prepare: Callable[[], None], opens: Callable[[Check], EmbeddingRunner],
        measures: Callable[[EmbeddingRunner, Check], Choice],
    ) -> None:  # fmt: skip
        self.runner: EmbeddingRunner | None = None
        self.choice: Choice | None = None
        self.is_done = False
        self.decision = "native computes all steps, until openvino is packed and both are measured"
        self._calls: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._name, self._prepare = name, prepare
        self._opens, self._measures = opens, measures
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="packing", daemon=True)
        self._thread.start()
        finalize(self, _end, self._closing, self._thread)  # also when the process ends

    def call_when_done(self, call: Callable[[], None]) -> None:
        """Call `call` when `is_done`: on the thread of this object, or at once."""
        self._calls.put(call)
        if self.is_done:
            self._call_all()

    def _call_all(self) -> None:
        with suppress(Empty):
            while True:
                self._calls.get_nowait()()

    def close(self) -> None:
        """End the thread, after the part of the opening that it is in, and close the runner."""
        _end(self._closing, self._thread)
        if self.runner is not None:
            self.runner.close()
        self.runner = self.choice = None

    def _run(self) -> None:
        began, spent = time.perf_counter(), time.process_time()
        try:
            if self._closing.wait(DELAY):
                return
            self._prepare()
            self.runner = _at_low_priority(lambda: self._opens(self._check))
            log.info(
                "openvino has packed %s: %.1f s, %.1f of processor time with the steps meanwhile",
                self._name, time.perf_counter() - began - DELAY, time.process_time() - spent,
            )  # fmt: skip
            self.choice = self._measures(self.runner, self._check)
            self.decision = self.choice.describe()
            log.info("%s: %s", self._name, self.decision)
        except _Closed:
            return
        except Exception as error:  # whatever it is, the first runner goes on
            if not isinstance(error, ServingError | ImportError | MemoryError):
                log.error("packing has failed", exc_info=True)
            self.decision = f"native computes all steps, as openvino has failed: {error}"
            log.warning("%s: %s", self._name, self.decision)
        finally:
            self.is_done = True
            self._call_all()
            trim()

    def _check(self) -> None:
        if self._closing.is_set():
            raise _Closed


def _end(closing: threading.Event, thread: threading.Thread) -> None:
    closing.set()
    thread.join()


def _at_low_priority(call: Callable[[], T]) -> T:
    """Call `call` on a thread of low priority; return what it returns, or raise what it raises."""
    niceness = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
    result: Future[T] = Future()

    def run() -> None:
        try:
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), niceness + NICENESS)
            result.set_result(call())
        except BaseException as error:  # raised where it is waited for
            result.set_exception(error)

    before = set(_threads())
    thread = threading.Thread(target=run, name="packing at low priority", daemon=True)
    thread.start()
    thread.join()
    _raise_priority([each for each in _threads() if each not in before], niceness)
    return result.result()


def _threads() -> list[int]:
    return [int(task.name) for task in Path("/proc/self/task").iterdir()]


def _raise_priority(threads: list[int], niceness: int) -> None:
    """Give the threads that the library has made meanwhile, if any, the priority of the others."""
    kept = 0
    for thread in threads:
        try:
            os.setpriority(os.PRIO_PROCESS, thread, niceness)
        except ProcessLookupError:
            continue
        except PermissionError:
            kept += 1
    if kept:
        log.info("%d threads of openvino stay at low priority: this user may not raise it", kept)
