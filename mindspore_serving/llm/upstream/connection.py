"""HTTP/1.1 client of one server, with limits on the size and time of its replies.

Each request has a connection of its own. Knows no language model. Redirects are not followed, and
proxies of the environment are not used.
"""

import asyncio
import os
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from urllib.parse import urlsplit

import httptools

from mindspore_serving.errors import ServableUnavailable, ServingError, UpstreamFailed, UpstreamLate
from mindspore_serving.llm.upstream.targets import UpstreamTarget

MAX_HEAD = 64 << 10  # bytes of status line and headers, those of 1xx replies included
MAX_LINE = 1 << 20  # bytes of a line of a reply
MAX_BODY = 1 << 20  # bytes of a body that is read as a whole
MAX_FRAMING = 64 << 10  # consecutive bytes that are no body: chunk sizes, extensions, trailers
_READ = 64 << 10


class UpstreamFailure(Exception):
    """A failed request: `error` is what to report; `may_retry` if it may be sent again."""

    def __init__(self, error: ServingError, *, may_retry: bool) -> None:
        super().__init__(str(error))
        self.error = error
        self.may_retry = may_retry


class UpstreamReply:
    """The head of a reply, and its body as it arrives, within the times of `timer`."""

    def __init__(
        self, reader: asyncio.StreamReader, timer: "ReplyTimer", server: "Server", max_bytes: int
    ) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.timer = timer
        self._reader = reader
        self._server = server
        self._parser = httptools.HttpResponseParser(self)
        self._pieces: list[bytes] = []
        self._has_head = self._is_done = False
        self._max_bytes = max_bytes
        self._size = self._framing = 0  # bytes: in total, and since the last byte of the body

    async def lines(self) -> AsyncIterator[bytes]:
        """Iterate over the lines of the body, without their ends."""
        rest: list[bytes] = []
        size = 0
        while piece := await self._read():
            *complete, last = piece.split(b"\n")
            for line in complete:
                yield b"".join((*rest, line)).rstrip(b"\r")
                rest, size = [], 0
            rest.append(last)
            size += len(last)
            if size > MAX_LINE:
                raise self.failed(f"it sent a line of over {MAX_LINE:,} bytes")
        if size:
            yield b"".join(rest)

    async def read_body(self) -> bytes:
        """Read the whole body.  Raises UpstreamFailure over MAX_BODY bytes."""
        body = bytearray()
        while piece := await self._read():
            body += piece
            if len(body) > MAX_BODY:
                raise self.failed(f"it sent a body of over {MAX_BODY:,} bytes")
        return bytes(body)

    async def read_head(self) -> None:
        """Read the status and the headers."""
        while not self._has_head:
            await self._feed()
            if self._size > MAX_HEAD and not self._has_head:
                raise self.failed(f"it sent a head of over {MAX_HEAD:,} bytes")
        if self.headers.get("content-encoding", "identity") != "identity":
            raise self.failed("it sent a compressed body, which was not requested")

    def masked(self, text: str) -> str:
        """Replace the key in a text of the server, which may quote it."""
        key = self._server.key
        return text.replace(key, "***") if key else text

    def failed(
        self, text: str, *, may_retry: bool = True, kind: type[ServingError] = UpstreamFailed
    ) -> UpstreamFailure:
        """Return the failure of this request, for a reason of which the upstream is the subject."""
        text = f"the upstream {self._server.origin}: {self.masked(text)}"
        return UpstreamFailure(kind(text), may_retry=may_retry)

    async def _read(self) -> bytes:
        """Return the next part of the body, b"" at its end."""
        while not self._pieces and not self._is_done:
            await self._feed()
        data, self._pieces = b"".join(self._pieces), []
        return data

    async def _feed(self) -> None:
        """Read from the socket and parse."""
        try:
            data = await self._reader.read(_READ)
        except OSError as error:
            data, broken = b"", str(error)
        else:
            broken = ""
        if self.timer.problem:
            raise self.failed(self.timer.problem, kind=UpstreamLate)
        if broken:
            raise self.failed(f"the connection broke: {broken}")
        if data:
            self._parse(data)
        elif self._has_head and not {"content-length", "transfer-encoding"} & self.headers.keys():
            self._is_done = True  # without a length, a body ends with the connection
        else:
            raise self.failed("it closed the connection before its reply was complete")

    def _parse(self, data: bytes) -> None:
        self._size += len(data)
        self._framing += len(data)
        if self._size > self._max_bytes:
            raise self.failed(f"it sent over {self._max_bytes:,} bytes", may_retry=False)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            raise self.failed(f"it replied {self.status} to switch protocols") from None
        except httptools.HttpParserError as error:
            raise self.failed(f"it does not speak HTTP: {error}") from None
        if self._pieces:
            self._framing = 0
        elif self._has_head and self._framing > MAX_FRAMING:
            raise self.failed(f"it sent {self._framing:,} consecutive bytes outside its body")

    # --- called by the parser; bytes after the end of the reply are ignored -------------------

    def on_message_begin(self) -> None:
        if not self._is_done:
            self.headers = {}

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._has_head:  # otherwise it is a trailer
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


