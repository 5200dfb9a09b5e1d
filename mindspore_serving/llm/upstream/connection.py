"""HTTP/1.1 to one server: a connection for each request, and answers that are read in bounds.

Knows no language model.  Redirects are not followed, and proxies of the environment not used.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from urllib.parse import urlsplit

import httptools

from mindspore_serving.errors import ServableUnavailable, ServingError

MOST_HEAD = 64 << 10  # bytes of a status line and headers
MOST_LINE = 1 << 20  # bytes of a line of an answer
MOST_BODY = 1 << 20  # bytes of a body that is read at once
_READ = 64 << 10


class Failure(Exception):
    """A request that failed: `error` is what to report; `may_retry` if it may be sent again."""

    def __init__(self, error: ServingError, *, may_retry: bool) -> None:
        super().__init__(str(error))
        self.error = error
        self.may_retry = may_retry


class Answer:
    """The head of an answer, and its body piece by piece: each comes within `timeout` seconds."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        transport: asyncio.WriteTransport,
        server: "Server",
        timeout: float,
    ) -> None:
        self.status = 0
        self.timeout = timeout
        self.headers: dict[str, str] = {}
        self._reader = reader
        self._transport = transport
        self._is_late = False
        self._server = server
        self._parser = httptools.HttpResponseParser(self)
        self._pieces: list[bytes] = []
        self._has_head = self._is_done = False

    async def lines(self) -> AsyncIterator[bytes]:
        """The lines of the body, without their ends."""
        rest = b""
        while piece := await self._read():
            *whole, rest = (rest + piece).split(b"\n")
            for line in whole:
                yield line.rstrip(b"\r")
            if len(rest) > MOST_LINE:
                raise self.failed(f"it sent a line of over {MOST_LINE:,} bytes")
        if rest:
            yield rest

    async def whole(self) -> bytes:
        """All of the body."""
        found = b""
        while piece := await self._read():
            found += piece
            if len(found) > MOST_BODY:
                raise self.failed(f"it sent a body of over {MOST_BODY:,} bytes")
        return found

    async def read_head(self) -> None:
        size = 0
        with self._in_time():
            while not self._has_head:
                size += await self._feed()
                if size > MOST_HEAD and not self._has_head:
                    raise self.failed(f"it sent a head of over {MOST_HEAD:,} bytes")
        if self.headers.get("content-encoding", "identity") != "identity":
            raise self.failed("it sent a compressed body, which was not asked for")

    def shown(self, text: str) -> str:
        """What the server said, without the key that it was sent."""
        key = self._server.key
        return text.replace(key, "***") if key else text

    def failed(self, text: str, *, may_retry: bool = True) -> Failure:
        text = f"the upstream {self._server.where}: {self.shown(text)}"
        return Failure(ServingError(text), may_retry=may_retry)

    async def _read(self) -> bytes:
        """The next piece of the body; nothing at its end."""
        while not self._pieces and not self._is_done:
            with self._in_time():
                await self._feed()
        found, self._pieces = b"".join(self._pieces), []
        return found

    @contextmanager
    def _in_time(self) -> Iterator[None]:
        """Close the connection after `timeout` seconds.  (`asyncio.wait_for` would lose the end of
        a task that is cancelled while data comes.)"""
        timer = asyncio.get_running_loop().call_later(self.timeout, self._give_up)
        try:
            yield
        finally:
            timer.cancel()

    def _give_up(self) -> None:
        self._is_late = True
        self._transport.abort()

    async def _feed(self) -> int:
        """Parse what comes next; how many bytes it was."""
        try:
            data = await self._reader.read(_READ)
        except OSError as error:
            raise self.failed(f"the connection broke: {error}") from None
        if self._is_late:
            raise self.failed(f"it sent nothing for {self.timeout:g} s")
        if data:
            try:
                self._parser.feed_data(data)
            except httptools.HttpParserError as error:
                raise self.failed(f"it does not speak HTTP: {error}") from None
        elif self._has_head and not {"content-length", "transfer-encoding"} & self.headers.keys():
            self._is_done = True  # such a body ends with the connection
        else:
            raise self.failed("it closed the connection before its answer was complete")
        return len(data)

    # --- called by the parser -----------------------------------------------------------------

    def on_message_begin(self) -> None:
        self.headers = {}

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()
        self._has_head = self.status >= 200

    def on_body(self, body: bytes) -> None:
        self._pieces.append(body)

    def on_message_complete(self) -> None:
        self._is_done = self._has_head


class Server:
    """Where requests go, with `key` if it is not "".  A connection is made within `timeout`
    seconds."""

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
        self, path: str, body: bytes | None, headers: Mapping[str, str], timeout: float
    ) -> AsyncIterator[Answer]:
        """The answer to a POST of `body`, JSON, or to a GET, once its head has come, within
        `timeout` seconds.  The connection is closed behind it.  Raises Failure."""
        reader, writer = await self._connect()
        try:
            answer = Answer(reader, writer.transport, self, timeout)
            writer.write(self._request(path, body, headers))
            await answer.read_head()
            yield answer
        finally:
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
        raise Failure(ServableUnavailable(text), may_retry=True)
