"""HTTP/2 connections: the frames that they take, and their end (RFC 9113).

Knows no path and no protocol above HTTP: `SharedState.open_exchange` makes the exchanges.
"""

import asyncio
from collections.abc import Callable

from mindspore_serving.errors import ServableUnavailable
from mindspore_serving.frontends.http.shared import SharedState
from mindspore_serving.frontends.http2.budget import RESET, SWEPT, FrameBudget
from mindspore_serving.frontends.http2.frames import (
    DEFAULT_WINDOW,
    MAX_WINDOW,
    PREFACE,
    ConnectionFault,
    ErrorCode,
    Flag,
    FrameReader,
    FrameType,
    Setting,
    StreamFault,
    frame,
    read_settings,
    read_u32,
    settings_payload,
    u32,
    without_padding,
)
from mindspore_serving.frontends.http2.sender import FrameSender
from mindspore_serving.frontends.http2.stream import RECEIVE_WINDOW
from mindspore_serving.frontends.http2.streams import StreamTable

CONNECTION_WINDOW = 16 << 20  # bytes that all streams of a connection may send ahead
MAX_FRAME = 64 << 10  # bytes of a payload that the client may send
_MAX_DISCARDED = 16 << 20  # bytes read after GOAWAY, so that the client can read it
_MAX_TEXT = 200  # characters of a GOAWAY, which may cite what the client has sent
_PRIORITY_SIZE, _RESET_SIZE, _PING_SIZE, _GOAWAY_SIZE = 5, 4, 8, 8


