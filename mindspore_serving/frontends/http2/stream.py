"""A stream: the body of its request, its answer, and both windows of its flow control."""

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Any, Protocol

from mindspore_serving.core.buffers import Buffer, BufferList, in_memory
from mindspore_serving.frontends.http.body_pool import BodyPool
from mindspore_serving.frontends.http.exchange import (
    Exchange,
    Fields,
    Flow,
    RefusedExchange,
    length_of,
)
from mindspore_serving.frontends.http.head import HeadRefusal, RequestHead
from mindspore_serving.frontends.http.parser import LARGE_BODY
from mindspore_serving.frontends.http2.fields import encode_fields, encode_head, literal
from mindspore_serving.frontends.http2.frames import ErrorCode, StreamFault
from mindspore_serving.frontends.memory import Allowance
from mindspore_serving.frontends.request_id import NAME

RECEIVE_WINDOW = 1 << 20  # bytes of a stream that the client may send ahead
HIGH_WATER = 64 << 10  # unsent bytes of an answer beyond which its exchange waits
_CONTINUE = b"\x08\x03100"
_JSON = encode_head(200, [(b"content-type", b"application/json")])


class StreamConnection(Protocol):
    """A connection, as its streams see it."""

    memory: Allowance
    pool: BodyPool

    def describe(self, name: str) -> Any:
        """Return a fact about the transport."""
        ...

    def send_fields(self, stream: "Http2Stream", block: bytes) -> None:
        """Write a field block of the answer."""
        ...

    def send_whole(
        self, stream: "Http2Stream", block: bytes, body: Buffer, trailers: bytes | None
    ) -> bool:
        """Write a whole answer at once; return False if it has to be written in parts."""
        ...

    def send_pending(self, stream: "Http2Stream") -> None:
        """Write what the windows allow of the stream's pending data."""
        ...

    def give_credit(self, stream: "Http2Stream", amount: int) -> None:
        """Let the client send more of the request's body."""
        ...

    def finish(self, stream: "Http2Stream") -> None:
        """End the exchange of a stream, and the stream once its pending data is sent."""
        ...

    def reset(self, stream: "Http2Stream", code: ErrorCode) -> None:
        """End a stream at once."""
        ...


class StreamFlow(Flow):
    """Flow control of a stream; while reading is paused, the client gets no credit back."""

    def __init__(self) -> None:
        self._has_room = asyncio.Event()
        self._has_room.set()
        self.is_full = self.is_paused = False

    def pause_reading(self) -> None:
        self.is_paused = True

    def resume_reading(self) -> None:
        self.is_paused = False


