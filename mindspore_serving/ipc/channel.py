"""Length-prefixed msgpack frames over a stream socket: encode, take apart, and the blocking end.

The master's end lives on an event loop (`master.link`); both use `encode` and `Frames`.
"""

import os
import select
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

import msgspec

from mindspore_serving.errors import TooLarge

FRAME_LIMIT = 1 << 30  # no message of ours comes near; more is a broken or hostile peer
_LENGTH = struct.Struct("<I")
_ENCODER = msgspec.msgpack.Encoder()

T = TypeVar("T")


def encode(message: msgspec.Struct) -> bytes:
    body = _ENCODER.encode(message)
    return _LENGTH.pack(len(body)) + body


class Frames(Generic[T]):
    """Bytes in, messages of `kind` (a struct or a union of them) out.

    Raises TooLarge for a frame of over `limit` bytes, which may change, or msgspec.DecodeError for
    what is no frame of it.
    """

    def __init__(self, kind: Any, limit: int = FRAME_LIMIT) -> None:
        self.limit = limit
        self._decoder: msgspec.msgpack.Decoder[T] = msgspec.msgpack.Decoder(kind)
        self._rest = bytearray()
        self._needed = 0  # bytes without which `_rest` holds no whole frame

    def feed(self, data: "bytes | memoryview") -> Iterator[T]:
        """The messages that `data` completes."""
        if self._rest:
            self._rest += data
            if len(self._rest) < self._needed:
                return
            data, self._rest = memoryview(self._rest), bytearray()
        start, end, self._needed = 0, len(data), 4
        view = memoryview(data)
        while end - start >= 4:
            (length,) = _LENGTH.unpack_from(view, start)
            if length > self.limit:
                raise TooLarge(f"a frame of {length} bytes, at most {self.limit} are accepted")
            if end - start - 4 < length:
                self._needed = length + 4
                break
            yield self._decoder.decode(view[start + 4 : start + 4 + length])
            start += 4 + length
        self._rest += view[start:]


def connect(address: str) -> socket.socket:
    """The stream at `address`: `fd:N` (inherited), `unix:PATH` or `tcp:HOST:PORT`.

    Raises ValueError for another form, OSError if nobody listens.
    """
    kind, _, rest = address.partition(":")
    if kind == "fd":
        return socket.socket(fileno=int(rest))
    if kind == "unix":
        stream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            stream.connect(rest)
        except OSError:
            stream.close()
            raise
        return stream
    if kind == "tcp":
        host, _, port = rest.rpartition(":")
        stream = socket.create_connection((host, int(port)))
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return stream
    raise ValueError(f"channel address {address!r}: expected fd:N, unix:PATH or tcp:HOST:PORT")


class BlockingChannel(Generic[T]):
    """The worker's end: one thread reads, any thread writes.  An empty read raises EOFError."""

    def __init__(self, stream: socket.socket, kind: Any) -> None:
        stream.setblocking(True)
        self._stream = stream
        self._frames: Frames[T] = Frames(kind)
        self._buffer = bytearray(256 * 1024)
        self._lock = threading.Lock()
        self._wake = -1
        self._poll: select.poll | None = None

    def make_wakeable(self) -> Callable[[], None]:
        """Let `wake`, which is returned, end a `receive` that waits."""
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poll = select.poll()
        self._poll.register(self._stream.fileno(), select.POLLIN)
        self._poll.register(self._wake, select.POLLIN)
        return self.wake

    def wake(self) -> None:
        """From any thread: end a `receive` that waits, now or next time."""
        os.eventfd_write(self._wake, 1)

    def receive(self, *, wait: bool) -> list[T]:
        """All that has come; waits for the first message if `wait`, or for being woken."""
        messages: list[T] = []
        if wait and self._poll is not None and not self._is_readable(self._poll):
            return messages
        while True:
            flags = 0 if wait and not messages else socket.MSG_DONTWAIT
            try:
                count = self._stream.recv_into(self._buffer, 0, flags)
            except BlockingIOError:
                return messages
            if count == 0:
                raise EOFError("the master is gone")
            messages.extend(self._frames.feed(memoryview(self._buffer)[:count]))
            if count < len(self._buffer) and (messages or not wait):
                return messages

    def _is_readable(self, poll: select.poll) -> bool:
        """Waits; False if it was woken and no message has begun to come."""
        ready = {descriptor for descriptor, _ in poll.poll()}
        if self._wake in ready:
            os.eventfd_read(self._wake)
        return self._stream.fileno() in ready

    def send(self, message: msgspec.Struct) -> None:
        frame = encode(message)
        with self._lock:
            self._stream.sendall(frame)

    def close(self) -> None:
        self._stream.close()
