"""Parses the bytes of one connection, with httptools, and limits all that is not a body.

Knows no transport, and not which kind of exchange serves a head.
"""

from collections.abc import Callable

import httptools

from mindspore_serving import log
from mindspore_serving.core.server_limits import ServerLimits
from mindspore_serving.frontends.http.exchange import Exchange
from mindspore_serving.frontends.http.head import HeadRefusal, RequestHead

READ_SIZE = 64 << 10  # bytes of one read from the socket
LARGE_BODY = 256 << 10  # bytes; more than one read, so a head and such a body do not come together


class RequestParser:
    """Calls `open_exchange` with the head of each request, and feeds the exchange its body."""

    def __init__(
        self, limits: ServerLimits, open_exchange: Callable[[RequestHead], Exchange]
    ) -> None:
        self._max_head, self._max_headers = limits.max_head, limits.max_headers
        self._open = open_exchange
        self._parser = httptools.HttpRequestParser(self)
        self._exchange: Exchange  # whose body is read
        self._target = b""
        self._headers: list[tuple[bytes, bytes]] = []  # of a head, then of trailers
        self._num_between = 0  # bytes since the last of a body, head or request
        # Whether a head may be too large: not if it came in one piece that is small enough.
        self._is_doubtful = self._max_head < READ_SIZE
        self._replay = b""  # a head to be parsed once more
        # Where the rest of a large body is to be read, past httptools; None for all else.
        self.room: memoryview | None = None
        self._num_left = 0  # bytes of such a body

    def close(self) -> None:
        """Nothing follows.  The parser of httptools refers to this one: both, and the body that was
        read last, would wait for the garbage collector.
        """
        del self._parser

    @property
    def unread_head(self) -> object | None:
        """Between two requests: None, or an object that stays the same while the same head is
        read.
        """
        return self._headers if self._num_between or self._target else None

    def feed(self, data: memoryview) -> None:
        """At most READ_SIZE bytes.  Raises Refusal for what is not HTTP or over a limit; must not
        be called after that.
        """
        if self._num_left and not (data := self._skip(data)):
            return
        self._num_between += len(data)
        rest = None  # behind a head that offers another protocol
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as stop:
            rest = data[stop.args[0] :]
        except httptools.HttpParserError as error:
            raise _refusal_of(error) from None
        while rest is not None:
            rest = self._parse_again(rest)
        if self._num_between or self._target or self._headers:
            self._check_partial()

    def fill(self, num_bytes: int) -> None:
        """So many bytes were read into the room."""
        assert self.room is not None
        self.room = self.room[num_bytes:]
        self._count_down(num_bytes)

    def _skip(self, data: memoryview) -> memoryview:
        """`data` behind the body, whose rest nobody wants."""
        count = min(self._num_left, len(data))
        self._count_down(count)
        return data[count:]

    def _count_down(self, num_bytes: int) -> None:
        """Of a large body so much more has come."""
        self._num_left -= num_bytes
        if not self._exchange.filled(num_bytes):
            self.room = None
        if not self._num_left:
            self.room = None
            self._parser = httptools.HttpRequestParser(self)  # the one before waits for the body
            self._exchange.end()

    def _parse_again(self, data: memoryview) -> memoryview | None:
        """Parse the head without its offer of another protocol, then `data`; what is left of that
        behind another such head.
        """
        head, self._replay = self._replay, b""
        # Another one: this one takes nothing more after `Connection: close`.
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
        """The data ended inside a head, trailers, or a line between two chunks."""
        if self._target:
            self._is_doubtful = True
        if self._num_between > self._max_head:
            raise self._too_large()
        self._check_number()

    def _check_number(self) -> None:
        if len(self._headers) > self._max_headers:
            raise HeadRefusal(431, f"There are more than {self._max_headers} headers.")

    def _too_large(self) -> HeadRefusal:
        return HeadRefusal(431, f"The headers are bigger than {self._max_head} bytes.")

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
        if self._is_doubtful:
            self._is_doubtful = self._max_head < READ_SIZE
            if head.size > self._max_head:
                raise self._too_large()
        if len(headers) > self._max_headers:
            self._check_number()
        head.check()
        self._target = b""
        self._headers = []
        self._num_between = 0
        if parser.should_upgrade():
            self._replay = _without_upgrade(head)
        else:
            self._exchange = self._open(head)
            if len(head.fields.get(b"content-length", b"")) > 5 and head.body_size >= LARGE_BODY:
                self.room = self._exchange.room(head.body_size)
                self._num_left = 0 if self.room is None else head.body_size

    def on_body(self, part: bytes) -> None:
        self._num_between = 0
        if self._num_left:
            self._put(part)
        else:
            self._exchange.feed(part)

    def _put(self, part: bytes) -> None:
        """The beginning of a large body, which came with its head."""
        if self.room is not None:
            self.room[: len(part)] = part
            self.room = self.room[len(part) :]
        self._count_down(len(part))

    def on_message_complete(self) -> None:
        self._num_between = 0
        if self._headers:  # trailers, which are counted and ignored
            self._check_number()
            self._headers = []
        if not self._replay:
            self._exchange.end()


def _without_upgrade(head: RequestHead) -> bytes:
    """The head without its offer of another protocol, with which httptools reads no body."""
    headers = [b"%b: %b\r\n" % pair for pair in head.headers if pair[0] != b"upgrade"]
    version = head.version.encode()
    start = b"%b %b HTTP/%b\r\n" % (head.method, head.target, version)
    return b"".join([start, *headers, b"\r\n"])


def _refusal_of(error: httptools.HttpParserError) -> HeadRefusal:
    cause = error.__context__  # raised by a function above
    if isinstance(cause, HeadRefusal):
        return cause
    if cause is not None:
        log.error("reading a request", exc_info=True)
        return HeadRefusal(500, "Internal Server Error")
    return HeadRefusal(400, "Invalid HTTP request received.")
