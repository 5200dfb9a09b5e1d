"""The sending half of a link: frames to a socket that may not take them at once."""

import asyncio
import socket
from collections import deque
from collections.abc import Callable

WRITE_LIMIT = 1 << 30  # unsent bytes; a worker that reads nothing must not fill our memory


class LinkOutbox:
    """What waits to be sent on `stream`, which does not block.  `on_full` is called when more than
    WRITE_LIMIT bytes would; they are dropped then."""

    def __init__(self, stream: socket.socket, on_full: Callable[[], None]) -> None:
        self._stream = stream
        self._on_full = on_full
        self._loop = asyncio.get_running_loop()
        self._unsent: deque[memoryview] = deque()
        self._num_unsent = 0

    def send(self, frame: bytes) -> None:
        data = memoryview(frame)
        if not self._unsent:
            try:
                data = data[self._stream.send(data) :]
            except BlockingIOError:
                pass
            except OSError:
                return  # it is gone; what it sent before its end is still to be read
        if data:
            self._keep(data)

    def close(self) -> None:
        self._loop.remove_writer(self._stream.fileno())

    def _keep(self, data: memoryview) -> None:
        if self._num_unsent + len(data) > WRITE_LIMIT:
            self._on_full()
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
