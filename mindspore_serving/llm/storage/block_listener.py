"""Port for blocks of prompts that workers on other machines compute, over TLS.

Nothing has a size that the receiver has not chosen before; who is silent for too long is
disconnected.  What is sent is described in `block_links`.
"""

import asyncio
import math
import socket
import ssl
import struct
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import msgspec

from mindspore_serving import log
from mindspore_serving.aio import within
from mindspore_serving.cluster.pending_connections import PendingConnections
from mindspore_serving.core.placement import GroupCredentials
from mindspore_serving.core.prefill_messages import BlocksWritten
from mindspore_serving.errors import StartError
from mindspore_serving.llm.storage.block_memory import BlockMemory
from mindspore_serving.tls import to_group_context

OPEN_SECONDS = 10.0  # to connect, and to name a memory
REPORT_SECONDS = 0.1  # between two reports while blocks arrive
MAX_PENDING = 64  # connections that have not named a memory; one more closes the oldest
_LOG_SECONDS = 1.0  # between two log lines about refused connections
NAME = struct.Struct("<64sQ")  # of the memory, and the bytes of a block
HEAD = struct.Struct("<QQdd")  # the fields of `BlocksWritten`
COMPLETE = b"\1"


@dataclass(frozen=True, slots=True)
class BlocksReceived:
    """Blocks that are in the memory by now, and what their sender says of them.

    `wire` is the seconds that one took on the link, 0 if that is not known; with a `problem` no
    more will come.
    """

    written: BlocksWritten
    wire: float = 0.0
    problem: str = ""


Report = Callable[[BlocksReceived], None]


