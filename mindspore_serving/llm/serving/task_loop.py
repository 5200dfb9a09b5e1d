"""The event loop of an engine that computes by itself, on a thread: commands in, outputs out.

Does for a `TaskEngine` what `EngineLoop` does for one that is stepped.
"""

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from mindspore_serving import log
from mindspore_serving.errors import ServingError
from mindspore_serving.llm.engines.base import Outputs, TaskEngine
from mindspore_serving.llm.serving.engine_loop import STATS_SECONDS, StepLane
from mindspore_serving.metrics.histogram import SIZES, Histogram


class TaskLoop:
    """Owns `engine`.  Arguments as those of `EngineLoop`.

    What the engine does between two outputs counts as a step: in `lane`, one that runs too long.
    """

    def __init__(
        self,
        engine: TaskEngine,
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
        engine.on_step = self.batch_sizes.observe
        self._loop = asyncio.new_event_loop()
        self._outputs: list[tuple[str, Any]] = []  # that are still to be sent
        self._begun: Future[None] = Future()
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._reported = 0.0
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def start(self) -> None:
        """Raises what the engine raises if it cannot begin."""
        self._thread.start()
        self._begun.result()

    def post(self, request_id: str, command: Callable[[Any], Outputs | None]) -> None:
        """As `EngineLoop.post`."""
        self._loop.call_soon_threadsafe(self._execute, request_id, command)

    def close(self) -> None:
        """End the engine and the thread; waits for both."""
        self._loop.call_soon_threadsafe(self._end, None)
        self._thread.join()

    def _run(self) -> None:
        problem: BaseException | None = None
        try:
            self._loop.run_until_complete(self._engine.begin(self._deliver, self._end))
            self._begun.set_result(None)
            self._loop.run_until_complete(self._ended)
        except BaseException as error:
            problem = error
            if self._begun.done():
                log.error("the engine has failed: %s", error)
            else:
                self._begun.set_exception(error)
        try:
            self._engine.close()
        finally:
            self._on_end(problem)

    def _end(self, problem: BaseException | None) -> None:
        if self._ended.done():
            return
        if problem is None:
            self._ended.set_result(None)
        else:
            self._ended.set_exception(problem)

    def _execute(self, request_id: str, command: Callable[[Any], Outputs | None]) -> None:
        was_idle = not self._engine.num_open
        try:
            outputs = command(self._engine)
        except ServingError as error:
            outputs = [(request_id, error)]
        if outputs:
            self._on_outputs(outputs)
        if was_idle or not self._engine.num_open:
            self._follow(is_change=True)

    def _deliver(self, outputs: Outputs) -> None:
        """What several answers get in one turn of the event loop leaves together."""
        if not self._outputs:
            self._loop.call_soon(self._send)
        self._outputs += outputs

    def _send(self) -> None:
        outputs, self._outputs = self._outputs, []
        self._on_outputs(outputs)
        self._follow(is_change=not self._engine.num_open)

    def _follow(self, *, is_change: bool) -> None:
        """The engine has begun, gone on or finished."""
        if self._lane is not None:
            self._lane.end()
            if self._engine.num_open:
                self._lane.begin()
        now = time.monotonic()
        if is_change or now - self._reported >= STATS_SECONDS:
            self._reported = now
            self._on_stats(self._engine.stats())
