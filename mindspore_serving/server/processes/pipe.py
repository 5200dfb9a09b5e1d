"""The channel between master and front-end process: a socket, and an arena each way for payloads.

Messages sent in one turn of the event loop are written together.
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
    """The socket of a process, and the descriptors of the arenas that it writes and reads."""

    stream: socket.socket
    writes: int
    reads: int


class Pipe(Generic[T]):
    """An end of the channel; use it on the event loop's thread.

    `on_message` is called with each message of type `kind`, and `on_closed` once when the channel
    is closed, also after an invalid message.
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
        """Send a message at the end of this turn of the loop; do nothing once it is closed."""
        if not self.is_closed:
            self._unsent.append(encode(message))
            self._ticker.arm()

    def take_memory(self, size: int) -> memoryview | None:
        """Allocate memory in the arena, which `put` need not copy later; None if it is full."""
        return None if self.is_closed else self._arena.take(size)

    def put(self, data: "Buffer | BufferList") -> Payload:
        """Return `data` as the payload of a message, in the arena if it is large."""
        return b"" if self.is_closed else self._arena.put(data)

    def take(self, payload: Payload) -> bytes:
        """Return the bytes of a payload; copy them from the arena and free them there."""
        if isinstance(payload, bytes):
            return payload
        self._free_soon(payload.offset)
        return bytes(self._view.get(payload))

    def view(self, payload: Payload) -> bytes | memoryview:
        """Return a payload without a copy; its memory is freed with the last reference to it."""
        if isinstance(payload, bytes):
            return payload
        data = self._view.get(payload)
        assert isinstance(data, memoryview)
        return lend(data, partial(self._release, payload.offset))

    def _release(self, offset: int) -> None:
        """Free memory of the peer; on any thread, as the garbage collector may call this."""
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._free_soon, offset)

    def _free_soon(self, offset: int) -> None:
        self._freed.append(offset)
        self._ticker.arm()

    def close(self) -> None:
        """Close the channel, if it is open."""
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
        log.error("closing the channel to another process of the server: %s", problem)
        self.close()

    def _take_message(self, message: "T | Freed") -> None:
        if isinstance(message, Freed):
            for offset in message.offsets:
                self._arena.free(offset)
        else:
            self._on_message(message)
