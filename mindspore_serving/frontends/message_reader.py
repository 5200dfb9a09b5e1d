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


class MessageReader:
    """Reads messages of at most `largest` bytes, each within `timeout` seconds.

    Who finds no room waits a little; one that has been read for over `slow` seconds then ends.
    """

    def __init__(self, memory: BodyMemory, largest: int, timeout: float, slow: float) -> None:
        self._memory = memory
        self._largest = largest
        self._timeout = timeout
        self._slow = slow
        self._begins: dict[asyncio.Task[Any] | None, float] = {}  # of what is read, in their order
        self._ended: dict[asyncio.Task[Any] | None, ServingError] = {}  # of these, and why
        self._timer: asyncio.TimerHandle | None = None  # one for all
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def read(self, context: Context) -> bytes:
        """The message of a call, which counts as held: `give_back` it.  Raises ServingError."""
        loop = asyncio.get_running_loop()
        if self._waiting or not self._memory.take(self._largest):
            await self._wait_for_room(loop)
        num_held, task = 0, asyncio.current_task(loop)
        self._begins[task] = loop.time()
        if self._timer is None:
            self._timer = loop.call_later(self._timeout, self._end_late, loop)
        try:
            body: Any = await context.read()
            if not isinstance(body, bytes):
                raise InvalidInputs("no request came")
            num_held = len(body)
        except asyncio.CancelledError:
            if task not in self._ended:
                raise
            raise self._ended[task] from None
        finally:
            del self._begins[task]
            if self._ended:
                self._ended.pop(task, None)
            self.give_back(self._largest - num_held)
        return body

    def give_back(self, num_bytes: int) -> None:
        self._memory.give_back(num_bytes)
        while self._waiting and self._memory.take(self._largest):
            self._waiting.popleft().set_result(None)

    def end_all(self, error: ServingError) -> None:
        for task in self._begins:
            self._end(task, error)

    def _end(self, task: "asyncio.Task[Any] | None", error: ServingError) -> None:
        if task is not None and task not in self._ended:
            self._ended[task] = error
            task.cancel()

    def _end_late(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        for task, begin in self._begins.items():
            left = begin + self._timeout - loop.time()
            if left > 0:
                self._timer = loop.call_later(left, self._end_late, loop)
                return
            self._end(task, DeadlineExceeded("the request came too slowly"))

    async def _wait_for_room(self, loop: asyncio.AbstractEventLoop) -> None:
        """Raises Overloaded."""
        turn = loop.create_future()
        self._waiting.append(turn)
        for task, begin in self._begins.items():  # the oldest
            if loop.time() - begin >= self._slow:
                self._end(task, Overloaded(f"{NO_MEMORY}, and this one came slowly"))
            break
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
