"""Clients that ask one server for more than it can answer, at little cost to the cores they share.

Each has a connection of its own while it asks, and keeps it for the next question.  Knows no
servable; what was answered is counted by second.
"""

import asyncio
import random
import re
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field

SWEEP = 0.02  # seconds between two looks for clients whose patience is over
LEFT = 0  # in place of a status: the client has left, or lost its connection
REFUSED = (429, 503, 529)
_LENGTH = re.compile(rb"\r\ncontent-length: (\d+)\r\n", re.IGNORECASE)


@dataclass(slots=True)
class Outcomes:
    """What became of the requests of a phase, which began at `began`."""

    began: float = field(default_factory=time.perf_counter)
    statuses: Counter[int] = field(default_factory=Counter)
    answered: Counter[int] = field(default_factory=Counter)  # by second of the phase
    refused: list[tuple[float, float]] = field(default_factory=list)  # when it came, seconds
    num_without_retry_after: int = 0

    def add(self, status: int, head: bytes, came: float) -> None:
        now = time.perf_counter()
        self.statuses[status] += 1
        if status == 200:
            self.answered[int(now - self.began)] += 1
        elif status in REFUSED:
            self.refused.append((came - self.began, now - came))
            self.num_without_retry_after += b"\r\nretry-after:" not in head.lower()

    def rate(self, first: int, end: int) -> float:
        """Answers per second from one second of the phase to another."""
        return sum(self.answered[second] for second in range(first, end)) / (end - first)

    def refused_ms(self, share: float) -> float:
        """So many of the refused have waited at most so long."""
        seconds = sorted(took for _, took in self.refused) or [0.0]
        return 1000 * seconds[int((len(seconds) - 1) * share)]


class Connection(asyncio.Protocol):
    """One connection: a request at a time."""

    transport: asyncio.Transport

    def __init__(self, clients: "Clients") -> None:
        self._clients = clients
        self._received = b""
        self._size = 0  # of the whole answer, 0 before its head has come
        self.came = 0.0
        self.is_waiting = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.transport = transport

    def ask(self, request: bytes, came: float) -> None:
        self.came, self.is_waiting = came, True
        self._received, self._size = b"", 0
        self.transport.write(request)

    def data_received(self, data: bytes) -> None:
        self._received += data
        if not self._size:
            end = self._received.find(b"\r\n\r\n")
            found = _LENGTH.search(self._received, 0, end + 2) if end > 0 else None
            if found is None:
                return
            self._size = end + 4 + int(found[1])
        if len(self._received) >= self._size and self.is_waiting:
            self.end(int(self._received[9:12]))

    def end(self, status: int) -> None:
        self.is_waiting = False
        self._clients.ended(self, status, self._received)

    def connection_lost(self, error: Exception | None) -> None:
        if self.is_waiting:
            self.end(LEFT)


class Clients:
    """All that ask at a time.  They leave `patience` seconds after they came."""

    def __init__(self, port: int, request: bytes, patience: float) -> None:
        self.outcomes = Outcomes()
        self._port = port
        self._request = request
        self._patience = patience
        self._idle: list[Connection] = []
        self._asking: deque[tuple[float, Connection]] = deque()
        self._next: Callable[[], None] | None = None  # what a client does that has its answer
        self._num_opening = 0

    def ask(self) -> None:
        """One more client, on a connection that is free or a new one."""
        came = time.perf_counter()
        while self._idle:
            connection = self._idle.pop()
            if not connection.transport.is_closing():
                self._send(connection, came)
                return
        self._num_opening += 1
        asyncio.ensure_future(self._open(came))

    async def _open(self, came: float) -> None:
        loop = asyncio.get_running_loop()
        try:
            made = await loop.create_connection(lambda: Connection(self), "127.0.0.1", self._port)
        except OSError:
            self.outcomes.add(LEFT, b"", came)
            if self._next is not None:
                loop.call_later(SWEEP, self._next)
            return
        finally:
            self._num_opening -= 1
        self._send(made[1], came)

    def _send(self, connection: Connection, came: float) -> None:
        connection.ask(self._request, came)
        self._asking.append((came, connection))

    def ended(self, connection: Connection, status: int, answer: bytes) -> None:
        """A client has its answer, or has left."""
        is_kept = status != LEFT and b"\r\nconnection: close\r\n" not in answer[:600].lower()
        if is_kept:
            self._idle.append(connection)
        else:
            connection.transport.abort()
        self.outcomes.add(status, answer[:600], connection.came)
        if self._next is not None:
            self._next()

    async def pause(self) -> None:
        """Wait a moment, after which those have left whose patience is over."""
        await asyncio.sleep(SWEEP)
        self._sweep(time.perf_counter())

    def _sweep(self, now: float) -> None:
        """Let those leave whose patience is over."""
        asking = self._asking
        while asking and (now - asking[0][0] > self._patience or not asking[0][1].is_waiting):
            came, connection = asking.popleft()
            if connection.is_waiting and connection.came == came:
                connection.end(LEFT)

    async def closed_loop(self, count: int, seconds: float) -> Outcomes:
        """`count` clients, each of which asks again at once, whatever the answer."""
        self.outcomes = Outcomes()
        end, self._next = self.outcomes.began + seconds, self.ask
        for _ in range(count):
            self.ask()
        while (now := time.perf_counter()) < end:
            self._sweep(now)
            await asyncio.sleep(SWEEP)
        return await self._finish()

    async def open_loop(self, rate: float, seconds: float) -> Outcomes:
        """So many new clients per second (Poisson), whoever is still being answered."""
        self.outcomes = Outcomes()
        draw, due = random.Random(1), self.outcomes.began
        while (now := time.perf_counter()) < self.outcomes.began + seconds:
            while due <= now:
                self.ask()
                due += draw.expovariate(rate)
            self._sweep(now)
            await asyncio.sleep(min(SWEEP, max(0.001, due - now)))
        return await self._finish()

    async def _finish(self) -> Outcomes:
        """What has come of it so far; who still waits leaves, and is not counted."""
        outcomes, self.outcomes, self._next = self.outcomes, Outcomes(), None
        while self._num_opening:
            await asyncio.sleep(SWEEP)
        for _, connection in self._asking:
            if connection.is_waiting:
                connection.end(LEFT)
        self._asking.clear()
        for connection in self._idle:
            connection.transport.abort()
        self._idle.clear()
        return outcomes
