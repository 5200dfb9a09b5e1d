"""Reads the messages of gRPC calls.  Knows no method.

grpcio hands out a message when all of it has come, and does not say how much has.  So a message
counts with its size from then on.  One that takes long to come counts as the largest, as it may be
nearly there, and gives way to others when there is no room.  What comes before that counts for
nothing: it is no more than the network carries in that time.
"""

import asyncio
from dataclasses import dataclass
from typing import Any, TypeAlias

import grpc.aio

from mindspore_serving.errors import DeadlineExceeded, InvalidInputs, Overloaded, ServingError
from mindspore_serving.frontends.memory import NO_MEMORY, MemoryPeer, Quota, peer_of

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
QUICK = 0.5  # seconds within which a message does not count until it is complete
_LOOK_SECONDS = 0.1  # between two looks at messages that come
_LATE = f"{NO_MEMORY}, and this one came slowly"


@dataclass(slots=True, eq=False)
class _Reading:
    """The message of a call that comes; `begin` is a time of `MessageReader`'s own clock."""

    task: "asyncio.Task[Any] | None"
    peer: MemoryPeer
    begin: float
    is_counted: bool = False  # as the largest
    error: ServingError | None = None  # why it was ended


class MessageReader:
    """Reads messages of at most `largest` bytes, each within `timeout` seconds."""

    def __init__(self, memory: Quota, largest: int, timeout: float, slow: float) -> None:
        """A message that has come for over `slow` seconds gives way to all others."""
        self._memory = memory
        self._largest = largest
        self._timeout = timeout
        self._slow = slow
        self._quick: dict[_Reading, None] = {}  # in the order in which they began, as the next
        self._counted: dict[_Reading, None] = {}
        # Seconds, as far as the event loop was there to read: if it was not, no client is to blame.
        self._clock = 0.0
        self._seen = 0.0  # when the clock was set, in the loop's time
        self._timer: asyncio.TimerHandle | None = None

    @property
    def num_counted(self) -> int:
        """Messages that count before they are complete."""
        return len(self._counted)

    async def read(self, context: Context) -> tuple[MemoryPeer, bytes]:
        """The message of a call, which counts as its peer's: `give_back` it.  Raises
        ServingError.
        """
        reading = self._begin(peer_of(context.peer()))
        try:
            body: Any = await context.read()
        except asyncio.CancelledError:
            if reading.error is None:
                raise
            raise reading.error from None
        finally:
            self._end(reading)
        if not isinstance(body, bytes):
            raise InvalidInputs("no request came")
        self.take(reading.peer, len(body))
        return reading.peer, body

    def take(self, peer: MemoryPeer, num_bytes: int) -> None:
        """Count a message of a peer that has come.  Raises Overloaded."""
        slow = self._slow if peer.address else 0.0  # nobody else could be meant
        if not self._make_room(peer, num_bytes, slow):
            raise Overloaded(NO_MEMORY)

    def give_back(self, peer: MemoryPeer, num_bytes: int) -> None:
        self._memory.give_back(peer, num_bytes)

    def end_all(self, error: ServingError) -> None:
        for reading in (*self._counted, *self._quick):
            self._cancel(reading, error)

    def _begin(self, peer: MemoryPeer) -> _Reading:
        loop = asyncio.get_running_loop()
        if self._timer is None:
            self._seen = loop.time()
            self._timer = loop.call_later(self._look_seconds, self._look, loop)
        reading = _Reading(asyncio.current_task(loop), peer, self._clock)
        self._quick[reading] = None
        return reading

    def _end(self, reading: _Reading) -> None:
        if reading.is_counted:
            self._uncount(reading)
        else:
            self._quick.pop(reading, None)

    def _uncount(self, reading: _Reading) -> None:
        del self._counted[reading]
        reading.is_counted = False
        self._memory.give_back(reading.peer, self._largest)

    @property
    def _look_seconds(self) -> float:
        return min(_LOOK_SECONDS, QUICK / 2, self._timeout / 2)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        """Count messages that are not quick any more, and end those that are late."""
        seconds, now = self._look_seconds, loop.time()
        self._clock += min(now - self._seen, 2 * seconds)
        self._seen = now
        for reading in _until(self._counted, self._clock - self._timeout):
            self._cancel(reading, DeadlineExceeded("the request came too slowly"))
        for reading in _until(self._quick, self._clock - min(QUICK, self._timeout)):
            self._count(reading)
        is_idle = not (self._quick or self._counted)
        self._timer = None if is_idle else loop.call_later(seconds, self._look, loop)

    def _count(self, reading: _Reading) -> None:
        del self._quick[reading]
        # Where clients cannot be told apart, one that has sent nothing is soon the one to go.
        slow = self._slow if reading.peer.address else min(self._slow, 4 * QUICK)
        if self._make_room(reading.peer, self._largest, slow):
            reading.is_counted = True
            self._counted[reading] = None
        else:
            self._cancel(reading, Overloaded(_LATE))

    def _make_room(self, peer: MemoryPeer, num_bytes: int, slow: float) -> bool:
        """Whether `peer` has got so many bytes, for which messages that come may have to end."""
        while not self._memory.take(peer, num_bytes):
            slowest = self._find_slowest(peer, num_bytes, slow)
            if slowest is None:
                return False
            self._cancel(slowest, Overloaded(_LATE))
        return True

    def _find_slowest(self, peer: MemoryPeer, num_bytes: int, slow: float) -> _Reading | None:
        """The message that has come for longest of the peer that has most, if that is more than
        `peer` would have; else that of all, if it has come for `slow` seconds.
        """
        if not self._counted:
            return None
        of_address, of_connection = self._memory.of(peer)
        most = max(self._counted, key=lambda one: self._memory.of(one.peer))
        address, connection = self._memory.of(most.peer)
        if most.peer.address != peer.address and address > of_address + num_bytes:
            return most
        if most.peer.address == peer.address and connection > of_connection + num_bytes:
            return most
        oldest = next(iter(self._counted))
        return oldest if self._clock - oldest.begin >= slow else None

    def _cancel(self, reading: _Reading, error: ServingError) -> None:
        if reading.is_counted:
            self._uncount(reading)
        if reading.task is not None and reading.error is None:
            reading.error = error
            reading.task.cancel()


def _until(readings: dict[_Reading, None], begin: float) -> list[_Reading]:
    """Those that began by then."""
    found = []
    for reading in readings:
        if reading.begin > begin:
            break
        found.append(reading)
    return found
