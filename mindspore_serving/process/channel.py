"""Messages over a stream socket: how they are encoded, and the end of a thread that waits.

A message is a msgspec struct, encoded by msgpack, in a frame.  Nothing of it names what is loaded.
"""

import os
import select
import socket
import struct
import threading
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import msgspec

from mindspore_serving.process.frames import MAX_FRAME, Frames, pack

_ENCODER = msgspec.msgpack.Encoder()

_MAX_DESCRIPTORS = 8  # that come with one message

T = TypeVar("T")


def encode(message: msgspec.Struct) -> bytes:
    """Return the frame of `message`."""
    return pack(_ENCODER.encode(message))


def message_frames(kind: Any, limit: int = MAX_FRAME) -> Frames[Any]:
    """Return what takes messages of `kind` (a struct or a union of them) out of bytes.

    It raises TooLarge, as `Frames`, or msgspec.DecodeError for what is no message of it.
    """
    return Frames(msgspec.msgpack.Decoder(kind).decode, limit)


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
    """One end of a channel: one thread reads messages of `kind`, any thread writes.

    Both raise OSError, also after `timeout` seconds of waiting (None: no limit); reading raises
    EOFError at the end.
    """

    def __init__(self, stream: socket.socket, kind: Any, timeout: float | None = None) -> None:
        stream.setblocking(True)
        if timeout is not None:
            _limit_waiting(stream, timeout)
        self._stream = stream
        self._frames: Frames[T] = message_frames(kind)
        self._kept: list[T] = []  # came with what `receive_one` returned
        self._buffer = bytearray(256 * 1024)
        self._lock = threading.Lock()
        self._wake = -1
        self._poll: select.poll | None = None

    def fileno(self) -> int:
        return self._stream.fileno()

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
        """Return all that has come; waits for the first message if `wait`, or for being woken."""
        messages, self._kept = self._kept, []
        if messages:
            return messages
        if wait and self._poll is not None and not self._is_readable(self._poll):
            return messages
        while True:
            flags = 0 if wait and not messages else socket.MSG_DONTWAIT
            try:
                count = self._read(flags)
            except BlockingIOError:
                if not flags:
                    raise TimeoutError("nothing has come in time") from None
                return messages
            except ConnectionError as error:
                raise EOFError(str(error)) from error
            if count == 0:
                raise EOFError("the other end is closed")
            messages.extend(self._frames.feed(memoryview(self._buffer)[:count]))
            if count < len(self._buffer) and (messages or not wait):
                return messages

    def receive_one(self) -> T:
        """Wait for a message and return it; what came with it is received next."""
        message, *self._kept = self.receive(wait=True)
        return message

    def _is_readable(self, poll: select.poll) -> bool:
        """Wait; False if it was woken and no message has begun to come."""
        ready = {descriptor for descriptor, _ in poll.poll()}
        if self._wake in ready:
            os.eventfd_read(self._wake)
        return self._stream.fileno() in ready

    def send(self, message: msgspec.Struct) -> None:
        """Send a message; waits until it is sent."""
        self.write(encode(message))

    def write(self, frame: bytes) -> None:
        """Send what `encode` returned, as for several receivers."""
        with self._lock:
            self._stream.sendall(frame)

    def close(self) -> None:
        self._stream.close()

    def _read(self, flags: int) -> int:
        return self._stream.recv_into(self._buffer, 0, flags)


class DescriptorChannel(BlockingChannel[T]):
    """A channel over a Unix socket, by which descriptors can be sent along with a message."""

    def __init__(self, stream: socket.socket, kind: Any, timeout: float | None = None) -> None:
        super().__init__(stream, kind, timeout)
        self._descriptors: list[int] = []

    def send(self, message: msgspec.Struct, descriptors: Sequence[int] = ()) -> None:
        """Send a message with descriptors, which may be closed afterwards."""
        frame = encode(message)
        with self._lock:
            sent = socket.send_fds(self._stream, [frame], descriptors)
            self._stream.sendall(frame[sent:])

    def take_descriptors(self) -> list[int]:
        """Return the descriptors that have come with messages, which the caller closes."""
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
    """Have the kernel end a call that waits for so long.  Python's own timeout would also wait
    where MSG_DONTWAIT says not to.
    """
    value = struct.pack("@ll", int(seconds), int(seconds % 1 * 1e6))
    for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        stream.setsockopt(socket.SOL_SOCKET, option, value)
