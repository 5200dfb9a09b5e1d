"""HTTP/1.1 client of `bench` over asyncio, which costs little time per chunk of an answer.

A connection carries one request at a time and is reused for the next. It knows no other protocol.
"""

import asyncio
from time import perf_counter
from typing import Protocol, cast

import httptools

from mindspore_serving.aio import within
from mindspore_serving.cli.endpoint import IS_GRPC, Endpoint, is_grpc
from mindspore_serving.errors import ServingError


class Reader(Protocol):
    """Consumer of the body of one answer."""

    def take(self, data: bytes, now: float) -> None:
        """Take a chunk of the body, which arrived at `now`.  Raises ValueError if it is invalid."""
        ...


class RequestFailed(ServingError):
    """Failure of a request; `kind` is a word or two by which failures are counted."""

    def __init__(self, kind: str, text: str = "") -> None:
        super().__init__(text or kind)
        self.kind = kind


class BenchConnection(asyncio.Protocol):
    """Connection of the client, which sends one request at a time."""

    def __init__(self, connections: "Connections") -> None:
        self._connections = connections
        self._transport: asyncio.Transport
        self._parser = httptools.HttpResponseParser(self)
        self._reader: Reader | None = None
        self._answer: asyncio.Future[int] | None = None
        self._refusal = bytearray()
        self._is_ok = False
        self._now = 0.0
        self.is_open = True

    def ask(self, request: bytes, reader: Reader, timeout: float) -> "asyncio.Future[int]":
        """Send `request`; return a future of its status, or of RequestFailed.

        The future can be cancelled.
        """
        loop = asyncio.get_running_loop()
        self._reader = reader
        self._refusal.clear()
        self._answer = loop.create_future()
        timer = loop.call_later(timeout, self._fail, RequestFailed("timeout"))
        self._answer.add_done_callback(lambda _: timer.cancel())
        self._transport.write(request)
        return self._answer

    def close(self) -> None:
        self.is_open = False
        self._transport.abort()

    # --- asyncio's side ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._now = perf_counter()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            # An error of a callback is the context of the parser's error.
            text = IS_GRPC if is_grpc(data) else str(error.__context__ or error)
            self._fail(RequestFailed("bad answer", text))

    def connection_lost(self, error: Exception | None) -> None:
        self.is_open = False
        self._fail(RequestFailed("disconnected", str(error or "")))

    # --- the parser's side ---

    def on_headers_complete(self) -> None:
        self._is_ok = self._parser.get_status_code() == 200

    def on_body(self, data: bytes) -> None:
        if not self._is_ok:
            self._refusal += data
        elif self._reader is not None:
            self._reader.take(data, self._now)

    def on_message_complete(self) -> None:
        if not self._parser.should_keep_alive():
            self.close()
        status = self._parser.get_status_code()
        if status != 200:
            self._settle(RequestFailed(f"status {status}", bytes(self._refusal).decode("latin-1")))
        else:
            self._settle(status)

    def _fail(self, failure: RequestFailed) -> None:
        if self._answer is not None and not self._answer.done():
            self.close()
        self._settle(failure)

    def _settle(self, result: "int | RequestFailed") -> None:
        answer, self._answer, self._reader = self._answer, None, None
        if answer is None or answer.done():
            return
        if isinstance(result, RequestFailed):
            answer.set_exception(result)
        else:
            answer.set_result(result)
        if self.is_open:
            self._connections.free(self)


class Connections:
    """Connections to `endpoint`, as many as there are requests in flight."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self._free: list[BenchConnection] = []

    @property
    def url(self) -> str:
        return self.endpoint.url

    async def post(self, path: str, body: bytes, reader: Reader, timeout: float) -> None:
        """Return when `reader` has the complete answer.  Raises RequestFailed."""
        connection = self._free.pop() if self._free else await self._connect(timeout)
        if not connection.is_open:  # the server has closed it
            connection = await self._connect(timeout)
        answer = connection.ask(self._request(path, body), reader, timeout)
        try:
            await answer
        except asyncio.CancelledError:
            connection.close()
            raise

    def free(self, connection: BenchConnection) -> None:
        self._free.append(connection)

    def close(self) -> None:
        while self._free:
            self._free.pop().close()

    async def _connect(self, timeout: float) -> BenchConnection:
        endpoint, loop = self.endpoint, asyncio.get_running_loop()
        connecting = loop.create_connection(
            lambda: BenchConnection(self), endpoint.host, endpoint.port, ssl=endpoint.context
        )
        try:
            return (await within(timeout, connecting))[1]
        except asyncio.TimeoutError:
            raise RequestFailed("timeout", "no connection in time") from None
        except OSError as error:
            raise RequestFailed("no connection", str(error)) from error

    def _request(self, path: str, body: bytes) -> bytes:
        endpoint = self.endpoint
        lines = [
            f"POST {endpoint.base}{path} HTTP/1.1",
            f"host: {endpoint.authority}",
            "content-type: application/json",
            f"content-length: {len(body)}",
            *(f"{name}: {value}" for name, value in endpoint.headers.items()),
        ]
        return "\r\n".join(lines).encode() + b"\r\n\r\n" + body
