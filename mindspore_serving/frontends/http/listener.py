"""Accepting of connections on a listening socket, within limits.

Knows no HTTP but the answer to a connection over the limit.
"""

import asyncio
import socket
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass

from mindspore_serving import log
from mindspore_serving.core.server_limits import ServerLimits
from mindspore_serving.frontends.address import connection_limits
from mindspore_serving.tls import Certificates

_MAX_ACCEPTED = 64  # connections accepted before the event loop does other work
_PAUSE = 0.2  # seconds without accepting after an error, such as too many open files
_FULL = (
    b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\ncontent-length: 0\r\n"
    b"connection: close\r\n\r\n"
)

Connect = Callable[[Callable[[], None]], asyncio.BaseProtocol]
TakeOver = Callable[[socket.socket, Callable[[], None]], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Connecting:
    """Attaches accepted sockets to protocols.

    `connect` makes the protocol of a connection; the protocol calls its argument when the
    connection ends.  `head_timeout` is in seconds.
    """

    connect: Connect
    tls: Certificates | None
    head_timeout: float

    async def take_over(self, connection: socket.socket, on_closed: Callable[[], None]) -> None:
        """Serve a connection, and call `on_closed` when it ends."""
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: self.connect(on_closed),
                connection,
                ssl=self.tls.context if self.tls else None,
                ssl_handshake_timeout=self.head_timeout if self.tls else None,
            )
        except (OSError, asyncio.TimeoutError, asyncio.CancelledError):
            on_closed()  # the connection was lost, or the TLS handshake failed
            connection.close()


class Listener:
    """Accepts connections on the socket `listener` and hands them to `take_over`.

    `take_over` calls its second argument when the connection ends.
    """

    def __init__(
        self,
        listener: socket.socket,
        limits: ServerLimits,
        take_over: TakeOver,
        *,
        has_tls: bool,
    ) -> None:
        self._listener = listener
        self._limit, self._address_limit = connection_limits(limits)
        self._take_over = take_over
        self._has_tls = has_tls
        self._loop = asyncio.get_running_loop()
        self._by_address: Counter[str] = Counter()
        self._num_open = 0
        self._num_problems = 0
        self._opening: set[asyncio.Task[None]] = set()
        self._resume()

    @property
    def port(self) -> int:
        """Port of the socket."""
        port: int = self._listener.getsockname()[1]
        return port

    def close(self) -> None:
        """Close the socket; connections stay open."""
        self._loop.remove_reader(self._listener)
        self._listener.close()
        if self._has_tls:  # without TLS they are open as soon as the loop runs
            for task in self._opening:
                task.cancel()

    def _resume(self) -> None:
        if self._listener.fileno() >= 0:
            self._loop.add_reader(self._listener, self._accept)

    def _accept(self) -> None:
        try:
            for _ in range(_MAX_ACCEPTED):
                self._take(*self._listener.accept())
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            pass
        except OSError as error:
            self._report(f"a connection cannot be accepted: {error}")
            self._loop.remove_reader(self._listener)
            self._loop.call_later(_PAUSE, self._resume)

    def _take(self, connection: socket.socket, peer: tuple[str, int] | str) -> None:
        address = peer[0] if isinstance(peer, tuple) else ""  # "" of a unix socket
        is_over_limit = bool(address) and self._by_address[address] >= self._address_limit
        if is_over_limit or self._num_open >= self._limit:
            self._report(f"too many connections, one from {address} is refused")
            self._refuse(connection)
            return
        connection.setblocking(False)
        if address:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._num_open += 1
        self._by_address[address] += 1
        task = self._loop.create_task(self._open(connection, address))
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    async def _open(self, connection: socket.socket, address: str) -> None:
        is_open = True

        def release() -> None:
            nonlocal is_open
            if is_open:
                is_open = False
                self._release(address)

        await self._take_over(connection, release)

    def _release(self, address: str) -> None:
        self._num_open -= 1
        self._by_address[address] -= 1
        if not self._by_address[address]:
            del self._by_address[address]

    def _refuse(self, connection: socket.socket) -> None:
        with connection, suppress(OSError):
            connection.setblocking(False)
            if not self._has_tls:
                connection.send(_FULL)
                connection.shutdown(socket.SHUT_WR)
                connection.recv(1 << 16)  # close() with unread bytes would reset the connection

    def _report(self, text: str) -> None:
        """Log the first, second, fourth, eighth, ... problem, as there can be very many."""
        self._num_problems += 1
        if self._num_problems & (self._num_problems - 1) == 0:
            log.warning("HTTP: %s (%d such problems so far)", text, self._num_problems)
