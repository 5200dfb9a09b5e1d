"""Exchange of a request and its answer, and the interface to its connection."""

import asyncio
import http
from collections.abc import Iterable, Sized
from typing import Any, Protocol

from mindspore_serving.core.buffers import BufferList
from mindspore_serving.errors import ServingError
from mindspore_serving.frontends.access import Entry
from mindspore_serving.frontends.http.body_pool import BodyPool
from mindspore_serving.frontends.http.head import HeadRefusal
from mindspore_serving.frontends.memory import Allowance
from mindspore_serving.frontends.request_id import NAME, id_of
from mindspore_serving.tracing.request_span import RequestSpan

Fields = Iterable[tuple[bytes, bytes]]
_REASONS = {status.value: status.phrase.encode() for status in http.HTTPStatus}


class Flow:
    """Flow control of a transport; `is_full` while the client does not read fast enough."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._has_room = asyncio.Event()
        self._has_room.set()
        self.is_paused = False
        self.is_full = False

    def pause_reading(self) -> None:
        if not self.is_paused:
            self.is_paused = True
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if self.is_paused:
            self.is_paused = False
            self._transport.resume_reading()

    def fill(self) -> None:
        """Mark the transport as full: much data is not sent."""
        self.is_full = True
        self._has_room.clear()

    def empty(self) -> None:
        """Mark the transport as writable: most data is sent, or the connection is lost."""
        self.is_full = False
        self._has_room.set()

    async def drain(self) -> None:
        """Wait until the transport is writable."""
        await self._has_room.wait()


class ExchangeOutput(Protocol):
    """A connection, or a stream of one, as its exchanges see it."""

    @property
    def flow(self) -> Flow:
        """Flow control of the answer and of the request's body."""
        ...

    @property
    def memory(self) -> Allowance:
        """Memory for bodies that the connection may use."""
        ...

    @property
    def pool(self) -> BodyPool:
        """Memory for large bodies."""
        ...

    def describe(self, name: str) -> Any:
        """Return a fact about the transport, as `asyncio.BaseTransport.get_extra_info`."""
        ...

    def resume_reading(self) -> None:
        """Read on, unless requests are queued."""
        ...

    def replace(self, first: "Exchange", other: "Exchange") -> None:
        """Let `other` answer the request of the `first` exchange, which was read."""
        ...

    def send_continue(self) -> None:
        """Let the client send the body that it holds back (100)."""
        ...

    def answer_json(self, request_id: bytes, body: bytes) -> None:
        """Write the answer 200 with JSON; the connection stays open.  The exchange is over."""
        ...

    def answer(
        self, status: int, headers: Fields, body: bytes | BufferList, *, keep_alive: bool
    ) -> None:
        """Write an answer, whose content-length is added.  The exchange is over."""
        ...

    def begin(self, status: int, headers: Fields, *, keep_alive: bool, is_chunked: bool) -> None:
        """Write the head of an answer; HTTP/1.1 cuts a body without content-length into chunks."""
        ...

    def write(self, body: bytes) -> None:
        """Write a part of the answer's body."""
        ...

    def finish(self) -> None:
        """End the answer.  The exchange is over."""
        ...

    def close(self) -> None:
        """End an incomplete answer, after what was written; the client notices."""
        ...

    def abort(self) -> None:
        """End an incomplete answer at once; what was written may be lost."""
        ...


class Exchange:
    """A request whose head was read, and its answer.

    The connection calls `start` once, when earlier requests are answered, `feed` with each part of
    the body, or `filled` if there is a `body_buffer`, and then `end`:

        head --> feed* | body_buffer, filled* --> end
          `----> start (before, between or after these) --> output.answer() or finish()

    When the answer is complete, `status` and `num_sent` (bytes of its body) are set.  `entry` is
    for the access log and `span` for traces, if these are on.
    """

    protocol = "other"
    status: int | str  # the name of the status if it is not that of HTTP
    is_timed = True  # the body has to arrive within `body_timeout`
    is_cut = False  # the server has ended the answer before it was complete
    __slots__ = (
        "entry",
        "has_responded",
        "is_complete",
        "keep_alive",
        "num_sent",
        "output",
        "request_id",
        "span",
        "status",
    )

    def __init__(self, output: ExchangeOutput, keep_alive: bool) -> None:
        self.output = output
        self.entry: Entry | None = None
        self.span: RequestSpan | None = None
        self.request_id = b""
        self.num_sent = 0
        self.keep_alive = keep_alive  # the connection stays open after the answer
        self.is_complete = False  # all of the request was read
        self.has_responded = False  # a part of the answer was written

    def start(self) -> None:
        """Allow the exchange to write."""

    def feed(self, data: bytes) -> None:
        """Take a part of the body."""

    def body_buffer(self, size: int) -> memoryview | None:
        """Return a buffer for a body of `size` bytes; None if it is to be fed in parts."""
        return None

    def filled(self, num_bytes: int) -> bool:
        """Note bytes that were read into the buffer; return False to discard the rest."""
        return False

    def end(self) -> None:
        """Note the end of the body."""
        self.is_complete = True

    def disconnect(self) -> None:
        """Drop the answer: the client has disconnected, or its request is invalid."""

    def expire(self, error: ServingError) -> None:
        """Answer with `error`, or end the answer if it has begun: the time is over."""
        self.output.abort()

    def stop(self) -> None:
        """Note that the server stops; called often until the exchange is over."""

    def expire_body(self) -> bool:
        """End the exchange, as its body is too slow; return False if it is to be answered 408."""
        return False

    def resume(self) -> None:
        """Continue to write: the transport is writable again."""

    def route_path(self) -> str:
        """Return the path of the route as it was declared, "" if there is none."""
        return ""

    def complete_entry(self, entry: Entry) -> None:
        """Add the fields of this request to its entry in the access log."""
        entry.request_id = self.request_id.decode()


class RefusedExchange(Exchange):
    """The answer to data that cannot be served as HTTP; the last of its connection."""

    def __init__(self, output: ExchangeOutput, refusal: HeadRefusal) -> None:
        super().__init__(output, False)
        self._refusal = refusal

    def start(self) -> None:
        self.has_responded = True
        text = self._refusal.text.encode()
        self.status, self.num_sent, self.request_id = self._refusal.status, len(text), id_of(None)
        fields = [(b"content-type", b"text/plain; charset=utf-8"), (NAME, self.request_id)]
        self.output.answer(self.status, fields, text, keep_alive=False)


def length_of(body: Sized) -> tuple[bytes, bytes]:
    """Return the header content-length for a body."""
    return b"content-length", b"%d" % len(body)


def head_of(status: int, headers: Fields, *, keep_alive: bool) -> bytes:
    """Return the status line and the headers of an answer."""
    lines = [b"HTTP/1.1 %d %b\r\n" % (status, _REASONS.get(status, b""))]
    lines += [b"%b: %b\r\n" % header for header in headers]
    if not keep_alive:
        lines.append(b"connection: close\r\n")
    lines.append(b"\r\n")
    return b"".join(lines)
