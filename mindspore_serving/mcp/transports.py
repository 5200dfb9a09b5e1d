"""Transports of the SDK with limits: a process by its standard streams, a URL by HTTP.

A server that floods loses its connection: over MAX_MESSAGE bytes in one message, over MAX_ANSWER
bytes or MAX_MESSAGES messages that answer one request.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import anyio
import httpx2
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.message import SessionMessage
from mcp_types import jsonrpc_message_adapter

from mindspore_serving.aio import within
from mindspore_serving.errors import UpstreamFailed
from mindspore_serving.mcp.config import McpServerConfig
from mindspore_serving.process.child import Child, exit_text
from mindspore_serving.process.child_log import ChildLog
from mindspore_serving.process.command import to_program

MAX_MESSAGE = 1 << 20  # bytes
MAX_ANSWER = 8 << 20  # bytes
MAX_MESSAGES = 2048  # such as notes of progress, which the SDK parses one by one
_FLOOD = f"it sent over {MAX_ANSWER} bytes or {MAX_MESSAGES} messages for one request"
_GRACE = 1.0  # seconds until a process that has no input any more is killed


class StdioTransport:
    """The process of a server; `problem` says why it ended, "" while it runs.

    `on_end` is called when it ends, or floods.
    """

    def __init__(self, config: McpServerConfig, log: ChildLog, on_end: Callable[[], None]) -> None:
        assert config.command is not None
        self._program = to_program([config.command, *config.args], config.env, config.cwd, log)
        self._on_end = on_end
        self.problem = ""
        self.heard = 0.0  # when the server last wrote
        self._num_bytes = self._num_lines = 0  # since our last request

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[tuple[Any, Any]]:
        """Hold the process and the streams of its messages."""
        child = Child(self._program)
        writer = None
        try:
            reader, writer = await asyncio.open_connection(sock=child.stream, limit=MAX_MESSAGE)
            received, incoming = anyio.create_memory_object_stream[Any](0)
            outgoing, to_send = anyio.create_memory_object_stream[Any](0)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._read, child, reader, received)
                tasks.start_soon(self._write, writer, to_send)
                yield incoming, outgoing
                tasks.cancel_scope.cancel()
        finally:
            if writer is None:
                child.stream.close()
            else:
                writer.close()  # the end of its input asks the server to end
            try:
                with suppress(asyncio.TimeoutError):
                    await within(_GRACE, child.wait())
            finally:
                child.close()

    async def _read(self, child: Child, reader: asyncio.StreamReader, received: Any) -> None:
        async with received:
            while line := await self._read_line(child, reader):
                await received.send(_parse(line))
            self._on_end()

    async def _read_line(self, child: Child, reader: asyncio.StreamReader) -> bytes:
        """Return the next line; b"" at the end, after `problem` is set."""
        line = b""
        try:
            line = await reader.readline()
        except ValueError:
            self.problem = f"it sent a message of over {MAX_MESSAGE} bytes"
        except OSError:
            pass  # the process has ended
        self.heard = time.monotonic()
        self._num_bytes += len(line)
        self._num_lines += 1
        if self._num_bytes > MAX_ANSWER or self._num_lines > MAX_MESSAGES:
            self.problem = _FLOOD
        elif not line and not self.problem:
            self.problem = await _end_of(child)
        return b"" if self.problem else line

    async def _write(self, writer: asyncio.StreamWriter, to_send: Any) -> None:
        async with to_send:
            async for message in to_send:
                self._num_bytes = self._num_lines = 0
                text = message.message.model_dump_json(by_alias=True, exclude_unset=True)
                writer.write(text.encode() + b"\n")
                with suppress(OSError):  # it has ended, as `_read` notices
                    await writer.drain()


async def _end_of(child: Child) -> str:
    try:
        status = await within(_GRACE, child.wait())
    except asyncio.TimeoutError:
        return "it closed its output"
    tail = child.log_tail().splitlines()
    return f"its process ended: {exit_text(status)}{f': {tail[-1][:200]}' if tail else ''}"


def _parse(line: bytes) -> Any:
    try:
        return SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False))
    except ValueError as error:
        return error


@asynccontextmanager
async def connect_http(config: McpServerConfig) -> AsyncIterator[tuple[Any, Any]]:
    """Hold the streams of the messages of a server with a URL.

    Redirects to other hosts are not followed.
    """
    assert config.url is not None
    timeout = httpx2.Timeout(config.timeout_seconds)
    headers = {"accept-encoding": "identity", **config.headers}
    hooks: Any = {"response": [_limit]}
    async with httpx2.AsyncClient(timeout=timeout, headers=headers, event_hooks=hooks) as client:
        transport = streamable_http_client(
            config.url, http_client=client, max_sse_event_size=MAX_MESSAGE
        )
        async with transport as streams:
            yield streams


async def _limit(response: httpx2.Response) -> None:
    """Limit the bytes of an answer, which must not be compressed."""
    if response.headers.get("content-encoding", "identity") != "identity":
        raise UpstreamFailed("it sent a compressed answer")
    is_stream = response.headers.get("content-type", "").startswith("text/event-stream")
    response.stream = _Limited(response.stream, MAX_ANSWER if is_stream else MAX_MESSAGE)


class _Limited(httpx2.AsyncByteStream):
    def __init__(self, stream: Any, limit: int) -> None:
        self._stream = stream
        self._limit = limit

    async def __aiter__(self) -> AsyncIterator[bytes]:
        num_bytes = num_messages = 0
        async for piece in self._stream:
            num_bytes += len(piece)
            num_messages += piece.count(b"\ndata:")
            if num_bytes > self._limit or num_messages > MAX_MESSAGES:
                raise UpstreamFailed(f"it sent over {self._limit} bytes or {MAX_MESSAGES} messages")
            yield piece

    async def aclose(self) -> None:
        await self._stream.aclose()
