"""One request and its answer: the interface between an exchange and its connection."""

import asyncio
import http
from collections.abc import Iterable, Sized
from typing import Protocol

from mindspore_serving.errors import ServingError
from mindspore_serving.frontends.access import Entry
from mindspore_serving.frontends.http.body_pool import BodyPool
from mindspore_serving.frontends.http.head import HeadRefusal
from mindspore_serving.frontends.memory import Allowance
from mindspore_serving.frontends.request_id import NAME, id_of
from mindspore_serving.tracing.request_span import RequestSpan

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_REASONS = {status.value: status.phrase.encode() for status in http.HTTPStatus}


class Flow:
    """`is_full` while much of what was written is not sent, since the client does not read it."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._room = asyncio.Event()
        self._room.set()
        self._is_paused = False
        self.is_full = False

    def pause_reading(self) -> None:
        if not self._is_paused:
            self._is_paused = True
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if self._is_paused:
            self._is_paused = False
            self._transport.resume_reading()

    def fill(self) -> None:
        """Much of what was written is not sent."""
        self.is_full = True
        self._room.clear()

    def empty(self) -> None:
        """Most of it is sent, or the connection is lost."""
        self.is_full = False
        self._room.set()

    async def drain(self) -> None:
        """Wait until there is room."""
        await self._room.wait()


class ExchangeOutput(Protocol):
    """A connection, as its exchanges see it."""

    transport: asyncio.Transport
    flow: Flow
    memory: Allowance
    pool: BodyPool

    def resume_reading(self) -> None:
        """Read on, unless requests wait."""
        ...

    def replace(self, first: "Exchange", other: "Exchange") -> None:
        """The `first` exchange, whose request was read, is answered by the `other`."""
        ...

    def finished(self) -> None:
        """The first exchange has written all of its answer."""
        ...


class Exchange:
    """A request whose head was read.

    `start` is called once, when the answers to earlier requests are written; `feed` with each part
    of the body, or `filled` if it has a `room` for that, then `end`.  At the end of the answer
    `status` and `num_sent`, the bytes of its body, are known.  `entry` is for the access log and
    `span` for traces, if there are any.
    """

    protocol = "other"
    status: int
    is_cut = False  # we have ended the connection before the answer was complete
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
        self.keep_alive = keep_alive  # whether the connection may go on after the answer
        self.is_complete = False  # the request was read to its end
        self.has_responded = False  # a part of the answer was written

    def start(self) -> None:
        """It may write."""

    def feed(self, data: bytes) -> None:
        """A part of the body was read."""

    def room(self, size: int) -> memoryview | None:
        """Where the body, of `size` bytes, is to lie; None for one that is to be fed."""
        return None

    def filled(self, num_bytes: int) -> bool:
        """So many bytes more were read into the room.  False if it is not wanted any more."""
        return False

    def end(self) -> None:
        self.is_complete = True

    def disconnect(self) -> None:
        """No answer is wanted: the client has left, or its request is broken."""

    def expire(self, error: ServingError) -> None:
        """It has taken too long: answer `error` if there is no answer, else cut that off."""
        self.output.transport.abort()

    def resume(self) -> None:
        """There is room for more output again."""

    def route_path(self) -> str:
        """The path as its protocol declares it, "" if there is no such route."""
        return ""

    def complete_entry(self, entry: Entry) -> None:
        """Put what is known of the request into its line of the access log."""
        entry.request_id = self.request_id.decode()


class RefusedExchange(Exchange):
    """The answer to what cannot be served as HTTP; the last of its connection."""

    def __init__(self, output: ExchangeOutput, refusal: HeadRefusal) -> None:
        super().__init__(output, False)
        self._refusal = refusal

    def start(self) -> None:
        self.has_responded = True
        text = self._refusal.text.encode()
        self.status, self.num_sent, self.request_id = self._refusal.status, len(text), id_of(None)
        name = (NAME, self.request_id)
        fields = [(b"content-type", b"text/plain; charset=utf-8"), name]
        head = head_of(self._refusal.status, [*fields, length_of(text)], keep_alive=False)
        self.output.transport.write(head + text)
        self.output.finished()


def length_of(body: Sized) -> tuple[bytes, bytes]:
    return b"content-length", b"%d" % len(body)


def head_of(status: int, headers: Iterable[tuple[bytes, bytes]], *, keep_alive: bool) -> bytes:
    lines = [b"HTTP/1.1 %d %b\r\n" % (status, _REASONS.get(status, b""))]
    lines += [b"%b: %b\r\n" % header for header in headers]
    if not keep_alive:
        lines.append(b"connection: close\r\n")
    lines.append(b"\r\n")
    return b"".join(lines)