class ReplyTimer:
    """Timeouts of one reply, which call `end` to close the connection.

    `problem` is then the reason, "" until then. `total` are the seconds of the whole reply; `allow`
    sets the deadline of the next content, which bytes without content do not extend.
    (`asyncio.wait_for` would lose a cancellation that arrives together with data.)
    """

    def __init__(self, total: float, end: Callable[[], object]) -> None:
        self.problem = ""
        self._loop = asyncio.get_running_loop()
        self._end = end
        self._total = self._loop.call_later(
            max(0.0, total), self._give_up, "its time is up: it did not complete its reply"
        )
        self._next: asyncio.TimerHandle | None = None

    def allow(self, seconds: float) -> None:
        """Set the deadline of the next content, in `seconds` from now."""
        self._cancel_next()
        problem = f"it sent no content for {seconds:g} s"
        self._next = self._loop.call_later(seconds, self._give_up, problem)

    def pause(self) -> None:
        """Suspend the deadline of the next content."""
        self._cancel_next()

    def stop(self) -> None:
        """Cancel all timeouts."""
        self._cancel_next()
        self._total.cancel()

    def _cancel_next(self) -> None:
        if self._next is not None:
            self._next.cancel()

    def _give_up(self, problem: str) -> None:
        self.problem = self.problem or problem
        self._end()


@dataclass(frozen=True, slots=True)
class ReplyLimits:
    """Limits of a reply: seconds to the `first` content, to each `next` one, and in `total`.

    `max_bytes` are those of the whole reply, head and framing included.
    """

    first: float
    next: float
    total: float
    max_bytes: int


class Server:
    """Server at a target's address, and the key for it ("" for none).

    A connection is made within `timeout` seconds.
    """

    def __init__(
        self, target: UpstreamTarget, context: ssl.SSLContext | None, key: str, timeout: float
    ) -> None:
        parts = urlsplit(target.url)
        self.origin = target.origin
        self._host = target.address or parts.hostname or ""
        self._name = parts.hostname if context else None  # that its certificate has
        self._port = parts.port or (443 if context else 80)
        self._path = parts.path.rstrip("/")
        self._context = context
        self.key = key
        self._headers = {"Host": parts.netloc, "Accept-Encoding": "identity"}
        self._headers |= {"Authorization": f"Bearer {key}"} if key else {}
        self._timeout = timeout

    @asynccontextmanager
    async def send(
        self, path: str, body: bytes | None, headers: Mapping[str, str], limits: ReplyLimits
    ) -> AsyncIterator[UpstreamReply]:
        """Send a POST of `body` (JSON), or a GET, and hold the reply once its head has arrived.

        Closes the connection at the end. Raises UpstreamFailure.
        """
        reader, writer = await self._connect()
        timer = ReplyTimer(limits.total, writer.transport.abort)
        try:
            timer.allow(limits.first)
            reply = UpstreamReply(reader, timer, self, limits.max_bytes)
            writer.write(self._request(path, body, headers))
            await reply.read_head()
            yield reply
        finally:
            timer.stop()
            writer.transport.abort()

    def _request(self, path: str, body: bytes | None, headers: Mapping[str, str]) -> bytes:
        sent = {
            **self._headers,
            **headers,
            "User-Agent": "mindspore-serving",
            "Connection": "close",
        }
        if body is not None:
            sent |= {"Content-Type": "application/json", "Content-Length": str(len(body))}
        first = f"{'GET' if body is None else 'POST'} {self._path}{path} HTTP/1.1\r\n"
        head = first + "".join(f"{name}: {value}\r\n" for name, value in sent.items()) + "\r\n"
        return head.encode("latin-1") + (body or b"")

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        opening = asyncio.ensure_future(
            asyncio.open_connection(
                self._host, self._port, ssl=self._context, server_hostname=self._name
            )
        )
        try:
            await asyncio.wait([opening], timeout=self._timeout)
            if opening.done():
                return opening.result()
            reason = f"it did not accept a connection within {self._timeout:g} s"
        except ssl.SSLCertVerificationError as error:
            reason = f"its certificate is refused: {error.verify_message} (see tls_ca)"
        except ssl.SSLError as error:
            reason = f"TLS failed: {error.reason or error}"
        except OSError as error:
            number = error.errno if isinstance(error, ConnectionError) else None
            reason = os.strerror(number) if number else error.strerror or str(error)
        except asyncio.CancelledError:
            if opening.done() and opening.exception() is None:
                opening.result()[1].transport.abort()
            raise
        finally:
            opening.cancel()
        text = f"the upstream {self.origin} cannot be reached: {reason}"
        raise UpstreamFailure(ServableUnavailable(text), may_retry=True)
