"""HTTP connections: their exchanges in the order of their requests, and its end.

Knows no path and no protocol above HTTP: `SharedState.open_exchange` makes the exchanges.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

from mindspore_serving.core.buffers import BufferList, in_memory
from mindspore_serving.errors import DeadlineExceeded, ServableUnavailable
from mindspore_serving.frontends.access import CLIENT_LEFT
from mindspore_serving.frontends.http.exchange import (
    Exchange,
    Fields,
    Flow,
    RefusedExchange,
    head_of,
    length_of,
)
from mindspore_serving.frontends.http.head import HeadRefusal, RequestHead
from mindspore_serving.frontends.http.parser import RequestParser
from mindspore_serving.frontends.http.shared import SharedState
from mindspore_serving.frontends.http2.connection import Http2Connection
from mindspore_serving.frontends.http2.frames import PREFACE

_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_JSON = (
    b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nx-request-id: %b\r\n"
    b"content-length: %d\r\n\r\n%b"
)
_CHUNKED = (b"transfer-encoding", b"chunked")
_MAX_DISCARDED = 16 << 20  # bytes read after an error, in addition to the size of a body


class HttpConnection(asyncio.BufferedProtocol):
    """A connection, whose requests are answered one at a time.

    While pipelined requests are queued, one read follows each answer, and none if many are queued:
    that bounds the memory that a client can use.  A client that closes its end has disconnected:
    TCP does not tell whether it still reads, and its requests are cancelled at once.
    """

    transport: asyncio.Transport
    flow: Flow

    def __init__(self, shared: SharedState, on_closed: Callable[[], None] = lambda: None) -> None:
        self._on_closed = on_closed
        self.memory, self.pool = shared.memory.allowance(None), shared.pool
        self._shared = shared
        self._loop = asyncio.get_running_loop()
        self._parser = RequestParser(shared.limits, self._open, shared.accepts_upgrade)
        self._exchanges: deque[Exchange] = deque()  # unanswered; the first is started
        self._is_new = True  # nothing was parsed
        self._preface = b""  # the beginning of the connection preface of HTTP/2
        self._is_chunked = False  # the body of the answer
        self._is_discarding = False  # after an error: data are read, not parsed
        self._num_discarded = 0
        # Only `end_if_late` reads a clock.  Whether anything was read or answered since its last
        # call, and the time of its last call that found so:
        self._is_active = True
        self._active_at = 0.0
        # The incomplete head or request, and the number of unsent bytes, at its last call, each
        # with the time since when it is the same:
        self._awaited: tuple[object | None, float] = (None, 0.0)
        self._unsent = (0, 0.0)

    # --- called by the event loop ---

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.transport, self.flow = transport, Flow(transport)
        self.memory = self._shared.memory.allowance(transport.get_extra_info("peername"))
        self._shared.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._shared.connections.discard(self)
        self._shared.unsent.discard(self)
        self._on_closed()
        for exchange in self._exchanges:
            exchange.disconnect()
            if not exchange.is_cut:
                exchange.status = CLIENT_LEFT
            self._shared.count(exchange)
        self._exchanges.clear()
        self._is_discarding = True
        self.flow.empty()
        self._parser.close()
        del self._parser  # breaks a reference cycle

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._parser.buffer or self._shared.buffer

    def buffer_updated(self, nbytes: int) -> None:
        self._is_active = True
        if self._is_discarding:
            self._discard(nbytes)
            return
        try:
            if self._is_new and not self._is_http1(nbytes):
                return
            if self._parser.buffer is None:
                self._parser.feed(self._shared.buffer[:nbytes])
            else:
                self._parser.fill(nbytes)
        except HeadRefusal as refusal:
            self._refuse(refusal)

    def _is_http1(self, nbytes: int) -> bool:
        """Return whether the first bytes are to be parsed.

        HTTP/2 begins with its preface, over TLS too; its connection takes over then.
        """
        if not self._shared.speaks_http1:
            self._take_over(self._shared.buffer[:nbytes])
            return False
        if self._shared.buffer[0] != PREFACE[0] and not self._preface:
            self._is_new = False
            return True
        data = self._preface + self._shared.buffer[:nbytes]
        if data[: len(PREFACE)] == PREFACE[: len(data)]:
            self._preface = data
            if len(data) >= len(PREFACE):
                self._take_over(memoryview(data))
            return False
        self._is_new = False
        if self._preface:
            self._parser.feed(memoryview(self._preface))
        return True

    def _take_over(self, data: memoryview) -> None:
        """Let a connection of HTTP/2 go on."""
        self._shared.connections.discard(self)
        other = Http2Connection(self._shared, self._on_closed)
        self.transport.set_protocol(other)
        other.connection_made(self.transport)
        other.receive(data)
        self._parser.close()
        del self._parser

    def pause_writing(self) -> None:
        self.flow.fill()
        self._shared.unsent.add(self)

    def resume_writing(self) -> None:
        self.flow.empty()
        self._shared.unsent.discard(self)
        if self._exchanges:
            self._exchanges[0].resume()

    # --- called by exchanges ---

    def resume_reading(self) -> None:
        """Read on, unless many requests are queued.  Only reading detects that the client left."""
        if len(self._exchanges) <= self._shared.limits.max_pipelined and not self._is_discarding:
            self.flow.resume_reading()

    def replace(self, first: Exchange, other: Exchange) -> None:
        """Let `other` answer the request of `first`, which was read."""
        assert self._exchanges[0] is first
        self._exchanges[0] = other

    def describe(self, name: str) -> Any:
        return self.transport.get_extra_info(name)

    def send_continue(self) -> None:
        self.transport.write(_CONTINUE)

    def answer_json(self, request_id: bytes, body: bytes) -> None:
        self.transport.write(_JSON % (request_id, len(body), body))
        self._finished()

    def answer(
        self, status: int, headers: Fields, body: bytes | BufferList, *, keep_alive: bool
    ) -> None:
        head = head_of(status, (*headers, length_of(body)), keep_alive=keep_alive)
        if isinstance(body, BufferList):
            self.transport.writelines((head, *map(in_memory, body.buffers)))
        else:
            self.transport.write(head + body)
        self._finished()

    def begin(self, status: int, headers: Fields, *, keep_alive: bool, is_chunked: bool) -> None:
        self._is_chunked = is_chunked
        fields = (*headers, _CHUNKED) if is_chunked else headers
        self.transport.write(head_of(status, fields, keep_alive=keep_alive))

    def write(self, body: bytes) -> None:
        self.transport.write(b"%x\r\n%b\r\n" % (len(body), body) if self._is_chunked else body)

    def finish(self) -> None:
        if self._is_chunked:
            self._is_chunked = False
            self.transport.write(b"0\r\n\r\n")
        self._finished()

    def close(self) -> None:
        self.transport.close()

    def abort(self) -> None:
        self.transport.abort()

    def _finished(self) -> None:
        """Remove the first exchange, whose answer is complete."""
        exchange = self._exchanges.popleft()
        self._shared.count(exchange)
        self._is_active = True
        if exchange.is_complete and exchange.keep_alive:
            if self._exchanges:  # no recursion: many can be answered at once
                self._loop.call_soon(self._start_next)
            else:
                self.flow.resume_reading()
        elif exchange.is_complete and not self._is_discarding:
            self.transport.close()
        else:
            self._linger()

    # --- requests ---

    def _open(self, head: RequestHead) -> Exchange:
        """Return the exchange of the next request."""
        last = self._exchanges[-1] if self._exchanges else None
        is_ending = last is not None and not last.keep_alive
        if is_ending or self._is_discarding or self.transport.is_closing():
            raise HeadRefusal(400, "No request can follow the last one.")  # only stops the parser
        exchange = self._shared.open_exchange(head, self)
        if self._shared.is_stopping:
            exchange.keep_alive = False
        self._exchanges.append(exchange)
        if self._shared.responses.is_logged:
            exchange.entry = self._shared.entry(self.describe("peername"), head)
        if last is None:
            exchange.start()
        else:
            self.flow.pause_reading()
        return exchange

    def _start_next(self) -> None:
        if self._exchanges:
            self._exchanges[0].start()
            self.resume_reading()

    def _refuse(self, refusal: HeadRefusal) -> None:
        """Stop parsing, and answer `refusal` after the complete requests before it."""
        if self._is_discarding or self.transport.is_closing():
            return
        self._discard_rest()
        last = self._exchanges[-1] if self._exchanges else None
        if last is not None and not last.is_complete:
            last.disconnect()
            self._exchanges.pop()
            if last.has_responded:
                self.transport.close()
                return
        elif last is not None and not last.keep_alive:
            self.flow.pause_reading()
            return
        refused = RefusedExchange(self, refusal)
        if self._shared.responses.is_logged:
            refused.entry = self._shared.entry(self.describe("peername"))
        self._exchanges.append(refused)
        if len(self._exchanges) == 1:
            self._exchanges[0].start()
        else:
            self.flow.pause_reading()

    # --- the end ---

    def _linger(self) -> None:
        """Close the connection when the client has closed it, or after `linger_timeout`.

        Closing it while the client still sends would reset it before the client read the answer.
        """
        self._discard_rest()
        if self.transport.is_closing():
            return
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.flow.resume_reading()
        self._loop.call_later(self._shared.limits.linger_timeout, self.transport.close)

    def _discard_rest(self) -> None:
        self._is_discarding = True
        self._parser.buffer = None

    def _discard(self, num_bytes: int) -> None:
        self._num_discarded += num_bytes
        if self._num_discarded > self._shared.max_body + _MAX_DISCARDED:
            self.transport.abort()

    def end_if_late(self, now: float) -> None:
        """End the connection if its client sends or reads too slowly, or an answer takes too long.

        Called every few seconds; `now` is the loop's time.
        """
        first = self._exchanges[0] if self._exchanges else None
        if first is not None:
            self._await(first, now)
            timeout = self._shared.limits.request_timeout
            if now - self._awaited[1] > timeout:
                first.expire(DeadlineExceeded(f"no answer within {timeout:g} seconds"))
                return
        unsent = self.num_unsent
        if unsent:
            self._end_if_not_read(unsent, now)
        else:
            self._end_if_not_sent(first, now)

    def _end_if_not_read(self, unsent: int, now: float) -> None:
        """Abort if the client has read none of the `unsent` bytes for `idle_timeout`."""
        if unsent != self._unsent[0]:
            self._unsent = (unsent, now)
        elif now - self._unsent[1] > self._shared.limits.idle_timeout:
            self.transport.abort()  # close() would wait until all is read

    def _end_if_not_sent(self, first: Exchange | None, now: float) -> None:
        """End the connection if the client sends nothing, or a head or body too slowly."""
        limits = self._shared.limits
        if self._is_active:
            self._is_active, self._active_at = False, now
        if self._is_discarding or (first and (first.is_complete or not first.is_timed)):
            return  # the client waits for an answer, or is silent as long as it likes
        awaited = self._parser.unread_head if first is None else first
        self._await(awaited, now)
        is_silent = now - self._active_at > limits.idle_timeout
        timeout = limits.head_timeout if first is None else limits.body_timeout
        if awaited is None and is_silent:
            self.transport.close()
        elif awaited is not None and (is_silent or now - self._awaited[1] > timeout):
            self._refuse(HeadRefusal(408, "The request arrived too slowly."))

    def _await(self, awaited: object | None, now: float) -> None:
        if awaited is not self._awaited[0]:
            self._awaited = (awaited, now)

    def shut_down(self, *, closes: bool) -> None:
        """Close after the answers to received requests; an idle connection only if `closes`."""
        if self._exchanges:
            self._exchanges[-1].keep_alive = False
            self._exchanges[0].stop()
        elif closes and self._parser.unread_head is None:
            self.transport.close()

    def refuse_incomplete(self) -> None:
        """Refuse an incomplete request, as the server stops."""
        first = self._exchanges[0] if self._exchanges else None
        if self._is_discarding:
            return
        if first is None:
            self._refuse(HeadRefusal(503, "The server is stopping."))
        elif not (first.is_complete or first.has_responded):
            first.expire(ServableUnavailable("the server is stopping"))

    @property
    def has_pending_answer(self) -> bool:
        """True if the answer to a complete request is not yet written and sent."""
        is_pending = bool(self._exchanges) and self._exchanges[0].is_complete
        return is_pending or self.num_unsent > 0

    @property
    def num_unsent(self) -> int:
        """Bytes of answers that wait to be sent."""
        return self.transport.get_write_buffer_size()
