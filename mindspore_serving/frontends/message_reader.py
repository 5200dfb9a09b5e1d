"""Reading of the only message of a gRPC call, in time and within a memory quota.  Knows no method.

A message counts here once it is complete; while it arrives, its call counts the bytes of it.
"""

import asyncio
from dataclasses import dataclass
from typing import Any, TypeAlias

import grpc.aio

from mindspore_serving.errors import DeadlineExceeded, InvalidInputs, Overloaded, ServingError
from mindspore_serving.frontends.memory import NO_MEMORY, MemoryPeer, Quota, peer_of

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
_CHECK_SECONDS = 0.5  # between two checks of incomplete messages, or less


@dataclass(slots=True, eq=False)
class _Reading:
    """The incomplete message of a call; `begin` is a time of the clock of `MessageReader`."""

    task: "asyncio.Task[Any] | None"
    begin: float
    error: ServingError | None = None  # why it was cancelled


class MessageReader:
    """Reader of messages, each within `timeout` seconds."""

    def __init__(self, memory: Quota, timeout: float) -> None:
        self._memory = memory
        self._timeout = timeout
        self._readings: dict[_Reading, None] = {}  # ordered by begin
        # Seconds in which the event loop could read: clients are not blamed for a busy loop.
        self._clock = 0.0
        self._updated = 0.0  # when the clock was set, in the loop's time
        self._timer: asyncio.TimerHandle | None = None

    async def read(self, context: Context) -> tuple[MemoryPeer, bytes]:
        """Read the message of a call; it counts for the returned peer until `give_back`.

        Raises ServingError.
        """
        reading = self._begin()
        try:
            body: Any = await context.read()
        except asyncio.CancelledError:
            if reading.error is None:
                raise
            raise reading.error from None
        finally:
            del self._readings[reading]
        if not isinstance(body, bytes):
            raise InvalidInputs("the call has no request message")
        peer = peer_of(context.peer())
        self.take(peer, len(body))
        return peer, body

    def take(self, peer: MemoryPeer, num_bytes: int) -> None:
        """Count a complete message of a peer.  Raises Overloaded."""
        if not self._memory.take(peer, num_bytes):
            raise Overloaded(NO_MEMORY)

    def give_back(self, peer: MemoryPeer, num_bytes: int) -> None:
        self._memory.give_back(peer, num_bytes)

    def end_all(self, error: ServingError) -> None:
        """End the calls whose messages are incomplete."""
        for reading in self._readings:
            _cancel(reading, error)

    def _begin(self) -> _Reading:
        loop = asyncio.get_running_loop()
        if self._timer is None:
            self._updated = loop.time()
            self._timer = loop.call_later(self._check_seconds, self._check, loop)
        reading = _Reading(asyncio.current_task(loop), self._clock)
        self._readings[reading] = None
        return reading

    @property
    def _check_seconds(self) -> float:
        return min(_CHECK_SECONDS, self._timeout / 2)

    def _check(self, loop: asyncio.AbstractEventLoop) -> None:
        """End calls whose messages have timed out."""
        seconds, now = self._check_seconds, loop.time()
        self._clock += min(now - self._updated, 2 * seconds)
        self._updated = now
        for reading in self._readings:
            if reading.begin > self._clock - self._timeout:
                break
            _cancel(reading, DeadlineExceeded("the request arrived too slowly"))
        is_idle = not self._readings
        self._timer = None if is_idle else loop.call_later(seconds, self._check, loop)


def _cancel(reading: _Reading, error: ServingError) -> None:
    if reading.task is not None and reading.error is None:
        reading.error = error
        reading.task.cancel()
