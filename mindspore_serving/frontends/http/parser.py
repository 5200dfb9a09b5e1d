"""Parser of the requests of one connection, with httptools, and limits of their heads.

Knows no transport and no kind of exchange.
"""

from collections.abc import Callable

import httptools

from mindspore_serving import log
from mindspore_serving.core.server_limits import ServerLimits
from mindspore_serving.frontends.http.exchange import Exchange
from mindspore_serving.frontends.http.head import HeadRefusal, RequestHead

READ_SIZE = 64 << 10  # bytes of one read from the socket
LARGE_BODY = (
    256 << 10
)  # bytes; more than one read, so such a body is never read together with its head


class RequestParser:
    """A parser that calls `open_exchange` with the head of each request, and feeds it the body."""

    def __init__(
        self,
        limits: ServerLimits,
        open_exchange: Callable[[RequestHead], Exchange],
        accepts_upgrade: Callable[[RequestHead], bool] | None = None,
    ) -> None:
        """Create a parser; offers to upgrade have no effect but those of `accepts_upgrade`."""
        self._max_head, self._max_headers = limits.max_head, limits.max_headers
        self._open, self._accepts_upgrade = open_exchange, accepts_upgrade
        self._is_raw = False  # all that follows is fed to the last exchange
        self._parser = httptools.HttpRequestParser(self)
        self._exchange: Exchange  # of the body that is read
        self._target = b""
        self._headers: list[tuple[bytes, bytes]] = []  # of the head, then trailers
        self._num_between = 0  # bytes since the end of the last head, part of a body, or request
        # Whether the size of a head must be checked: not if it came in one small enough read.
        self._checks_size = self._max_head < READ_SIZE
        self._replay = b""  # a head to be parsed again
        # Buffer into which the rest of a large body is read, bypassing httptools; else None.
        self.buffer: memoryview | None = None
        self._num_remaining = 0  # bytes of such a body

    def close(self) -> None:
        """Drop the parser of httptools, with which this object is a reference cycle.

        Else both, and the last body, would stay in memory until the garbage collector runs.
        """
        del self._parser

    @property
    def unread_head(self) -> object | None:
        """An object that stays the same while the same head is read; None between two requests."""
        return self._headers if self._num_between or self._target else None

    def feed(self, data: memoryview) -> None:
        """Parse at most READ_SIZE bytes.

        Raises HeadRefusal for invalid HTTP and for a head over a limit; not to be called after
        that.
        """
        if self._is_raw:
            self._exchange.feed(bytes(data))
            return
        if self._num_remaining and not (data := self._skip(data)):
            return
        self._num_between += len(data)
        rest = None  # data after a head with an Upgrade header
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as stop:
            rest = data[stop.args[0] :]
        except httptools.HttpParserError as error:
            raise _refusal_of(error) from None
        while rest is not None and not self._is_raw:
            rest = self._parse_again(rest)
        if self._is_raw and rest:
            self._exchange.feed(bytes(rest))
        if self._num_between or self._target or self._headers:
            self._check_partial()

    def fill(self, num_bytes: int) -> None:
        """Note bytes that were read into `buffer`."""
        assert self.buffer is not None
        self.buffer = self.buffer[num_bytes:]
        self._count_down(num_bytes)

    def _skip(self, data: memoryview) -> memoryview:
        """Return `data` without the rest of a large body, which is discarded."""
        count = min(self._num_remaining, len(data))
        self._count_down(count)
        return data[count:]

    def _count_down(self, num_bytes: int) -> None:
        """Note that more bytes of a large body were read."""
        self._num_remaining -= num_bytes
        if not self._exchange.filled(num_bytes):
            self.buffer = None
        if not self._num_remaining:
            self.buffer = None
            self._parser = httptools.HttpRequestParser(self)  # the old one expects the body
            self._exchange.end()

    def _parse_again(self, data: memoryview) -> memoryview | None:
        """Parse the last head again without its Upgrade header, and then `data`.

        Returns the rest of `data` after another head with an Upgrade header, if there is one.
        """
        head, self._replay = self._replay, b""
        # A new parser: the old one parses nothing after `Connection: close`.
        self._parser = httptools.HttpRequestParser(self)
        try:
            self._parser.feed_data(head)
            if data:
                self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as stop:
            return data[stop.args[0] :]
        except httptools.HttpParserError as error:
            raise _refusal_of(error) from None
        return None

    def _check_partial(self) -> None:
        """Check the limits inside a head, trailers, or a line between two chunks."""
        if self._target:
            self._checks_size = True
        if self._num_between > self._max_head:
            raise self._too_large()
        self._check_number()

    def _check_number(self) -> None:
        if len(self._headers) > self._max_headers:
            text = f"The number of headers is over {self._max_headers}"
            raise HeadRefusal(431, f"{text}; --limit max_headers=NUMBER of the server sets it.")

    def _too_large(self) -> HeadRefusal:
        text = f"The headers are bigger than {self._max_head} bytes"
        return HeadRefusal(431, f"{text}; --limit max_head=BYTES of the server sets it.")

    # --- called by httptools ---

    def on_url(self, part: bytes) -> None:
        self._target += part

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        parser, headers = self._parser, self._headers
        version = parser.get_http_version()
        keep_alive = version == "1.1" and parser.should_keep_alive()
        head = RequestHead(
            parser.get_method(), self._target, version, headers, dict(headers), keep_alive
        )
        if self._checks_size:
            self._checks_size = self._max_head < READ_SIZE
            if head.size > self._max_head:
                raise self._too_large()
        if len(headers) > self._max_headers:
            self._check_number()
        head.check()
        self._target = b""
        self._headers = []
        self._num_between = 0
        if parser.should_upgrade():
            accepts = self._accepts_upgrade
            head.is_upgrade = self._is_raw = accepts is not None and accepts(head)
        if parser.should_upgrade() and not self._is_raw:
            self._replay = _without_upgrade(head)
        else:
            self._exchange = self._open(head)
            if len(head.fields.get(b"content-length", b"")) > 5 and head.body_size >= LARGE_BODY:
                self.buffer = self._exchange.body_buffer(head.body_size)
                self._num_remaining = 0 if self.buffer is None else head.body_size

    def on_body(self, part: bytes) -> None:
        self._num_between = 0
        if self._num_remaining:
            self._put(part)
        else:
            self._exchange.feed(part)

    def _put(self, part: bytes) -> None:
        """Copy the beginning of a large body, which was read with its head."""
        if self.buffer is not None:
            self.buffer[: len(part)] = part
            self.buffer = self.buffer[len(part) :]
        self._count_down(len(part))

    def on_message_complete(self) -> None:
        self._num_between = 0
        if self._headers:  # trailers, which are counted and ignored
            self._check_number()
            self._headers = []
        if not (self._replay or self._is_raw):
            self._exchange.end()


def _without_upgrade(head: RequestHead) -> bytes:
    """Return the head without its Upgrade header, with which httptools does not read the body."""
    headers = [b"%b: %b\r\n" % pair for pair in head.headers if pair[0] != b"upgrade"]
    version = head.version.encode()
    start = b"%b %b HTTP/%b\r\n" % (head.method, head.target, version)
    return b"".join([start, *headers, b"\r\n"])


def _refusal_of(error: httptools.HttpParserError) -> HeadRefusal:
    cause = error.__context__  # raised by a callback above
    if isinstance(cause, HeadRefusal):
        return cause
    if cause is not None:
        log.error("reading a request", exc_info=True)
        return HeadRefusal(500, "Internal Server Error")
    return HeadRefusal(400, "Invalid HTTP request received.")
