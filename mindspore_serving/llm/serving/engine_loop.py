"""The step loop: an engine alone on its thread.  Commands go in from any thread, outputs come out.

Everything else (templates, tokenizing, grammars, JSON) happens on other threads, most of it while
the runner computes and has let go of the interpreter's lock.
"""

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, Generic, Protocol, TypeVar

from mindspore_serving import log
from mindspore_serving.errors import ServingError
from mindspore_serving.llm.engine.stats import FirstStep
from mindspore_serving.metrics.histogram import SIZES, Histogram

STATS_SECONDS = 0.25  # between two reports of numbers while there is work


class Steps(Protocol):
    """What can be looped: `llm.engine.engine.Engine`, `llm.engine.encoder.EncoderEngine`.

    `started` are the requests of which the last step was the first; `on_compute` is called with
    those that a step is about to compute.
    """

    started: list[str]
    on_compute: Callable[[list[str]], None] | None

    @property
    def has_work(self) -> bool: ...

    def step(self) -> Sequence[tuple[str, Any]]: ...

    def stats(self) -> Any: ...

    def rest(self) -> float | None:
        """While there is no work: do a little of what can wait.  In how many seconds there is more
        of it; None if there is none."""
        ...

    def close(self) -> None: ...


class StepLane(Protocol):
    """Where it is written that a step runs, since when, and for which requests."""

    def begin(self) -> None:
        """A step begins, for any."""

    def narrow(self, request_ids: list[str]) -> None:
        """It computes these."""

    def end(self) -> None: ...


E = TypeVar("E", bound=Steps)
T = TypeVar("T")
Outputs = Sequence[tuple[str, Any]]


class EngineLoop(Generic[E]):
    """Owns `engine`: nobody else may touch it once `start` was called.

    Args:
        engine: what steps.
        on_outputs: called on the loop's thread with what a step added, by request, and with the
            error of a command that raised; it must return at once.
        on_stats: called on that thread with the engine's numbers: when there is work again, from
            time to time, and when there is nothing left to do.
        on_end: called on that thread when it ends; with the error if it broke.
        lane: where it is written that a step runs.
    """

    def __init__(
        self,
        engine: E,
        on_outputs: Callable[[Outputs], None],
        on_stats: Callable[[Any], None],
        on_end: Callable[[BaseException | None], None],
        lane: StepLane | None = None,
    ) -> None:
        self._engine = engine
        self._on_outputs = on_outputs
        self._on_stats = on_stats
        self._on_end = on_end
        self._lane = lane
        self.batch_sizes = Histogram(SIZES)  # sequences in each step
        engine.on_compute = self._on_compute
        self._commands: SimpleQueue[tuple[str, Callable[[E], Outputs | None]] | None] = (
            SimpleQueue()
        )
        self._is_closing = False
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def post(self, request_id: str, command: Callable[[E], Outputs | None]) -> None:
        """Have `command` called with the engine before its next step.  What it returns are
        outputs; a ServingError that it raises is the output of `request_id`."""
        self._commands.put((request_id, command))

    def close(self) -> None:
        """End the thread after the step it is in, and the engine with it; waits for both."""
        self._commands.put(None)
        self._thread.join()

    def _run(self) -> None:
        problem: BaseException | None = None
        try:
            self._loop()
        except BaseException as error:
            problem = error
            log.error("the step loop broke", exc_info=True)
        try:
            self._engine.close()
        finally:
            self._on_end(problem)

    def _loop(self) -> None:
        reported = 0.0
        while not self._is_closing:
            was_idle = not self._engine.has_work
            self._drain_commands(wait=was_idle)
            if self._is_closing:
                return
            began = time.monotonic()
            if self._lane is not None:
                self._lane.begin()
            outputs = self._engine.step()
            if self._lane is not None:
                self._lane.end()
            if self._engine.started:
                first = [(request_id, FirstStep(began)) for request_id in self._engine.started]
                outputs = [*first, *outputs]
            if outputs:
                self._on_outputs(outputs)
            now = time.monotonic()
            if was_idle or now - reported >= STATS_SECONDS or not self._engine.has_work:
                reported = now
                self._on_stats(self._engine.stats())

    def _on_compute(self, request_ids: list[str]) -> None:
        self.batch_sizes.observe(len(request_ids))
        if self._lane is not None:
            self._lane.narrow(request_ids)

    def _drain_commands(self, *, wait: bool) -> None:
        """Execute the commands that have come; with `wait`, wait for the first."""
        try:
            entry = self._wait() if wait else self._commands.get_nowait()
            while True:
                if entry is None:
                    self._is_closing = True
                    return
                self._execute(*entry)
                entry = self._commands.get_nowait()
        except Empty:
            return

    def _wait(self) -> tuple[str, Callable[[E], Outputs | None]] | None:
        """The next command; until there is one, the engine does what can wait."""
        did_something = False
        while (seconds := self._engine.rest()) is not None:
            did_something = True
            with suppress(Empty):
                return self._commands.get(timeout=seconds)
        if did_something:
            self._on_stats(self._engine.stats())
        return self._commands.get()

    def _execute(self, request_id: str, command: Callable[[E], Outputs | None]) -> None:
        try:
            outputs = command(self._engine)
        except ServingError as error:
            outputs = [(request_id, error)]
        if outputs:
            self._on_outputs(outputs)


def ask(loop: Any, command: Callable[[Any], T]) -> Future[T]:
    """What `command` returns or raises, called with the engine of a loop before its next step."""
    answer: Future[T] = Future()

    def run(engine: Any) -> None:
        try:
            answer.set_result(command(engine))
        except Exception as error:  # raised where it is waited for
            answer.set_exception(error)

    loop.post("", run)
    return answer
