"""Frames over a stream socket: four bytes of length, then so many bytes.  Knows no content."""

import select
import socket
import struct
import time

LENGTH = struct.Struct("<I")
_CHUNK = 1 << 18


def receive(stream: socket.socket) -> bytes | None:
    """The next frame; waits for it.  None if the other end is closed."""
    head = _receive_exactly(stream, LENGTH.size)
    return None if head is None else _receive_exactly(stream, LENGTH.unpack(head)[0])


def send(stream: socket.socket, content: bytes) -> None:
    stream.sendall(LENGTH.pack(len(content)))
    stream.sendall(content)


def _receive_exactly(stream: socket.socket, count: int) -> bytes | None:
    data = bytearray(count)
    view = memoryview(data)
    while view:
        size = stream.recv_into(view)
        if not size:
            return None
        view = view[size:]
    return bytes(data)


class Exchange:
    """One frame sent and one received, without waiting longer than wanted.

    `wait` goes on with both; it is called until it returns the answer.
    """

    def __init__(self, stream: socket.socket, content: bytes) -> None:
        stream.setblocking(False)
        self._stream = stream
        self._unsent = [memoryview(LENGTH.pack(len(content))), memoryview(content)]
        self._received = bytearray()
        self._needed = LENGTH.size

    def wait(self, until: float, interrupt: int) -> bytes | None:
        """The answer; None if the clock (`time.monotonic`) passes `until`, or the descriptor
        `interrupt` becomes readable.  Raises EOFError if the other end is closed."""
        poll = select.poll()
        poll.register(interrupt, select.POLLIN)
        while True:
            events = select.POLLIN | (select.POLLOUT if self._unsent else 0)
            poll.register(self._stream.fileno(), events)
            ready = dict(poll.poll(max(0.0, until - time.monotonic()) * 1000))
            happened = ready.get(self._stream.fileno(), 0)
            if happened & select.POLLOUT:
                self._send()
            if happened & ~select.POLLOUT and self._receive():
                return bytes(memoryview(self._received)[LENGTH.size :])
            if interrupt in ready or not ready:
                return None

    def _send(self) -> None:
        try:
            sent = self._stream.send(self._unsent[0])
        except BlockingIOError:
            return
        except OSError:
            raise EOFError from None
        self._unsent[0] = self._unsent[0][sent:]
        if not self._unsent[0]:
            del self._unsent[0]

    def _receive(self) -> bool:
        """Whether all of the answer is there."""
        try:
            data = self._stream.recv(_CHUNK)
        except BlockingIOError:
            return False
        except OSError:
            raise EOFError from None
        if not data:
            raise EOFError
        self._received += data
        if self._needed == LENGTH.size and len(self._received) >= LENGTH.size:
            self._needed += LENGTH.unpack_from(self._received)[0]
        return len(self._received) >= self._needed > LENGTH.size