class Http2Connection(asyncio.BufferedProtocol):
    """A connection, whose requests are answered side by side."""

    transport: asyncio.Transport
    streams: StreamTable

    def __init__(self, shared: SharedState, on_closed: Callable[[], None] = lambda: None) -> None:
        self._shared, self._on_closed = shared, on_closed
        self._frames = FrameReader(MAX_FRAME, self._take_frame, self._take_data)
        self._budget = FrameBudget()
        self._sender: FrameSender
        self._preface = PREFACE  # what has not arrived of it
        self._has_settings = False
        self._block: tuple[int, bool, bytearray] | None = None  # stream, its end, fields so far
        self._window = CONNECTION_WINDOW
        self._is_draining = self._is_discarding = False
        self._num_discarded = 0
        # As in `HttpConnection`, only `end_if_late` reads a clock.
        self._is_active, self._active_at = True, 0.0
        self._unsent = (0, 0.0)  # bytes at its last call, and since when they are the same
        self._inside_since: float | None = None  # it waits for the rest of a head
        self._has_pinged = False

    # --- called by the event loop ---

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.transport = transport
        self._sender = FrameSender(transport, self._budget)
        memory = self._shared.memory.allowance(transport.get_extra_info("peername"))
        self.streams = StreamTable(self._shared, memory, self._sender, self._budget)
        self._shared.connections.add(self)
        limits = self._shared.limits
        settings = {
            Setting.MAX_CONCURRENT_STREAMS: limits.max_streams,
            Setting.INITIAL_WINDOW_SIZE: RECEIVE_WINDOW,
            Setting.MAX_FRAME_SIZE: MAX_FRAME,
            Setting.MAX_HEADER_LIST_SIZE: limits.max_head,
        }
        if self._shared.accepts_upgrade is not None:
            settings[Setting.ENABLE_CONNECT_PROTOCOL] = 1
        self._sender.send(frame(FrameType.SETTINGS, 0, 0, settings_payload(settings)))
        self._sender.send_credit(0, CONNECTION_WINDOW - DEFAULT_WINDOW)

    def connection_lost(self, exc: Exception | None) -> None:
        self._shared.connections.discard(self)
        self._shared.unsent.discard(self._sender)
        self._on_closed()
        self._is_discarding = True
        for stream in self.streams:
            self.streams.forget(stream)
        del self._frames  # breaks a reference cycle

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._shared.buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.receive(self._shared.buffer[:nbytes])

    def receive(self, data: memoryview) -> None:
        """Take bytes of the client, which are valid until this returns."""
        self._is_active, self._has_pinged = True, False
        if self._is_discarding:
            self._discard(len(data))
            return
        try:
            if self._preface:
                data = self._check_preface(data)
            self._frames.feed(data)
        except ConnectionFault as fault:
            self._end(fault.code, str(fault))
        if self.streams.refused_from is not None and not self.streams:
            self._end(ErrorCode.NO_ERROR)

    def pause_writing(self) -> None:
        self._sender.is_full = True
        self._shared.unsent.add(self._sender)

    def resume_writing(self) -> None:
        self._sender.is_full = False
        self._sender.send_blocked()
        self.streams.move_on(self.streams)

    # --- frames of the client ---

    def _check_preface(self, data: memoryview) -> memoryview:
        size = min(len(self._preface), len(data))
        if data[:size] != self._preface[:size]:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "the connection preface is wrong")
        self._preface = self._preface[size:]
        return data[size:]

    def _take_frame(self, kind: int, flags: int, number: int, payload: memoryview) -> None:
        is_first_settings = kind == FrameType.SETTINGS and not flags & Flag.ACK
        if not self._has_settings and not is_first_settings:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "the first frame is not SETTINGS")
        is_next = kind == FrameType.CONTINUATION and self._block and number == self._block[0]
        if self._block is not None and not is_next:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "a field block is interrupted")
        if kind == FrameType.DATA:
            data = without_padding(flags, payload)
            self._take_part(number, data, len(payload), is_last=bool(flags & Flag.END_STREAM))
            return
        if kind != FrameType.HEADERS:
            self._budget.spend()
        if kind < len(_TAKERS):
            _TAKERS[kind](self, flags, number, payload)

    def _take_data(self, number: int, data: memoryview, is_last: bool) -> None:
        if not self._has_settings or self._block is not None:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "DATA where another frame is expected")
        self._take_part(number, data, len(data), is_last=is_last)

    def _take_part(self, number: int, data: memoryview, size: int, *, is_last: bool) -> None:
        """Take a part of a body, and give the client its window back when half is spent."""
        if not data:
            self._budget.spend()
        self._window -= size
        if self._window < 0:
            text = "the window of the connection is over"
            raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, text)
        if self._window < CONNECTION_WINDOW // 2:
            self._sender.send_credit(0, CONNECTION_WINDOW - self._window)
            self._window = CONNECTION_WINDOW
        self.streams.take_body(number, data, size, is_last=is_last)

    def _take_headers(self, flags: int, number: int, payload: memoryview) -> None:
        if not number & 1:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "HEADERS of no stream of a client")
        if flags == Flag.END_HEADERS and len(payload) <= self._shared.limits.max_head:
            self.streams.take_block(number, bytes(payload), is_last=False)  # as most requests have
            return
        block = without_padding(flags, payload)
        if flags & Flag.PRIORITY:
            self._check_priority(number, block[:_PRIORITY_SIZE])
            block = block[_PRIORITY_SIZE:]
        self._block = (number, bool(flags & Flag.END_STREAM), bytearray(block))
        self._end_block(flags)

    def _take_continuation(self, flags: int, number: int, payload: memoryview) -> None:
        if self._block is None:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "CONTINUATION of no field block")
        self._block[2].extend(payload)
        self._end_block(flags)

    def _end_block(self, flags: int) -> None:
        assert self._block is not None
        number, is_last, block = self._block
        if len(block) > self._shared.limits.max_head:
            # Its fields are unknown then, also to the table of later blocks.
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, "the headers are too big")
        if flags & Flag.END_HEADERS:
            self._block = None
            self.streams.take_block(number, bytes(block), is_last=is_last)

    def _take_priority(self, _: int, number: int, payload: memoryview) -> None:
        if not number:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "PRIORITY of no stream")
        self._check_priority(number, payload)

    def _check_priority(self, number: int, payload: memoryview) -> None:
        """Check a priority, which has no effect."""
        if len(payload) != _PRIORITY_SIZE:
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "a priority is not 5 bytes")
        if read_u32(payload) == number:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "a stream depends on itself")

    def _take_reset(self, _: int, number: int, payload: memoryview) -> None:
        if len(payload) != _RESET_SIZE:
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "an RST_STREAM is not 4 bytes")
        if self.streams.is_idle(number):
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "RST_STREAM of an idle stream")
        self._budget.spend(RESET)
        stream = self.streams.get(number)
        if stream is not None:
            self.streams.forget(stream)

    def _take_settings(self, flags: int, number: int, payload: memoryview) -> None:
        if number:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "SETTINGS of a stream")
        if flags & Flag.ACK:
            if payload:
                raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "an acknowledgement has settings")
            return
        self._has_settings = True
        for name, value in dict(read_settings(payload)).items():  # the last of each
            if name == Setting.INITIAL_WINDOW_SIZE:
                self._sender.change_windows(value, self.streams)
            elif name == Setting.MAX_FRAME_SIZE:
                self._sender.max_frame = value
        self._sender.send(frame(FrameType.SETTINGS, Flag.ACK, 0))
        self.streams.move_on(self._sender.send_blocked())

    def _refuse_promise(self, _: int, number: int, payload: memoryview) -> None:
        raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "PUSH_PROMISE of a client")

    def _take_ping(self, flags: int, number: int, payload: memoryview) -> None:
        if number:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "PING of a stream")
        if len(payload) != _PING_SIZE:
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "a PING is not 8 bytes")
        if not flags & Flag.ACK:
            self._sender.send(frame(FrameType.PING, Flag.ACK, 0, bytes(payload)))

    def _take_goaway(self, _: int, number: int, payload: memoryview) -> None:
        """Check a GOAWAY: the client opens no more streams, and closes after its answers."""
        if number:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "GOAWAY of a stream")
        if len(payload) < _GOAWAY_SIZE:
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "a GOAWAY is cut")

    def _take_window_update(self, _: int, number: int, payload: memoryview) -> None:
        if len(payload) != _RESET_SIZE:
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "a WINDOW_UPDATE is not 4 bytes")
        stream, more = self.streams.get(number), read_u32(payload)
        if not number:
            code = self._sender.grow(None, more)
            if code:
                raise ConnectionFault(code, f"the window cannot grow by {more}")
        elif stream is not None:
            code = self._sender.grow(stream, more)
            if code:
                self.streams.fail(number, StreamFault(code, f"the window cannot grow by {more}"))
        elif self.streams.is_idle(number):
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "WINDOW_UPDATE of an idle stream")
        if self._sender.blocked:
            self.streams.move_on(self._sender.send_blocked())

    # --- the end ---

    def _end(self, code: ErrorCode, text: str = "") -> None:
        """Say why, drop all streams, and close when the client has closed, or after a while."""
        if self._is_discarding:
            return
        self._is_discarding = True
        self._send_goaway(self.streams.last_id, code, text)
        for stream in self.streams:
            self.streams.forget(stream)
        self._sender.flush()
        if self.transport.is_closing():
            return
        if self.transport.can_write_eof():
            self.transport.write_eof()
        timeout = 0.0 if code == ErrorCode.NO_ERROR else self._shared.limits.linger_timeout
        asyncio.get_running_loop().call_later(timeout, self.transport.close)

    def _send_goaway(self, last_id: int, code: ErrorCode, text: str = "") -> None:
        payload = u32(last_id) + u32(code) + text[:_MAX_TEXT].encode()
        self._sender.send(frame(FrameType.GOAWAY, 0, 0, payload))

    def _discard(self, num_bytes: int) -> None:
        self._num_discarded += num_bytes
        if self._num_discarded > self._shared.max_body + _MAX_DISCARDED:
            self.abort()

    def abort(self) -> None:
        self.transport.abort()

    def end_if_late(self, now: float) -> None:
        if self._is_discarding:
            return
        self._budget.earn(SWEPT)
        self.streams.end_if_late(now)
        if self._is_active:
            self._is_active, self._active_at = False, now
        unsent, limits = self._sender.num_unsent, self._shared.limits
        if unsent != self._unsent[0] or not unsent:
            self._unsent = (unsent, now)
        elif now - self._unsent[1] > limits.idle_timeout:
            self.abort()  # the client reads nothing
            return
        if not self._has_settings or self._block is not None:
            self._inside_since = now if self._inside_since is None else self._inside_since
            if now - self._inside_since > limits.head_timeout:
                self._end(ErrorCode.CANCEL, "the headers arrived too slowly")
        else:
            self._inside_since = None
            self._end_if_silent(now - self._active_at)

    def _end_if_silent(self, seconds: float) -> None:
        """End an idle connection; ask a silent client whether it waits for its answers."""
        limits = self._shared.limits
        if not self.streams:
            if seconds > limits.idle_timeout:
                self._end(ErrorCode.NO_ERROR, "idle")
        elif seconds > limits.keepalive_time + limits.keepalive_timeout:
            self.abort()
        elif seconds > limits.keepalive_time and not self._has_pinged:
            self._has_pinged = True
            self._sender.send(frame(FrameType.PING, 0, 0, bytes(_PING_SIZE)))

    def shut_down(self, *, closes: bool) -> None:
        for stream in self.streams:
            if stream.exchange is not None:
                stream.exchange.stop()
        if not self._is_draining:
            self._is_draining = True
            self._send_goaway(MAX_WINDOW, ErrorCode.NO_ERROR)
        elif closes and not self.streams:
            self._end(ErrorCode.NO_ERROR)
        elif closes and self.streams.refused_from is None:
            self.streams.refused_from = self.streams.last_id + 2
            self._send_goaway(self.streams.last_id, ErrorCode.NO_ERROR)

    def refuse_incomplete(self) -> None:
        for stream in self.streams:
            exchange = stream.exchange
            if exchange is not None and not (stream.has_ended or stream.has_head):
                exchange.expire(ServableUnavailable("the server is stopping"))
        self.shut_down(closes=True)

    @property
    def has_pending_answer(self) -> bool:
        """True if the answer to a complete request is not yet written and sent."""
        return any(each.has_ended for each in self.streams) or self._sender.num_unsent > 0


_TAKERS = (
    Http2Connection._refuse_promise,  # DATA, which is taken before
    Http2Connection._take_headers,
    Http2Connection._take_priority,
    Http2Connection._take_reset,
    Http2Connection._take_settings,
    Http2Connection._refuse_promise,
    Http2Connection._take_ping,
    Http2Connection._take_goaway,
    Http2Connection._take_window_update,
    Http2Connection._take_continuation,
)
