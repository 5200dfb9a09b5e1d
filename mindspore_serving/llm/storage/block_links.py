"""Blocks of prompts that go straight from one machine to another, over TLS.

    worker that computes prompts          worker that decodes
    the name of the memory            ->
    a head: how many blocks there are
    with those that follow            ->
    blocks                            ->  decrypted into the memory
    a head, blocks ...                ->
                                      <-  a byte and the end, once all blocks are there

Members of a group accept its certificate alone.  Nothing has a size that its receiver has not
chosen before; who is silent for too long is disconnected.
"""

import array
import asyncio
import socket
import ssl
import termios
from collections.abc import Callable, Iterable
from fcntl import ioctl

import msgspec

from mindspore_serving.aio import BackgroundLoop, within
from mindspore_serving.core.placement import LinkSettings
from mindspore_serving.core.prefill_messages import BlocksWritten, Prefill
from mindspore_serving.llm.storage.block_listener import (
    COMPLETE,
    HEAD,
    NAME,
    OPEN_SECONDS,
    BlockListener,
)
from mindspore_serving.llm.storage.block_memory import BlockMemory, BlockWriter
from mindspore_serving.tls import to_group_context

SEND_AHEAD = 8 << 20  # bytes of a prompt that wait to be sent; more stay in the cache
STALL_SECONDS = 30.0  # for some bytes to be sent
_BUFFER = 1 << 18


class BlockLinks:
    """Ends of links of one worker, on a thread of their own.

    Args:
        settings: the machine of this worker, its address, and the credentials of the group.
        model: everything that blocks depend on; workers exchange blocks only if it is equal.
    """

    def __init__(self, settings: LinkSettings, model: str) -> None:
        self.settings, self.model = settings, model
        self._loop = BackgroundLoop()
        self._listener: BlockListener | None = None

    @property
    def listener(self) -> BlockListener:
        """Listener of this worker, opened at first use.  Raises StartError."""
        if self._listener is None:
            opening = BlockListener.open(self.settings.listen_host, self.settings.credentials)
            self._listener = self._loop.run(opening)
        return self._listener

    def open_writer(
        self, request: Prefill, block_bytes: int, on_change: Callable[[], None]
    ) -> BlockWriter:
        """Return the way to the memory of a request.  Raises OSError if there is none.

        `on_change` is called, on any thread, when it has room again, has sent all, or has failed.
        """
        if request.machine == self.settings.machine:
            return BlockMemory.open(request.path, request.name, block_bytes)
        if not request.port:
            raise OSError("the worker that decodes is on another machine and listens for no blocks")
        if request.model != self.model:
            raise OSError(
                f"the worker that decodes has {request.model!r:.200}, but this one {self.model!r}: "
                "use the same checkpoint, versions and kind of processor on all machines"
            )
        context = to_group_context(*self.settings.credentials.pem, accepts=False)
        address = request.host or self.settings.server_host, request.port
        sender = BlockSender(address, request.name, block_bytes, on_change)
        sender.start(self._loop, context)
        return sender

    def close(self) -> None:
        """Close all connections, and end the thread."""
        if self._listener is not None:
            self._loop.run(self._listener.close())
        self._loop.close()


class BlockSender:
    """Connection to the memory of a worker on another machine; a `BlockWriter`."""

    def __init__(
        self, address: tuple[str, int], name: str, block_bytes: int, on_change: Callable[[], None]
    ) -> None:
        self.is_done = False
        self._address, self._name, self._block_bytes = address, name, block_bytes
        self._on_change = on_change
        self._limit = max(1, SEND_AHEAD // block_bytes)
        self._num_queued = 0  # blocks
        self._problem = ""
        self._bursts: asyncio.Queue[tuple[BlocksWritten, list[memoryview]] | None]
        self._loop: asyncio.AbstractEventLoop
        self._task: asyncio.Task[None]

    def start(self, loop: BackgroundLoop, context: ssl.SSLContext) -> None:
        """Begin to connect, on the thread of `loop`."""

        async def begin() -> None:
            self._loop, self._bursts = asyncio.get_running_loop(), asyncio.Queue()
            self._task = self._loop.create_task(self._run(context))

        loop.run(begin())

    @property
    def room(self) -> int:
        return max(0, self._limit - self._num_queued)

    def write(
        self, first: int, blocks: Iterable[memoryview], written: BlocksWritten
    ) -> list[BlocksWritten]:
        if self._problem:
            raise OSError(self._problem)
        contents = list(blocks)
        self._num_queued += len(contents)
        self._loop.call_soon_threadsafe(self._bursts.put_nowait, (written, contents))
        return []

    def finish(self) -> None:
        self._loop.call_soon_threadsafe(self._bursts.put_nowait, None)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._task.cancel)

    def check(self) -> None:
        if self._problem:
            raise OSError(self._problem)

    async def _run(self, context: ssl.SSLContext) -> None:
        where = f"{self._address[0]}:{self._address[1]}"
        try:
            await self._send(context)
        except asyncio.TimeoutError:
            self._problem = f"{where} takes no blocks for {STALL_SECONDS:g} s"
        except (OSError, EOFError) as error:
            self._problem = f"blocks cannot be sent to {where}: {error or type(error).__name__}"
        except BaseException:
            self._problem = "the connection was closed"
            raise
        self.is_done = not self._problem
        self._on_change()

    async def _send(self, context: ssl.SSLContext) -> None:
        opening = asyncio.open_connection(*self._address, ssl=context)
        reader, writer = await within(OPEN_SECONDS, opening)
        transport, stream = writer.transport, writer.get_extra_info("socket")
        ending = asyncio.ensure_future(reader.read(1))
        ending.add_done_callback(lambda _: self._bursts.put_nowait(None))
        try:
            transport.set_write_buffer_limits(_BUFFER)
            writer.write(NAME.pack(self._name.encode(), self._block_bytes))
            while (burst := await self._bursts.get()) is not None:
                written, contents = burst
                writer.write(HEAD.pack(*msgspec.structs.astuple(written)))
                for content in contents:
                    writer.write(content)
                    if transport.get_write_buffer_size() > _BUFFER:
                        await within(STALL_SECONDS, writer.drain())
                    self._num_queued -= 1
                self._on_change()
            unsent = _unsent(stream)
            while not (await asyncio.wait((ending,), timeout=STALL_SECONDS))[0]:
                before, unsent = unsent, _unsent(stream)
                if unsent >= before:
                    raise asyncio.TimeoutError
            if ending.result() != COMPLETE:
                raise OSError("the other side has closed the connection")
        finally:
            ending.cancel()
            transport.abort()


def _unsent(stream: socket.socket) -> int:
    """Return the number of bytes that the peer has not acknowledged."""
    count = array.array("i", [0])
    ioctl(stream.fileno(), termios.TIOCOUTQ, count)
    return count[0]
