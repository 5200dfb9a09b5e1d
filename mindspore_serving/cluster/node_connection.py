"""A connection between a node and the master: messages with limits, signs of life, and relays.

Knows no messages but `Beat` and `Data`, and not which end it is.
"""

import asyncio
import socket
import ssl
from collections.abc import Iterator
from contextlib import suppress
from typing import TypeVar

import msgspec

from mindspore_serving.cluster.node_messages import MOST_DATA, MOST_MESSAGE, Data
from mindspore_serving.errors import TooLarge
from mindspore_serving.process.channel import encode
from mindspore_serving.process.frames import FrameDecoder
from mindspore_serving.process.vocabulary import Beat

PING_SECONDS = 1.0
SILENCE_SECONDS = 8.0  # without anything from the other end, it is lost
MOST_MESSAGES = 100  # but for data, that are read in a second; more wait, and so does their sender
MESSAGES_AT_ONCE = 16  # that are read before others have their turn
BUFFER = 1 << 18  # bytes that wait in a connection, in each direction
FAILURES = (
    OSError,
    EOFError,
    msgspec.MsgspecError,
    TooLarge,
    ValueError,
    ArithmeticError,
)
"""What reading from another machine may raise: it is gone, or sends what is no message."""

T = TypeVar("T")


class NodeConnection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.why_aborted = ""
        self._frames: FrameDecoder[memoryview] = FrameDecoder(lambda content: content)
        self._received: Iterator[memoryview] = iter(())  # frames that came with the last one
        self._num_received = 0
        self._num_messages, self._second = 0, 0.0  # since the begin of this one
        writer.transport.set_write_buffer_limits(BUFFER)

    @property
    def peer(self) -> str:
        name = self.writer.get_extra_info("peername")
        return f"{name[0]}:{name[1]}" if name else "?"

    def send(self, message: msgspec.Struct) -> None:
        self.writer.write(encode(message))

    async def receive(self, kind: "type[T] | object", limit: int = MOST_MESSAGE) -> "T":
        """Wait for the next message, of `kind` and at most `limit` bytes.  Raises one of
        FAILURES.
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
            await asyncio.sleep(0)  # what is in the buffer is read without a pause
        return message

    async def _slow_down(self) -> None:
        """Wait until the next second if there are too many messages in this one."""
        now = asyncio.get_running_loop().time()
        if now - self._second >= 1:
            self._num_messages, self._second = 0, now
        self._num_messages += 1
        if self._num_messages >= MOST_MESSAGES:
            await asyncio.sleep(self._second + 1 - now)

    async def send_data(self, data: bytes) -> None:
        """A piece of a worker's stream; waits while the other end does not read."""
        self.send(Data(data))
        await self.writer.drain()

    @property
    def has_room(self) -> bool:
        """Whether what is sent now does not wait behind much else."""
        return self.writer.transport.get_write_buffer_size() < BUFFER

    async def keep_alive(self) -> None:
        """Send signs of life, and abort when there is none from the other end."""
        loop = asyncio.get_running_loop()
        silent_for, last, count = 0.0, loop.time(), self._num_received
        while silent_for < SILENCE_SECONDS:
            if self.has_room:
                self.send(Beat())
            await asyncio.sleep(PING_SECONDS)
            # If we were stopped ourselves for a while, the other end is not to blame.
            silent_for += min(loop.time() - last, 2 * PING_SECONDS)
            last = loop.time()
            if self._num_received != count:
                silent_for, count = 0.0, self._num_received
        self.abort(f"no sign of life for {SILENCE_SECONDS:g} s")

    def abort(self, why: str = "") -> None:
        """End it now, with what was not sent."""
        self.why_aborted = self.why_aborted or why
        self.writer.transport.abort()

    def why_lost(self, error: BaseException) -> str:
        """What to say when `error` ended the reading."""
        if self.why_aborted:
            return self.why_aborted
        return str(error) if not isinstance(error, EOFError) else "the connection was closed"

    async def refuse(self, message: msgspec.Struct) -> None:
        """Say why, and end it.  What the other end still sends is read, as the kernel would else
        throw away what it has not read of ours.
        """
        self.send(message)
        try:
            with suppress(asyncio.TimeoutError, *FAILURES):
                await asyncio.wait_for(self.reader.readexactly(BUFFER), PING_SECONDS)
        finally:
            await self.close()

    async def close(self, seconds: float = PING_SECONDS) -> None:
        """End it when all is sent, within `seconds`."""
        try:
            self.writer.close()  # at once, also if we are cancelled
            await asyncio.wait_for(self.writer.wait_closed(), seconds)
        except (OSError, asyncio.TimeoutError):
            self.writer.transport.abort()


async def accept(
    stream: socket.socket, context: ssl.SSLContext | None, seconds: float
) -> NodeConnection:
    """The server's end of `stream`, after the handshake of TLS."""
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
    """The client's end.  Raises OSError (also of TLS) or asyncio.TimeoutError."""
    opening = asyncio.open_connection(host, port, ssl=context, limit=BUFFER)
    return NodeConnection(*await asyncio.wait_for(opening, seconds))


async def open_stream(
    stream: socket.socket,
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Our end of the socket pair of a worker."""
    reader, writer = await asyncio.open_unix_connection(sock=stream, limit=BUFFER)
    writer.transport.set_write_buffer_limits(BUFFER)
    return reader, writer


async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """All bytes, no faster than they are taken.  Raises OSError when an end breaks."""
    while data := await reader.read(MOST_DATA):
        writer.write(data)
        await writer.drain()
