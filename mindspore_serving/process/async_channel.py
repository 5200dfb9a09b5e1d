"""The end of a channel that lives on an event loop: callbacks per message, buffered writes.

The other end is usually a `BlockingChannel`.
"""

import asyncio
import socket
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import msgspec

from mindspore_serving.errors import TooLarge
from mindspore_serving.process.channel import encode, message_decoder
from mindspore_serving.process.frames import FrameDecoder

WRITE_LIMIT = 1 << 30  # unsent bytes; a process that reads nothing must not fill our memory
_READ_SIZE = 1 << 18

T = TypeVar("T")


class AsyncChannel(Generic[T]):
    """A message channel on the running event loop; use it on the loop's thread only.

    Args:
        stream: the socket; closed together with the channel.
        kind: type of the received messages: a struct or a union of structs.
        on_message: called with each message; it raises ValueError or LookupError for an invalid
            one.
        on_closed: called once, when either end has closed the channel.
        on_problem: called with a clause that says why the peer should be killed: it sent an invalid
            message, or left WRITE_LIMIT bytes unread; further writes are dropped.
    """

    def __init__(
        self,
        stream: socket.socket,
        kind: Any,
        *,
        on_message: Callable[[T], None],
        on_closed: Callable[[], None],
        on_problem: Callable[[str], None],
    ) -> None:
        stream.setblocking(False)
        self.is_closed = False
        self._stream = stream
        self._on_message, self._on_closed, self._on_problem = on_message, on_closed, on_problem
        self._loop = asyncio.get_running_loop()
        self._frames: FrameDecoder[T] = message_decoder(kind)
        self._buffer = memoryview(bytearray(_READ_SIZE))
        self._unsent: deque[memoryview] = deque()
        self._num_unsent = 0  # bytes
        self._loop.add_reader(stream.fileno(), self._on_readable)

    def send(self, message: msgspec.Struct) -> None:
        """Send a message; do nothing once the channel is closed."""
        self.write(encode(message))

    def write(self, frames: bytes) -> None:
        """Send encoded frames (of `encode`), one or several."""
        if self.is_closed:
            return
        data = memoryview(frames)
        if not self._unsent:
            try:
                data = data[self._stream.send(data) :]
            except BlockingIOError:
                pass
            except OSError:
                return  # the peer has ended; messages that it sent before are still to be read
        if data:
            self._keep(data)

    def close(self) -> None:
        """Close the channel and its stream, if they are open."""
        if self.is_closed:
            return
        self.is_closed = True
        self._loop.remove_reader(self._stream.fileno())
        self._loop.remove_writer(self._stream.fileno())
        self._stream.close()
        self._on_closed()

    def _on_readable(self) -> None:
        try:
            count = self._stream.recv_into(self._buffer)
        except BlockingIOError:
            return
        except OSError:
            count = 0
        if not count:
            self.close()
            return
        try:
            for message in self._frames.feed(self._buffer[:count]):
                if self.is_closed:
                    return
                self._on_message(message)
        except (msgspec.DecodeError, TooLarge, ValueError, LookupError) as error:
            self._on_problem(f"it sent an invalid message ({error})")

    def _keep(self, data: memoryview) -> None:
        if self._num_unsent + len(data) > WRITE_LIMIT:
            self._on_problem("it does not read its messages")
            return
        if not self._unsent:
            self._loop.add_writer(self._stream.fileno(), self._on_writable)
        self._unsent.append(data)
        self._num_unsent += len(data)

    def _on_writable(self) -> None:
        try:
            while self._unsent:
                sent = self._stream.send(self._unsent[0])
                self._num_unsent -= sent
                if sent < len(self._unsent[0]):
                    self._unsent[0] = self._unsent[0][sent:]
                    return
                self._unsent.popleft()
        except BlockingIOError:
            return
        except OSError:
            self._unsent.clear()
        self._loop.remove_writer(self._stream.fileno())
