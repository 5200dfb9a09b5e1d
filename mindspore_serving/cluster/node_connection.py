"""A connection between node and master: messages with limits, heartbeats, and relayed streams.

Does not know which end it is, nor messages other than `Beat` and `Data`.
"""

import asyncio
import socket
import ssl
from collections.abc import Iterator
from contextlib import suppress
from typing import TypeVar

import msgspec

from mindspore_serving.aio import within
from mindspore_serving.cluster.node_messages import MAX_DATA, MAX_MESSAGE, Data
from mindspore_serving.errors import TooLarge
from mindspore_serving.process.channel import encode
from mindspore_serving.process.frames import FrameDecoder
from mindspore_serving.process.vocabulary import Beat

PING_SECONDS = 1.0
SILENCE_SECONDS = 8.0  # a connection that receives nothing for so long is lost
MAX_MESSAGES = 100  # read per second, without `Data`; more than that block their sender
MESSAGES_AT_ONCE = 16  # read before other tasks get their turn
BUFFER = 1 << 18  # bytes buffered in a connection, in each direction
FAILURES = (
    OSError,
    EOFError,
    msgspec.MsgspecError,
    TooLarge,
    ValueError,
    ArithmeticError,
)
"""Errors of reading from another machine: the connection is lost, or a message is invalid."""

T = TypeVar("T")


class NodeConnection:
    """An end of a connection between node and master."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.why_aborted = ""
        self._frames: FrameDecoder[memoryview] = FrameDecoder(lambda content: content)
        self._received: Iterator[memoryview] = iter(())  # frames read along with the last one
        self._num_received = 0
        self._num_messages, self._second = 0, 0.0  # in the second that began at `_second`
        writer.transport.set_write_buffer_limits(BUFFER)

    @property
    def peer(self) -> str:
        name = self.writer.get_extra_info("peername")
        return f"{name[0]}:{name[1]}" if name else "?"

    @property
    def host(self) -> str:
        """Address of this end."""
        return str(self.writer.get_extra_info("sockname")[0])

    def send(self, message: msgspec.Struct) -> None:
        self.writer.write(encode(message))

    async def receive(self, kind: "type[T] | object", limit: int = MAX_MESSAGE) -> "T":
        """Wait for the next message, of type `kind` and at most `limit` bytes.

        Raises one of FAILURES.
        """
        self._frames.limit = limit
        while (frame := next(self._received, None)) is None:
            data = await self.reader.read(BUFFER)
            if not data:
                raise EOFError
            self._received = self._frames.feed(data)
        message: T = msgspec.msgpack.decode(frame, type=kind)
        self._num_received += 1
        if not isinstance(message, Data):
            await self._slow_down()
        if self._num_received % MESSAGES_AT_ONCE == 0:
            await asyncio.sleep(0)  # reading from a full buffer never yields by itself
        return message

    async def _slow_down(self) -> None:
        """Sleep until the next second if this one had MAX_MESSAGES."""
        now = asyncio.get_running_loop().time()
        if now - self._second >= 1:
            self._num_messages, self._second = 0, now
        self._num_messages += 1
        if self._num_messages >= MAX_MESSAGES:
            await asyncio.sleep(self._second + 1 - now)

    async def send_data(self, data: bytes) -> None:
        """Send a chunk of a worker's stream; block while the peer does not read."""
        self.send(Data(data))
        await self.writer.drain()

    @property
    def has_room(self) -> bool:
        """True if the write buffer is below its limit."""
        return self.writer.transport.get_write_buffer_size() < BUFFER

    async def keep_alive(self) -> None:
        """Send heartbeats, and abort once the peer has been silent for SILENCE_SECONDS."""
        loop = asyncio.get_running_loop()
        silent_for, last, count = 0.0, loop.time(), self._num_received
        while silent_for < SILENCE_SECONDS:
            if self.has_room:
                self.send(Beat())
            await asyncio.sleep(PING_SECONDS)
            # If this process was stopped for a while, the peer is not to blame.
            silent_for += min(loop.time() - last, 2 * PING_SECONDS)
            last = loop.time()
            if self._num_received != count:
                silent_for, count = 0.0, self._num_received
        self.abort(f"no sign of life for {SILENCE_SECONDS:g} s")

    def abort(self, why: str = "") -> None:
        """Close the connection at once, dropping unsent data."""
        self.why_aborted = self.why_aborted or why
        self.writer.transport.abort()

    def why_lost(self, error: BaseException) -> str:
        """Return the reason why the connection was lost, where reading raised `error`."""
        if self.why_aborted:
            return self.why_aborted
        return str(error) if not isinstance(error, EOFError) else "the connection was closed"

    async def refuse(self, message: msgspec.Struct) -> None:
        """Send a refusal and close the connection.

        Data of the peer is read and dropped meanwhile: closing a socket with unread data resets the
        connection, and the peer would lose our message.
        """
        self.send(message)
        try:
            with suppress(asyncio.TimeoutError, *FAILURES):
                await within(PING_SECONDS, self.reader.readexactly(BUFFER))
        finally:
            await self.close()

    async def close(self, seconds: float = PING_SECONDS) -> None:
        """Close the connection after sending buffered data, within `seconds`."""
        try:
            self.writer.close()  # at once, also if we are cancelled
            await within(seconds, self.writer.wait_closed())
        except (OSError, asyncio.TimeoutError):
            self.writer.transport.abort()


async def accept(
    stream: socket.socket, context: ssl.SSLContext | None, seconds: float
) -> NodeConnection:
    """Accept a connection: do the TLS handshake on the accepted socket `stream`."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(BUFFER, loop)
    protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
    timeout = seconds if context else None
    transport, _ = await loop.connect_accepted_socket(
        lambda: protocol, stream, ssl=context, ssl_handshake_timeout=timeout
    )
    return NodeConnection(reader, asyncio.StreamWriter(transport, protocol, reader, loop))


async def connect(
    host: str, port: int, context: ssl.SSLContext | None, seconds: float
) -> NodeConnection:
    """Connect to a server.  Raises OSError (also for TLS) or asyncio.TimeoutError."""
    opening = asyncio.open_connection(host, port, ssl=context, limit=BUFFER)
    return NodeConnection(*await within(seconds, opening))


async def open_stream(
    stream: socket.socket,
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Open asyncio streams over our end of a worker's socket pair."""
    reader, writer = await asyncio.open_unix_connection(sock=stream, limit=BUFFER)
    writer.transport.set_write_buffer_limits(BUFFER)
    return reader, writer


async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy a stream until its end, with back-pressure.  Raises OSError if either side breaks."""
    while data := await reader.read(MAX_DATA):
        writer.write(data)
        await writer.drain()