class Http2Stream:
    """A stream of a connection; the output of one exchange.

    Made for each request: what most leave as it is has its default here, in place of a slot.
    """

    exchange: Exchange | None = None  # until its answer is whole
    receive_window = RECEIVE_WINDOW
    pending: deque[memoryview] | None = None  # parts of the answer's body
    num_pending = 0  # bytes of them
    trailers: bytes | None = None  # field block after the last data
    ends = False  # the answer is whole: its last frame ends the stream
    is_closed = False  # its last frame is written, or it was reset
    has_ended = False  # the request is whole
    has_head = False  # a head of the answer is written
    seen_at: float | None = None  # when the connection's sweep first met it
    num_discarded = 0  # bytes of the body after the answer
    num_free = num_held = 0  # bytes of it that the connection counts, see `StreamTable._hold`
    _flow: StreamFlow | None = None
    _credit = 0  # bytes received that the client has not been given back
    _num_received = 0
    _expected: int | None = None  # bytes of the body
    _buffer: memoryview | None = None

    def __init__(
        self, connection: StreamConnection, number: int, head: RequestHead, send_window: int
    ) -> None:
        self._connection, self.id, self.send_window = connection, number, send_window
        length = head.fields.get(b"content-length")
        if length is not None:
            self._expected = int(length)

    @property
    def flow(self) -> Flow:
        """Flow control of the stream, made when it is first needed."""
        if self._flow is None:
            self._flow = StreamFlow()
        return self._flow

    @property
    def is_full(self) -> bool:
        """True while the client does not read the answer fast enough."""
        return self._flow is not None and self._flow.is_full

    @property
    def memory(self) -> Allowance:
        """Memory of the connection for bodies."""
        return self._connection.memory

    @property
    def pool(self) -> BodyPool:
        """Memory of the server for large bodies."""
        return self._connection.pool

    # --- the request, by the connection ---

    def start(self, exchange: Exchange) -> None:
        """Start the exchange."""
        self.exchange, size = exchange, self._expected
        if size is not None and size >= LARGE_BODY:
            self._buffer = exchange.body_buffer(size)
        exchange.start()

    def receive(self, data: memoryview, size: int) -> None:
        """Take a part of the body, which counts as `size` bytes in its window.

        Raises StreamFault if the body is longer than its content-length.
        """
        self._num_received += len(data)
        if self._expected is not None and self._num_received > self._expected:
            raise StreamFault(ErrorCode.PROTOCOL_ERROR, "the body is longer than content-length")
        exchange, buffer = self.exchange, self._buffer
        if exchange is None:
            self.num_discarded += size
        elif buffer is None:
            exchange.feed(bytes(data))
        else:
            part = data[: len(buffer)]
            buffer[: len(part)] = part
            self._buffer = buffer[len(part) :] or None
            if not exchange.filled(len(part)):
                self._buffer = None
            if len(part) < len(data):
                exchange.feed(bytes(data[len(part) :]))
        self._count(size)

    def receive_into(self, buffer: memoryview) -> None:
        """Write the next bytes of the body to `buffer`, of which `filled` tells the exchange."""
        self._buffer = buffer or None

    def _count(self, amount: int) -> None:
        """Count received bytes, and give credit for them unless reading is paused."""
        self._credit += amount
        if self._credit >= RECEIVE_WINDOW // 2 and not (self.flow.is_paused or self.has_ended):
            amount, self._credit = self._credit, 0
            self._connection.give_credit(self, amount)

    def end(self) -> None:
        """Note the end of the request.  Raises StreamFault if it is cut."""
        self.has_ended = True
        if self._expected is not None and self._num_received < self._expected:
            raise StreamFault(ErrorCode.PROTOCOL_ERROR, "the body is shorter than content-length")
        self._buffer = None
        if self.exchange is not None:
            self.exchange.end()

    def refuse(self, refusal: HeadRefusal) -> None:
        """Answer the request with `refusal` in place of its exchange."""
        if self.exchange is not None:
            self.exchange.disconnect()
            refused = RefusedExchange(self, refusal)
            refused.entry, self.exchange = self.exchange.entry, refused
            refused.start()

    # --- the answer, by the exchange ---

    def describe(self, name: str) -> Any:
        return self._connection.describe(name)

    def resume_reading(self) -> None:
        self.flow.resume_reading()
        self._count(0)

    def replace(self, first: Exchange, other: Exchange) -> None:
        assert self.exchange is first
        self.exchange = other

    def send_continue(self) -> None:
        self._connection.send_fields(self, _CONTINUE)

    def answer_json(self, request_id: bytes, body: bytes) -> None:
        self.answer_block(_JSON + literal(NAME, request_id) + literal(*length_of(body)), (body,))

    def answer(
        self, status: int, headers: Fields, body: bytes | BufferList, *, keep_alive: bool
    ) -> None:
        block = encode_head(status, (*headers, length_of(body)))
        parts = [*map(in_memory, body.buffers)] if isinstance(body, BufferList) else (body,)
        self.answer_block(block, parts)

    def answer_block(
        self, block: bytes, parts: Sequence[Buffer], trailers: bytes | None = None
    ) -> None:
        """Write an answer whose head and trailers are encoded.  The exchange is over."""
        if self.is_closed:
            return
        self.has_head = True
        sends_whole = self._connection.send_whole
        if len(parts) != 1 or not sends_whole(self, block, parts[0], trailers):
            self._begin(block)
            for part in parts:
                self._put(part)
            self.trailers = trailers
        self.finish()

    def begin(self, status: int, headers: Fields, *, keep_alive: bool, is_chunked: bool) -> None:
        if not self.is_closed:
            self._begin(encode_head(status, headers))

    def _begin(self, block: bytes) -> None:
        self.has_head = True
        self._connection.send_fields(self, block)

    def write(self, body: Buffer) -> None:
        if not self.is_closed:
            self._put(body)
            self._connection.send_pending(self)

    def _put(self, body: Buffer) -> None:
        if body:
            view = memoryview(body).cast("B")
            if self.pending is None:
                self.pending = deque()
            self.pending.append(view)
            self.num_pending += len(view)

    def finish(self) -> None:
        if self.exchange is not None:
            self.ends = True
            self._connection.finish(self)

    def finish_with(self, trailers: Fields) -> None:
        """End the answer with trailers."""
        self.trailers = encode_fields(trailers)
        self.finish()

    def answer_fields(self, status: int, headers: Fields) -> None:
        """Write an answer without a body.  The exchange is over."""
        self.trailers, self.has_head = encode_head(status, headers), True
        self.finish()

    def close(self) -> None:
        self._connection.reset(self, ErrorCode.INTERNAL_ERROR)

    def abort(self) -> None:
        self._connection.reset(self, ErrorCode.CANCEL)

    # --- the answer, by the connection ---

    def take_pending(self, size: int) -> memoryview:
        """Remove and return at most `size` bytes of the pending data."""
        assert self.pending is not None
        part = self.pending[0]
        if len(part) > size:
            self.pending[0] = part[size:]
            part = part[:size]
        else:
            self.pending.popleft()
        self.num_pending -= len(part)
        return part

    def drop(self) -> None:
        """Forget the answer; what is written to it has no effect."""
        self.is_closed = True
        self.pending, self.num_pending, self._buffer = None, 0, None
        if self._flow is not None:
            self._flow.empty()
