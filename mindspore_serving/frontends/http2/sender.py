"""Writing of frames: both send windows, and the streams whose data waits for them."""

import asyncio
from collections import OrderedDict
from collections.abc import Iterable
from typing import Any

from mindspore_serving.core.buffers import Buffer
from mindspore_serving.frontends.http2.budget import FrameBudget
from mindspore_serving.frontends.http2.fields import NO_TABLE
from mindspore_serving.frontends.http2.frames import (
    DEFAULT_FRAME,
    DEFAULT_WINDOW,
    MAX_WINDOW,
    ConnectionFault,
    ErrorCode,
    Flag,
    FrameType,
    frame,
    frame_head,
    u32,
)
from mindspore_serving.frontends.http2.stream import HIGH_WATER, Http2Stream

_JOINED = 64 << 10  # bytes that are copied to leave in one write
WELL_FILLED = 256  # bytes of a DATA frame that earns budget


_LAST_FIELDS = Flag.END_HEADERS | Flag.END_STREAM


class FrameSender:
    """Writes the frames of a connection; those of one turn of the event loop leave together.

    `blocked` has the streams whose data waits for a window, or for a client that reads slowly
    (`is_full`).
    """

    def __init__(self, transport: asyncio.Transport, budget: FrameBudget) -> None:
        self._transport, self._budget = transport, budget
        self._loop = asyncio.get_running_loop()
        self._out: list[Buffer] = []
        self._start_of_block = NO_TABLE
        self.blocked: OrderedDict[int, Http2Stream] = OrderedDict()
        self.is_full = False
        self.window = DEFAULT_WINDOW  # bytes that the client takes on all streams
        self.stream_window, self.max_frame = DEFAULT_WINDOW, DEFAULT_FRAME  # the client's settings

    def send(self, data: Buffer) -> None:
        """Write a frame, or a part of one, at the end of this turn."""
        if not self._out:
            self._loop.call_soon(self.flush)
        self._out.append(data)

    def flush(self) -> None:
        """Write what was collected."""
        out, self._out = self._out, []
        if out and not self._transport.is_closing():
            if sum(map(len, out)) < _JOINED:  # a buffer of the transport for each costs more
                self._transport.write(b"".join(out))
            else:
                self._transport.writelines(out)

    def send_fields(self, stream: Http2Stream, block: bytes, last: int = 0) -> None:
        """Write a field block of a stream's answer; `last` is END_STREAM if it is the last."""
        block, self._start_of_block = self._start_of_block + block, b""
        kind, size = FrameType.HEADERS, self.max_frame
        for begin in range(0, len(block), size):
            flags = last | (Flag.END_HEADERS if begin + size >= len(block) else 0)
            self.send(frame(kind, flags, stream.id, block[begin : begin + size]))
            kind, last = FrameType.CONTINUATION, 0

    def send_reset(self, number: int, code: ErrorCode) -> None:
        """Write RST_STREAM."""
        self.send(frame(FrameType.RST_STREAM, 0, number, u32(code)))

    def send_credit(self, number: int, amount: int) -> None:
        """Write WINDOW_UPDATE: the client may send `amount` more bytes."""
        self.send(frame(FrameType.WINDOW_UPDATE, 0, number, u32(amount)))

    # --- data ---

    def send_whole(
        self, stream: Http2Stream, block: bytes, body: Buffer, trailers: bytes | None
    ) -> bool:
        """Write a whole answer at once; return False if it has to be written in parts."""
        size, max_frame = len(body), self.max_frame
        if size > self.window or size > stream.send_window or size > max_frame or self.is_full:
            return False
        if self._start_of_block:
            block = self._start_of_block + block
        if len(block) + len(trailers or b"") > max_frame:
            return False
        self._start_of_block = b""
        self.window -= size
        stream.send_window -= size
        stream.ends = stream.is_closed = True
        number, send = stream.id, self.send
        send(frame_head(FrameType.HEADERS, Flag.END_HEADERS, number, len(block)) + block)
        if trailers is None:
            send(frame_head(FrameType.DATA, Flag.END_STREAM, number, size))
            send(body)
        else:
            send(frame_head(FrameType.DATA, 0, number, size))
            send(body)
            send(frame_head(FrameType.HEADERS, _LAST_FIELDS, number, len(trailers)) + trailers)
        self._budget.earn(2)
        return True

    def send_pending(self, stream: Http2Stream) -> None:
        """Write what the windows allow of the data of a stream, and END_STREAM after the last."""
        while stream.num_pending and self._send_part(stream):
            pass
        if stream.num_pending:
            self.blocked[stream.id] = stream
            if stream.num_pending > HIGH_WATER:
                stream.flow.fill()
            return
        self.blocked.pop(stream.id, None)
        self._end_if_sent(stream)

    def _end_if_sent(self, stream: Http2Stream) -> None:
        """Write the end of an answer whose data is written."""
        if stream.ends and not stream.is_closed:
            if stream.trailers is None:
                self.send(frame(FrameType.DATA, Flag.END_STREAM, stream.id))
            else:
                self.send_fields(stream, stream.trailers, Flag.END_STREAM)
            stream.is_closed = True

    def send_blocked(self) -> list[Http2Stream]:
        """Write what the windows allow, a frame of each waiting stream in turn.

        Returns the streams whose data moved.
        """
        moved: dict[int, Http2Stream] = {}
        while not self.is_full and self.window > 0:
            waiting = [each for each in self.blocked.values() if each.send_window > 0]
            if not waiting:
                break
            for stream in waiting:
                if self._send_part(stream):
                    moved[stream.id] = stream
                if not stream.num_pending:
                    self.blocked.pop(stream.id)
                    self._end_if_sent(stream)
        return [*moved.values()]

    def _send_part(self, stream: Http2Stream) -> bool:
        """Write a DATA frame of a stream; return False if it has to wait."""
        size = min(self.window, stream.send_window, self.max_frame)
        if size <= 0 or self.is_full:
            return False
        part = stream.take_pending(size)
        is_last = stream.ends and not stream.num_pending and stream.trailers is None
        flags = Flag.END_STREAM if is_last else 0
        self.send(frame_head(FrameType.DATA, flags, stream.id, len(part)))
        self.send(part)
        self.window -= len(part)
        stream.send_window -= len(part)
        stream.is_closed = is_last
        if len(part) >= WELL_FILLED or len(part) < size:  # not cut by a tiny window
            self._budget.earn(2)
        return True

    @property
    def num_unsent(self) -> int:
        """Bytes that wait for a window, or in the transport."""
        waiting = sum(stream.num_pending for stream in self.blocked.values())
        return waiting + self._transport.get_write_buffer_size()

    def describe(self, name: str) -> Any:
        """Return a fact about the transport."""
        return self._transport.get_extra_info(name)

    def abort(self) -> None:
        """Close the connection at once."""
        self._transport.abort()

    # --- windows ---

    def grow(self, stream: Http2Stream | None, more: int) -> ErrorCode:
        """Add to the window of a stream, or of the connection; return why that is not possible."""
        window = (self.window if stream is None else stream.send_window) + more
        if not more or window > MAX_WINDOW:
            return ErrorCode.FLOW_CONTROL_ERROR if more else ErrorCode.PROTOCOL_ERROR
        if stream is None:
            self.window = window
        else:
            stream.send_window = window
        return ErrorCode.NO_ERROR

    def change_windows(self, size: int, streams: Iterable[Http2Stream]) -> None:
        """Take another INITIAL_WINDOW_SIZE of the client, which open streams get too."""
        change, self.stream_window = size - self.stream_window, size
        for stream in streams:
            stream.send_window += change
            if stream.send_window > MAX_WINDOW:
                raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "a window is over 2^31-1")
