"""One end of the channel between the master and a front-end process: a socket, and an arena each
way for large payloads.  What is sent in one turn of the event loop leaves together.
"""

import asyncio
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

import msgspec

from mindspore_serving import log
from mindspore_serving.aio import Ticker
from mindspore_serving.core.buffers import Buffer, BufferList
from mindspore_serving.core.lending import lend
from mindspore_serving.ipc.arena import TRIM_SECONDS, Arena, ArenaView
from mindspore_serving.ipc.messages import Payload
from mindspore_serving.process.async_channel import AsyncChannel
from mindspore_serving.process.channel import encode
from mindspore_serving.server.processes.messages import Freed

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Ends:
    """The descriptors of a process: its socket, and the arenas that it writes and reads."""

    stream: socket.socket
    writes: int
    reads: int


class Pipe(Generic[T]):
    """Messages are a `kind`: `on_message` gets them, and `on_closed` is called once at the end of
    the channel, also for what is no message.  Used on the event loop's thread.
    """

    def __init__(
        self, ends: Ends, kind: Any, on_message: Callable[[T], None], on_closed: Callable[[], None]
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._channel = AsyncChannel[T | Freed](
            ends.stream,
            kind,
            on_message=self._take_message,
            on_closed=self._end,
            on_problem=self._on_problem,
        )
        self._arena, self._view = Arena(ends.writes), ArenaView(ends.reads)
        os.close(ends.writes)
        os.close(ends.reads)
        self._on_message, self._on_closed = on_message, on_closed
        self._unsent: list[bytes] = []
        self._freed: list[int] = []
        self._ticker = Ticker(self._loop, self._flush)
        self._trimmer = self._loop.call_later(TRIM_SECONDS, self._trim)

    @property
    def is_closed(self) -> bool:
        return self._channel.is_closed

    def send(self, message: msgspec.Struct) -> None:
        """At the end of this turn of the loop; nothing once it is closed."""
        if not self.is_closed:
            self._unsent.append(encode(message))
            self._ticker.arm()

    def take_memory(self, size: int) -> memoryview | None:
        """Memory for what will be `put`, which then stays where it is.  None if there is none."""
        return None if self.is_closed else self._arena.take(size)

    def put(self, data: "Buffer | BufferList") -> Payload:
        """`data` for a message."""
        return b"" if self.is_closed else self._arena.put(data)

    def take(self, payload: Payload) -> bytes:
        """The bytes of a message; what lies in shared memory is copied and given back."""
        if isinstance(payload, bytes):
            return payload
        self._free_soon(payload.offset)
        return bytes(self._view.get(payload))

    def view(self, payload: Payload) -> bytes | memoryview:
        """As `take`, but where it lies; it is given back when nothing refers to it any more."""
        if isinstance(payload, bytes):
            return payload
        data = self._view.get(payload)
        assert isinstance(data, memoryview)
        return lend(data, partial(self._give_back, payload.offset))

    def _give_back(self, offset: int) -> None:
        """On any thread, as that of a garbage collector."""
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._free_soon, offset)

    def _free_soon(self, offset: int) -> None:
        self._freed.append(offset)
        self._ticker.arm()

    def close(self) -> None:
        """Harmless if it is closed."""
        self._channel.close()

    def _end(self) -> None:
        self._trimmer.cancel()
        self._arena.close()
        self._view.close()
        self._on_closed()

    def _flush(self) -> None:
        if self.is_closed:
            return
        frames, self._unsent = self._unsent, []
        if self._freed:
            freed, self._freed = self._freed, []
            frames.append(encode(Freed(freed)))
        self._channel.write(b"".join(frames))

    def _trim(self) -> None:
        self._trimmer = self._loop.call_later(self._arena.trim(), self._trim)

    def _on_problem(self, problem: str) -> None:
        log.error("another process of the server is left: %s", problem)
        self.close()

    def _take_message(self, message: "T | Freed") -> None:
        if isinstance(message, Freed):
            for offset in message.offsets:
                self._arena.free(offset)
        else:
            self._on_message(message)
