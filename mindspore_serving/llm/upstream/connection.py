"""HTTP/1.1 to one server: a connection for each request, and answers that are read in bounds of
size and time.

Knows no language model.  Redirects are not followed, and proxies of the environment not used.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from urllib.parse import urlsplit

import httptools

from mindspore_serving.errors import ServableUnavailable, ServingError, UpstreamFailed, UpstreamLate

MOST_HEAD = 64 << 10  # bytes of a status line and headers, those of 1xx answers included
MOST_LINE = 1 << 20  # bytes of a line of an answer
MOST_BODY = 1 << 20  # bytes of a body that is read at once
MOST_FRAMING = 64 << 10  # bytes in a row that are no body: sizes of chunks, extensions, trailers
_READ = 64 << 10


class UpstreamFailure(Exception):
    """A request that failed: `error` is what to report; `may_retry` if it may be sent again."""

    def __init__(self, error: ServingError, *, may_retry: bool) -> None:
        super().__init__(str(error))
        self.error = error
        self.may_retry = may_retry


class UpstreamReply:
    """The head of an answer, and its body piece by piece, in the time that `clock` gives."""

    def __init__(
        self, reader: asyncio.StreamReader, clock: "Clock", server: "Server", max_bytes: int
    ) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.clock = clock
        self._reader = reader
        self._server = server
        self._parser = httptools.HttpResponseParser(self)
        self._pieces: list[bytes] = []
        self._has_head = self._is_done = False
        self._max_bytes = max_bytes
        self._size = self._framing = 0  # bytes: all, and since the last of the body

    async def lines(self) -> AsyncIterator[bytes]:
        """The lines of the body, without their ends."""
        rest: list[bytes] = []
        size = 0
        while piece := await self._read():
            *whole, last = piece.split(b"\n")
            for line in whole:
                yield b"".join((*rest, line)).rstrip(b"\r")
                rest, size = [], 0
            rest.append(last)
            size += len(last)
            if size > MOST_LINE:
                raise self.failed(f"it sent a line of over {MOST_LINE:,} bytes")
        if size:
            yield b"".join(rest)

    async def whole(self) -> bytes:
        """All of the body."""
        found = bytearray()
        while piece := await self._read():
            found += piece
            if len(found) > MOST_BODY:
                raise self.failed(f"it sent a body of over {MOST_BODY:,} bytes")
        return bytes(found)

    async def read_head(self) -> None:
        while not self._has_head:
            await self._feed()
            if self._size > MOST_HEAD and not self._has_head:
                raise self.failed(f"it sent a head of over {MOST_HEAD:,} bytes")
        if self.headers.get("content-encoding", "identity") != "identity":
            raise self.failed("it sent a compressed body, which was not asked for")

    def shown(self, text: str) -> str:
        """What the server said, without the key that it was sent."""
        key = self._server.key
        return text.replace(key, "***") if key else text

    def failed(
        self, text: str, *, may_retry: bool = True, kind: type[ServingError] = UpstreamFailed
    ) -> UpstreamFailure:
        text = f"the upstream {self._server.where}: {self.shown(text)}"
        return UpstreamFailure(kind(text), may_retry=may_retry)

    async def _read(self) -> bytes:
        """The next piece of the body; nothing at its end."""
        while not self._pieces and not self._is_done:
            await self._feed()
        found, self._pieces = b"".join(self._pieces), []
        return found

    async def _feed(self) -> None:
        """Parse what comes next."""
        try:
            data = await self._reader.read(_READ)
        except OSError as error:
            data, broken = b"", str(error)
        else:
            broken = ""
        if self.clock.problem:
            raise self.failed(self.clock.problem, kind=UpstreamLate)
        if broken:
            raise self.failed(f"the connection broke: {broken}")
        if data:
            self._parse(data)
        elif self._has_head and not {"content-length", "transfer-encoding"} & self.headers.keys():
            self._is_done = True  # such a body ends with the connection
        else:
            raise self.failed("it closed the connection before its answer was complete")

    def _parse(self, data: bytes) -> None:
        self._size += len(data)
        self._framing += len(data)
        if self._size > self._max_bytes:
            raise self.failed(f"it sent over {self._max_bytes:,} bytes", may_retry=False)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            raise self.failed(f"it answered {self.status}, to change the protocol") from None
        except httptools.HttpParserError as error:
            raise self.failed(f"it does not speak HTTP: {error}") from None
        if self._pieces:
            self._framing = 0
        elif self._has_head and self._framing > MOST_FRAMING:
            raise self.failed(f"it sent {self._framing:,} bytes that are no part of its body")

    # --- called by the parser; what is behind the end of the answer is left out ---------------

    def on_message_begin(self) -> None:
        if not self._is_done:
            self.headers = {}

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._has_head:  # else it is a trailer
            self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        if not self._has_head:
            self.status = self._parser.get_status_code()
            self._has_head = self.status >= 200

    def on_body(self, body: bytes) -> None:
        if not self._is_done:
            self._pieces.append(body)

    def on_message_complete(self) -> None:
        self._is_done = self._has_head


class Clock:
    """Ends a connection, by `end`, that is too late: `problem` is what to say then, else "".

    `total` are the seconds for everything; `allow` says until when something has to come, however
    many bytes do that are nothing.  (`asyncio.wait_for` would lose the end of a task that is
    cancelled while data comes.)
    """

    def __init__(self, total: float, end: Callable[[], object]) -> None:
        self.problem = ""
        self._loop = asyncio.get_running_loop()
        self._end = end
        self._total = self._loop.call_later(
            max(0.0, total), self._give_up, "its time is up: it did not complete its answer"
        )
        self._next: asyncio.TimerHandle | None = None

    def allow(self, seconds: float) -> None:
        """The next part of the answer has to come within so many seconds."""
        self._cancel_next()
        problem = f"it sent nothing of an answer for {seconds:g} s"
        self._next = self._loop.call_later(seconds, self._give_up, problem)

    def pause(self) -> None:
        """It is not waited for."""
        self._cancel_next()

    def stop(self) -> None:
        self._cancel_next()
        self._total.cancel()

    def _cancel_next(self) -> None:
        if self._next is not None:
            self._next.cancel()

    def _give_up(self, problem: str) -> None:
        self.problem = self.problem or problem
        self._end()


@dataclass(frozen=True, slots=True)
class Bounds:
    """Of one answer: seconds to the `first` part of it that has content, from one such part to
    the `next`, and in `total`; and its most bytes, head and framing included.
    """

    first: float
    next: float
    total: float
    max_bytes: int


class Server:
    """Where requests go, with `key` if it is not "".  A connection is made within `timeout`
    seconds.
    """

    def __init__(self, url: str, context: ssl.SSLContext | None, key: str, timeout: float) -> None:
        found = urlsplit(url)
        self.where = f"{found.scheme}://{found.netloc}"
        self._host = found.hostname or ""
        self._port = found.port or (443 if context else 80)
        self._path = found.path.rstrip("/")
        self._context = context
        self.key = key
        self._headers = {"Host": found.netloc, "Accept-Encoding": "identity"}
        self._headers |= {"Authorization": f"Bearer {key}"} if key else {}
        self._timeout = timeout

    @asynccontextmanager
    async def send(
        self, path: str, body: bytes | None, headers: Mapping[str, str], bounds: Bounds
    ) -> AsyncIterator[UpstreamReply]:
        """The answer to a POST of `body`, JSON, or to a GET, once its head has come.  The
        connection is closed behind it.  Raises Failure.
        """
        reader, writer = await self._connect()
        clock = Clock(bounds.total, writer.transport.abort)
        try:
            clock.allow(bounds.first)
            answer = UpstreamReply(reader, clock, self, bounds.max_bytes)
            writer.write(self._request(path, body, headers))
            await answer.read_head()
            yield answer
        finally:
            clock.stop()
            writer.transport.abort()

    def _request(self, path: str, body: bytes | None, headers: Mapping[str, str]) -> bytes:
        own = {**self._headers, **headers, "User-Agent": "mindspore-serving", "Connection": "close"}
        if body is not None:
            own |= {"Content-Type": "application/json", "Content-Length": str(len(body))}
        first = f"{'GET' if body is None else 'POST'} {self._path}{path} HTTP/1.1\r\n"
        head = first + "".join(f"{name}: {value}\r\n" for name, value in own.items()) + "\r\n"
        return head.encode("latin-1") + (body or b"")

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        opening = asyncio.ensure_future(
            asyncio.open_connection(self._host, self._port, ssl=self._context)
        )
        try:
            await asyncio.wait([opening], timeout=self._timeout)
            if opening.done():
                return opening.result()
            why = f"it did not accept a connection within {self._timeout:g} s"
        except ssl.SSLCertVerificationError as error:
            why = f"its certificate is refused: {error.verify_message} (see tls_ca)"
        except ssl.SSLError as error:
            why = f"TLS failed: {error.reason or error}"
        except OSError as error:
            why = error.strerror or str(error)
        except asyncio.CancelledError:
            if opening.done() and opening.exception() is None:
                opening.result()[1].transport.abort()
            raise
        finally:
            opening.cancel()
        text = f"the upstream {self.where} cannot be reached: {why}"
        raise UpstreamFailure(ServableUnavailable(text), may_retry=True)
