"""Reading of the messages of gRPC calls, within a memory quota.  Knows no method.

grpcio returns a message when it is complete, and does not tell how much of it was received.  So a
message counts with its size once it is complete.  One that is not complete after QUICK seconds
counts as the largest message, as it may be nearly complete, and is cancelled in favour of others
when there is no room:

    started --QUICK s--> counted as largest --complete--> counted with its size --> given back
       `--- complete: counted with its size ------------------^

Before that it does not count: it has no more than the network carries in QUICK seconds.
"""

import asyncio
from dataclasses import dataclass
from typing import Any, TypeAlias

import grpc.aio

from mindspore_serving.errors import DeadlineExceeded, InvalidInputs, Overloaded, ServingError
from mindspore_serving.frontends.memory import NO_MEMORY, MemoryPeer, Quota, peer_of

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
QUICK = 0.5  # seconds after which an incomplete message counts
_CHECK_SECONDS = 0.1  # between two checks of incomplete messages
_LATE = f"{NO_MEMORY}, and this one arrived slowly"


@dataclass(slots=True, eq=False)
class _Reading:
    """The incomplete message of a call; `begin` is a time of the clock of `MessageReader`."""

    task: "asyncio.Task[Any] | None"
    peer: MemoryPeer
    begin: float
    is_counted: bool = False  # as a message of the largest size
    error: ServingError | None = None  # why it was cancelled


class MessageReader:
    """Reader of messages of at most `largest` bytes, each within `timeout` seconds."""

    def __init__(self, memory: Quota, largest: int, timeout: float, slow: float) -> None:
        """Read within `memory`; after `slow` seconds a message loses its memory to any other."""
        self._memory = memory
        self._largest = largest
        self._timeout = timeout
        self._slow = slow
        self._quick: dict[_Reading, None] = {}  # ordered by begin, as `_counted`
        self._counted: dict[_Reading, None] = {}
        # Seconds in which the event loop could read: clients are not blamed for a busy loop.
        self._clock = 0.0
        self._updated = 0.0  # when the clock was set, in the loop's time
        self._timer: asyncio.TimerHandle | None = None

    @property
    def num_counted(self) -> int:
        """Number of incomplete messages that count."""
        return len(self._counted)

    async def read(self, context: Context) -> tuple[MemoryPeer, bytes]:
        """Read the message of a call; it counts for the returned peer until `give_back`.

        Raises ServingError.
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
            raise InvalidInputs("the call has no request message")
        self.take(reading.peer, len(body))
        return reading.peer, body

    def take(self, peer: MemoryPeer, num_bytes: int) -> None:
        """Count a complete message of a peer.  Raises Overloaded."""
        slow = self._slow if peer.address else 0.0  # clients cannot be told apart
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
            self._updated = loop.time()
            self._timer = loop.call_later(self._check_seconds, self._check, loop)
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
    def _check_seconds(self) -> float:
        return min(_CHECK_SECONDS, QUICK / 2, self._timeout / 2)

    def _check(self, loop: asyncio.AbstractEventLoop) -> None:
        """Count messages that have become slow, and cancel those that have timed out."""
        seconds, now = self._check_seconds, loop.time()
        self._clock += min(now - self._updated, 2 * seconds)
        self._updated = now
        for reading in _until(self._counted, self._clock - self._timeout):
            self._cancel(reading, DeadlineExceeded("the request arrived too slowly"))
        for reading in _until(self._quick, self._clock - min(QUICK, self._timeout)):
            self._count(reading)
        is_idle = not (self._quick or self._counted)
        self._timer = None if is_idle else loop.call_later(seconds, self._check, loop)

    def _count(self, reading: _Reading) -> None:
        del self._quick[reading]
        # If clients cannot be told apart, one that sends nothing is cancelled sooner.
        slow = self._slow if reading.peer.address else min(self._slow, 4 * QUICK)
        if self._make_room(reading.peer, self._largest, slow):
            reading.is_counted = True
            self._counted[reading] = None
        else:
            self._cancel(reading, Overloaded(_LATE))

    def _make_room(self, peer: MemoryPeer, num_bytes: int, slow: float) -> bool:
        """Take memory for `peer`, cancelling slow messages if need be; return whether it worked."""
        while not self._memory.take(peer, num_bytes):
            slowest = self._find_slowest(peer, num_bytes, slow)
            if slowest is None:
                return False
            self._cancel(slowest, Overloaded(_LATE))
        return True

    def _find_slowest(self, peer: MemoryPeer, num_bytes: int, slow: float) -> _Reading | None:
        """Return the incomplete message to cancel in favour of `peer`, if any.

        It is the oldest of the peer that uses the most memory, if that is more than `peer` would
        use; else the oldest of all, if it began `slow` seconds ago.
        """
        if not self._counted:
            return None
        of_address, of_connection = self._memory.used_by(peer)
        largest = max(self._counted, key=lambda reading: self._memory.used_by(reading.peer))
        address, connection = self._memory.used_by(largest.peer)
        if largest.peer.address != peer.address and address > of_address + num_bytes:
            return largest
        if largest.peer.address == peer.address and connection > of_connection + num_bytes:
            return largest
        oldest = next(iter(self._counted))
        return oldest if self._clock - oldest.begin >= slow else None

    def _cancel(self, reading: _Reading, error: ServingError) -> None:
        if reading.is_counted:
            self._uncount(reading)
        if reading.task is not None and reading.error is None:
            reading.error = error
            reading.task.cancel()


def _until(readings: dict[_Reading, None], begin: float) -> list[_Reading]:
    """Return the messages that began at `begin` or before."""
    until = []
    for reading in readings:
        if reading.begin > begin:
            break
        until.append(reading)
    return until
