"""Frames over a stream socket: four bytes of length, then so many bytes.  Knows no content.

The only place that writes and reads lengths: `pack` and `Frames` for whoever reads what has come,
`send` and `receive` for whoever waits, `FrameExchange` for whoever waits no longer than it wants.
"""

import select
import socket
import struct
import time
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from mindspore_serving.errors import TooLarge

MAX_FRAME = 1 << 30  # no message of ours comes near; more is a broken or hostile peer
_LENGTH = struct.Struct("<I")
_CHUNK = 1 << 18

T = TypeVar("T")


def pack(content: bytes) -> bytes:
    """Return the frame of `content`."""
    return _LENGTH.pack(len(content)) + content


class Frames(Generic[T]):
    """Bytes in, what `decode` makes of the content of each frame out.

    Raises TooLarge for a frame of over `limit` bytes, which may change, and what `decode` raises.
    """

    def __init__(self, decode: Callable[[memoryview], T], limit: int = MAX_FRAME) -> None:
        self.limit = limit
        self._decode = decode
        self._rest = bytearray()
        self._needed = 0  # bytes without which `_rest` holds no whole frame

    def feed(self, data: "bytes | memoryview") -> Iterator[T]:
        """Decode the frames that `data` completes, one after another."""
        if self._rest:
            self._rest += data
            if len(self._rest) < self._needed:
                return
            data, self._rest = memoryview(self._rest), bytearray()
        start, end, self._needed = 0, len(data), _LENGTH.size
        view = memoryview(data)
        while end - start >= 4:
            (length,) = _LENGTH.unpack_from(view, start)
            if length > self.limit:
                raise TooLarge(f"a frame of {length} bytes, at most {self.limit} are accepted")
            if end - start - 4 < length:
                self._needed = length + 4
                break
            yield self._decode(view[start + 4 : start + 4 + length])
            start += 4 + length
        self._rest += view[start:]


def send(stream: socket.socket, content: bytes) -> None:
    """Send one frame; waits until it is sent."""
    stream.sendall(pack(content))


def receive(stream: socket.socket, limit: int = MAX_FRAME) -> bytes | None:
    """Wait for one frame and return its content; None if the other end is closed.

    Raises TooLarge for one of over `limit` bytes.
    """
    head = _receive_exactly(stream, _LENGTH.size)
    if head is None:
        return None
    (length,) = _LENGTH.unpack(head)
    if length > limit:
        raise TooLarge(f"a frame of {length} bytes, at most {limit} are accepted")
    return _receive_exactly(stream, length)


def _receive_exactly(stream: socket.socket, count: int) -> bytes | None:
    data = bytearray(count)
    view = memoryview(data)
    while view:
        size = stream.recv_into(view)
        if not size:
            return None
        view = view[size:]
    return bytes(data)


class FrameExchange:
    """One frame sent and one received, without waiting longer than wanted.

    `wait` goes on with both; it is called until it returns the answer.
    """

    def __init__(self, stream: socket.socket, content: bytes) -> None:
        stream.setblocking(False)
        self._stream = stream
        self._unsent = memoryview(pack(content))
        self._frames = Frames(bytes)

    def wait(self, until: float, interrupt: int) -> bytes | None:
        """Return the answer; None if the clock (`time.monotonic`) passes `until`, or the descriptor
        `interrupt` becomes readable.  Raises EOFError if the other end is closed, or sends what
        is no frame.
        """
        poll = select.poll()
        poll.register(interrupt, select.POLLIN)
        while True:
            events = select.POLLIN | (select.POLLOUT if self._unsent else 0)
            poll.register(self._stream.fileno(), events)
            ready = dict(poll.poll(max(0.0, until - time.monotonic()) * 1000))
            happened = ready.get(self._stream.fileno(), 0)
            if happened & select.POLLOUT:
                self._send()
            if happened & ~select.POLLOUT and (answer := self._receive()) is not None:
                return answer
            if interrupt in ready or not ready:
                return None

    def _send(self) -> None:
        try:
            self._unsent = self._unsent[self._stream.send(self._unsent) :]
        except BlockingIOError:
            pass
        except OSError:
            raise EOFError from None

    def _receive(self) -> bytes | None:
        """Read what has come; return the answer once it is complete."""
        try:
            data = self._stream.recv(_CHUNK)
        except BlockingIOError:
            return None
        except OSError:
            raise EOFError from None
        if not data:
            raise EOFError
        try:
            return next(self._frames.feed(data), None)
        except TooLarge as error:
            raise EOFError(str(error)) from None
