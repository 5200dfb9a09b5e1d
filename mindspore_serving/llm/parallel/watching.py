"""A thread for calls that never return once another rank has ended, as collectives of a library.

The caller waits beside it, watches the ranks, and abandons the call if one is lost.  Knows no
runtime.
"""

import atexit
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from queue import SimpleQueue
from typing import Any, TypeVar

from mindspore_serving.llm.parallel.links import Links
from mindspore_serving.llm.step import RunnerLost

WATCH_SECONDS = 0.25  # between two checks of the ranks
ABANDONED_SECONDS = 60.0  # that the end of the process waits for an abandoned call
T = TypeVar("T")


class WatchedThread:
    """Thread that makes the calls of one rank, in order; `links` tell which ranks live."""

    def __init__(self, links: Links) -> None:
        self._links = links
        self.is_abandoned = False  # in a call that may never return
        self._calls: SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="rank", daemon=True)
        self._thread.start()

    def call(self, function: Callable[[], T]) -> T:
        """Return what `function` returns or raises.

        Raises RunnerLost if a rank is lost before it returns; the thread may then never end.
        """
        if threading.current_thread() is self._thread:
            return function()
        future: Future[T] = Future()
        self._calls.put((function, future))
        try:
            while not wait([future], WATCH_SECONDS).done:
                self._links.check()
        except RunnerLost:
            self.is_abandoned = True
            # A thread that returns from a library while Python ends would abort the process.
            atexit.register(self._thread.join, ABANDONED_SECONDS)
            self.close()
            raise
        return future.result()

    def close(self) -> None:
        """End the thread after its calls."""
        self._calls.put(None)

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            function, future = call
            try:
                future.set_result(function())
            except BaseException as error:
                future.set_exception(error)
