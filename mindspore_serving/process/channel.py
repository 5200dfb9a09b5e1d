"""Messages over a stream socket: their encoding, and the channel ends for threads that block.

A message is a msgspec struct, encoded as msgpack, in a frame.
"""

import os
import select
import socket
import struct
import threading
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import msgspec

from mindspore_serving.process.frames import MAX_FRAME, FrameDecoder, pack

_ENCODER = msgspec.msgpack.Encoder()

_MAX_DESCRIPTORS = 8  # per read

T = TypeVar("T")


def encode(message: msgspec.Struct) -> bytes:
    """Return the frame of `message`."""
    return pack(_ENCODER.encode(message))


def message_decoder(kind: Any, limit: int = MAX_FRAME) -> FrameDecoder[Any]:
    """Return a decoder of framed messages of `kind`, a struct or a union of structs.

    It raises TooLarge for a frame of over `limit` bytes, and msgspec.DecodeError for a frame that
    holds no message of `kind`.
    """
    return FrameDecoder(msgspec.msgpack.Decoder(kind).decode, limit)


def connect(address: str) -> socket.socket:
    """Connect to `address`: `fd:N` (an inherited socket), `unix:PATH` or `tcp:HOST:PORT`.

    Raises ValueError for an address of another form, OSError if nobody listens there.
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
    """A channel end for threads that block: one thread reads messages of `kind`, any may write.

    Reading and writing raise OSError on failure and after `timeout` seconds of waiting (None: no
    limit).  Reading raises EOFError once the peer has closed the channel.
    """

    def __init__(self, stream: socket.socket, kind: Any, timeout: float | None = None) -> None:
        stream.setblocking(True)
        if timeout is not None:
            _limit_waiting(stream, timeout)
        self._stream = stream
        self._frames: FrameDecoder[T] = message_decoder(kind)
        self._pending: list[T] = []  # received together with what `receive_next` returned
        self._buffer = bytearray(256 * 1024)
        self._lock = threading.Lock()
        self._wake = -1
        self._poll: select.poll | None = None

    def fileno(self) -> int:
        return self._stream.fileno()

    def make_wakeable(self) -> Callable[[], None]:
        """Enable and return `wake`, which ends a `receive` that waits."""
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poll = select.poll()
        self._poll.register(self._stream.fileno(), select.POLLIN)
        self._poll.register(self._wake, select.POLLIN)
        return self.wake

    def wake(self) -> None:
        """Wake the thread that waits in `receive`, or its next `receive`; from any thread."""
        os.eventfd_write(self._wake, 1)

    def receive(self, *, wait: bool) -> list[T]:
        """Return all messages received so far; with `wait`, block until there is one or `wake`."""
        messages, self._pending = self._pending, []
        if messages:
            return messages
        if wait and self._poll is not None and not self._is_readable(self._poll):
            return messages
        end = "the peer has closed the channel"
        while True:
            flags = 0 if wait and not messages else socket.MSG_DONTWAIT
            try:
                count = self._read(flags)
            except BlockingIOError:
                if not flags:
                    raise TimeoutError("no message within the timeout of the channel") from None
                return messages
            except ConnectionError as error:
                count, end = 0, str(error)
            if count == 0 and messages:
                return messages  # the next call finds the end
            if count == 0:
                raise EOFError(end)
            messages.extend(self._frames.feed(memoryview(self._buffer)[:count]))
            if count < len(self._buffer) and (messages or not wait):
                return messages

    def receive_next(self) -> T:
        """Wait for a message and return it; messages read along with it are returned next."""
        message, *self._pending = self.receive(wait=True)
        return message

    def _is_readable(self, poll: select.poll) -> bool:
        """Wait until the stream is readable; return False if only `wake` was called."""
        ready = {descriptor for descriptor, _ in poll.poll()}
        if self._wake in ready:
            os.eventfd_read(self._wake)
        return self._stream.fileno() in ready

    def send(self, message: msgspec.Struct) -> None:
        """Send a message; block until it is written."""
        self.write(encode(message))

    def write(self, frame: bytes) -> None:
        """Write an encoded frame, for callers that send one message to several peers."""
        with self._lock:
            self._stream.sendall(frame)

    def close(self) -> None:
        self._stream.close()

    def _read(self, flags: int) -> int:
        return self._stream.recv_into(self._buffer, 0, flags)


class DescriptorChannel(BlockingChannel[T]):
    """A channel over a Unix socket whose messages can carry file descriptors (SCM_RIGHTS)."""

    def __init__(self, stream: socket.socket, kind: Any, timeout: float | None = None) -> None:
        super().__init__(stream, kind, timeout)
        self._descriptors: list[int] = []

    def send(self, message: msgspec.Struct, descriptors: Sequence[int] = ()) -> None:
        """Send a message with copies of `descriptors`, which the caller may close afterwards."""
        frame = encode(message)
        with self._lock:
            sent = socket.send_fds(self._stream, [frame], descriptors)
            self._stream.sendall(frame[sent:])

    def take_descriptors(self) -> list[int]:
        """Return the descriptors received since the last call; the caller has to close them."""
        descriptors, self._descriptors = self._descriptors, []
        return descriptors

    def _read(self, flags: int) -> int:
        data, descriptors, _, _ = socket.recv_fds(
            self._stream, len(self._buffer), _MAX_DESCRIPTORS, flags
        )
        self._buffer[: len(data)] = data
        self._descriptors += descriptors
        return len(data)


def _limit_waiting(stream: socket.socket, seconds: float) -> None:
    """Set the kernel's timeout of blocking reads and writes of a socket.

    `socket.settimeout` will not do: with it Python waits even where MSG_DONTWAIT is set.
    """
    value = struct.pack("@ll", int(seconds), int(seconds % 1 * 1e6))
    for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        stream.setsockopt(socket.SOL_SOCKET, option, value)