class BlockListener:
    """Port for blocks, and the memories that they are awaited for.

    Methods are for any thread.
    """

    def __init__(self, stream: socket.socket, context: ssl.SSLContext) -> None:
        self.port: int = stream.getsockname()[1]
        self._stream, self._context = stream, context
        self._loop = asyncio.get_running_loop()
        self._awaited: dict[str, _Arrival] = {}
        self._pending = PendingConnections(MAX_PENDING)
        self._tasks: set[asyncio.Task[None]] = set()
        self._logged = -_LOG_SECONDS
        self._run(self._accept())

    @classmethod
    async def open(cls, host: str, credentials: GroupCredentials) -> "BlockListener":
        """Listen at `host`, on a free port.  Raises StartError."""
        try:
            stream = socket.create_server(
                (host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET
            )
        except OSError as error:
            raise StartError(f"cannot listen for blocks of prompts at {host}: {error}") from error
        stream.setblocking(False)
        return cls(stream, to_group_context(*credentials.pem, accepts=True))

    def expect(self, memory: BlockMemory, report: Report) -> None:
        """Let a peer write to `memory`, until `forget`; `report` is called on another thread."""
        self._awaited[memory.name] = _Arrival(memory, report)

    def forget(self, name: str) -> None:
        """Accept nothing more for the memory `name`."""
        arrival = self._awaited.pop(name, None)
        if arrival is not None:
            arrival.is_over = True
            self._loop.call_soon_threadsafe(arrival.close)

    async def close(self) -> None:
        """Close the port and its connections."""
        for name in list(self._awaited):
            self.forget(name)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._stream.close()

    async def _accept(self) -> None:
        while True:
            try:
                stream, address = await self._loop.sock_accept(self._stream)
            except OSError as error:  # out of descriptors, for example
                log.warning("cannot accept connections for blocks: %s", error)
                await asyncio.sleep(_LOG_SECONDS)
                continue
            task = self._run(self._meet(stream, address[0]))
            self._pending.add(task, address[0], partial(_cancel, task))

    def _run(self, coroutine: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task: asyncio.Task[None] = self._loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _meet(self, stream: socket.socket, host: str) -> None:
        """Authenticate a connection, and read for which memory it is."""
        incoming = _Incoming(self._awaited)
        try:
            await within(OPEN_SECONDS, self._greet(stream, incoming))
        except asyncio.TimeoutError:
            self._warn(host, f"no greeting within {OPEN_SECONDS:g} s")
        except OSError as error:
            self._warn(host, f"{error or type(error).__name__}")
        finally:
            self._pending.discard(asyncio.current_task())
            if not incoming.is_named:
                incoming.abort()
                stream.close()

    async def _greet(self, stream: socket.socket, incoming: "_Incoming") -> None:
        await self._loop.connect_accepted_socket(
            lambda: incoming, stream, ssl=self._context, ssl_handshake_timeout=OPEN_SECONDS
        )
        await incoming.greeted
        if not incoming.is_named:
            raise OSError(incoming.problem)

    def _warn(self, host: str, why: str) -> None:
        if time.monotonic() - self._logged >= _LOG_SECONDS:
            self._logged = time.monotonic()
            log.warning("a connection from %s to the port for blocks is refused: %s", host, why)


def _cancel(task: "asyncio.Task[None]") -> None:
    task.cancel()


class _Arrival:
    """Blocks of one memory: how many have arrived, and whom to tell."""

    def __init__(self, memory: BlockMemory, report: Report) -> None:
        self.memory, self.report = memory, report
        self.connection: _Incoming | None = None
        self.is_over = False

    def close(self) -> None:
        if self.connection is not None:
            self.connection.abort()


class _Incoming(asyncio.BufferedProtocol):
    """Connection of a worker that sends blocks; on the event loop's thread."""

    def __init__(self, awaited: "dict[str, _Arrival]") -> None:
        self.greeted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.is_named = False
        self.problem = "the connection was closed"
        self._awaited = awaited
        self._arrival: _Arrival
        self._view = memoryview(b"")
        self._transport: asyncio.Transport | None = None
        self._head = bytearray(NAME.size)
        self._target = memoryview(self._head)
        self._num_filled = 0
        self._after: Callable[[], None] = self._on_name
        self._num_blocks = 0  # in memory
        self._written = BlocksWritten(0)  # the last head
        self._began = self._reported = 0.0  # times

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._target[self._num_filled :]

    def buffer_updated(self, nbytes: int) -> None:
        self._num_filled += nbytes
        if self._num_filled < len(self._target):
            if self._after == self._on_blocks:
                self._report_some()
            return
        try:
            self._after()
        except ValueError as error:
            self.problem = f"it sent what is not expected: {error}"
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if not self.greeted.done():
            self.greeted.set_result(None)
        if self.is_named and not self._arrival.is_over:
            self._arrival.is_over = True
            self._tell(self._count, problem=str(exc or "") or self.problem)
        self._target = self._view = memoryview(b"")  # frees the memory, which this maps

    def abort(self) -> None:
        """Close the connection at once."""
        if self._transport is not None:
            self._transport.abort()

    @property
    def _count(self) -> int:
        """Number of whole blocks that have arrived."""
        is_burst = self._after == self._on_blocks
        partial = self._num_filled // self._arrival.memory.block_bytes if is_burst else 0
        return self._num_blocks + partial

    def _on_name(self) -> None:
        name, block_bytes = NAME.unpack(self._head)
        arrival = self._awaited.get(name.rstrip(b"\0").decode("ascii", "replace"))
        if arrival is None or arrival.connection is not None:
            raise ValueError("a memory for which no blocks are awaited")
        if block_bytes != arrival.memory.block_bytes:
            raise ValueError(
                f"blocks of {block_bytes} bytes, expected {arrival.memory.block_bytes}"
            )
        self._view = arrival.memory.view()
        arrival.connection, self._arrival, self.is_named = self, arrival, True
        self.greeted.set_result(None)
        self._head = bytearray(HEAD.size)
        self._await(memoryview(self._head), self._on_head)

    def _on_head(self) -> None:
        self._written = written = BlocksWritten(*HEAD.unpack(self._head))
        memory = self._arrival.memory
        if not self._num_blocks < written.count <= memory.num_blocks:
            raise ValueError(f"{written.count} blocks, expected at most {memory.num_blocks}")
        if not all(map(math.isfinite, (written.seconds, written.block_seconds))):
            raise ValueError("times that are no numbers")
        self._began = self._reported = time.monotonic()
        size = memory.block_bytes
        self._await(self._view[self._num_blocks * size : written.count * size], self._on_blocks)

    def _on_blocks(self) -> None:
        wire = (time.monotonic() - self._began) / (self._written.count - self._num_blocks)
        self._num_blocks = self._written.count
        is_last = self._num_blocks == self._arrival.memory.num_blocks
        self._arrival.is_over = self._arrival.is_over or is_last
        self._tell(self._num_blocks, wire=wire)
        self._await(memoryview(self._head), self._on_head)
        if is_last and self._transport is not None:
            self._transport.write(COMPLETE)
            self._transport.close()

    def _report_some(self) -> None:
        """Report the blocks of an incomplete burst, as a slow link takes long for it."""
        now = time.monotonic()
        if self._count > self._num_blocks and now - self._reported >= REPORT_SECONDS:
            self._reported = now
            self._tell(self._count)

    def _tell(self, count: int, wire: float = 0.0, problem: str = "") -> None:
        written = msgspec.structs.replace(self._written, count=count)
        self._arrival.report(BlocksReceived(written, wire, problem))

    def _await(self, target: memoryview, after: Callable[[], None]) -> None:
        self._target, self._num_filled, self._after = target, 0, after
