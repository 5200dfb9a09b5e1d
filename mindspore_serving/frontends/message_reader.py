"""Reads the messages of gRPC calls, as many at once as there is memory for.  Knows no method.

While a message is read, gRPC does not say how large it will be: so each counts as the largest.
"""

import asyncio
from collections import deque
from typing import Any, TypeAlias

import grpc.aio

from mindspore_serving.errors import DeadlineExceeded, InvalidInputs, Overloaded, ServingError
from mindspore_serving.frontends.memory import NO_MEMORY, BodyMemory

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
_PATIENCE = 1.0  # seconds that a call waits for room


class _Reading:
    """A message that comes now."""

    __slots__ = ("begin", "error", "task")

    def __init__(self, task: "asyncio.Task[Any] | None", begin: float) -> None:
        assert task is not None
        self.task = task
        self.begin = begin
        self.error: ServingError | None = None

    def end(self, error: ServingError) -> None:
        if self.error is None:
            self.error = error
            self.task.cancel()


class MessageReader:
    """Reads messages of at most `largest` bytes, each within `timeout` seconds.

    Who finds no room waits a little; one that has been read for over `slow` seconds then ends.
    """

    def __init__(self, memory: BodyMemory, largest: int, timeout: float, slow: float) -> None:
        self._memory = memory
        self._largest = largest
        self._timeout = timeout
        self._slow = slow
        self._readings: dict[_Reading, None] = {}  # in the order of their begin
        self._timer: asyncio.TimerHandle | None = None  # one for all
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def read(self, context: Context) -> bytes:
        """The message of a call, which counts as held: `give_back` it.  Raises ServingError."""
        loop = asyncio.get_running_loop()
        if self._waiting or not self._memory.take(self._largest):
            await self._wait_for_room(loop)
        num_held = 0
        reading = _Reading(asyncio.current_task(loop), loop.time())
        self._readings[reading] = None
        if self._timer is None:
            self._timer = loop.call_later(self._timeout, self._end_late, loop)
        try:
            body: Any = await context.read()
            if not isinstance(body, bytes):
                raise InvalidInputs("no request came")
            num_held = len(body)
        except asyncio.CancelledError:
            if reading.error is None:
                raise
            raise reading.error from None
        finally:
            del self._readings[reading]
            self.give_back(self._largest - num_held)
        return body

    def give_back(self, num_bytes: int) -> None:
        self._memory.give_back(num_bytes)
        while self._waiting and self._memory.take(self._largest):
            self._waiting.popleft().set_result(None)

    def end_all(self, error: ServingError) -> None:
        for reading in self._readings:
            reading.end(error)

    def _end_late(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        for reading in self._readings:
            left = reading.begin + self._timeout - loop.time()
            if left > 0:
                self._timer = loop.call_later(left, self._end_late, loop)
                return
            reading.end(DeadlineExceeded("the request came too slowly"))

    async def _wait_for_room(self, loop: asyncio.AbstractEventLoop) -> None:
        """Raises Overloaded."""
        turn = loop.create_future()
        self._waiting.append(turn)
        oldest = next(iter(self._readings), None)
        if oldest is not None and loop.time() - oldest.begin >= self._slow:
            oldest.end(Overloaded(f"{NO_MEMORY}, and this one came slowly"))
        try:
            await asyncio.wait([turn], timeout=_PATIENCE)
        except asyncio.CancelledError:
            if turn.done():
                self.give_back(self._largest)
            raise
        finally:
            if not turn.done():
                self._waiting.remove(turn)
        if not turn.done():
            raise Overloaded(NO_MEMORY)
