"""Loop of an engine that computes by itself: an event loop on a thread."""

import asyncio
from typing import Any

from mindspore_serving.llm.engines.base import Outputs, TaskEngine
from mindspore_serving.llm.serving.engine_loop import Command, Loop, LoopCallbacks


class TaskLoop(Loop[TaskEngine]):
    """Loop of an engine that is used on an event loop.

    The time between two outputs counts as a step: in the lane, a step that takes too long.
    """

    def __init__(self, engine: TaskEngine, callbacks: LoopCallbacks) -> None:
        super().__init__(engine, callbacks)
        engine.on_step = self.batch_sizes.observe
        self._events = asyncio.new_event_loop()
        self._outputs: list[tuple[str, Any]] = []  # still to be sent
        self._ended: asyncio.Future[None] = self._events.create_future()

    def post(self, request_id: str, command: Command) -> None:
        self._events.call_soon_threadsafe(self._execute, request_id, command)

    def _request_end(self) -> None:
        self._events.call_soon_threadsafe(self._end, None)

    def _loop(self) -> None:
        self._events.run_until_complete(self._engine.begin(self._deliver, self._end))
        self._begun.set_result(None)
        self._events.run_until_complete(self._ended)

    def _end(self, problem: BaseException | None) -> None:
        if self._ended.done():
            return
        if problem is None:
            self._ended.set_result(None)
        else:
            self._ended.set_exception(problem)

    def _execute(self, request_id: str, command: Command) -> None:
        was_idle = not self._engine.num_open
        super()._execute(request_id, command)
        if was_idle or not self._engine.num_open:
            self._follow(is_change=True)

    def _deliver(self, outputs: Outputs) -> None:
        """Send outputs at the end of the event loop's turn, those of several answers together."""
        if not self._outputs:
            self._events.call_soon(self._send)
        self._outputs += outputs

    def _send(self) -> None:
        outputs, self._outputs = self._outputs, []
        self._on_outputs(outputs)
        self._follow(is_change=not self._engine.num_open)

    def _follow(self, *, is_change: bool) -> None:
        """Record that the engine has begun, gone on or finished."""
        if self._lane is not None:
            self._lane.end()
            if self._engine.num_open:
                self._lane.begin()
        self._report(is_change=is_change)
