"""A link between two machines that passes so many bytes a second, or none while it is cut."""

import asyncio
from contextlib import suppress

from mindspore_serving.aio import BackgroundLoop

CHUNK = 1 << 14
DELAYED = 64  # chunks under way


class SlowLink:
    """Port at `host` whose connections go on to `target`, delayed by `delay` seconds each way.

    `stream` is a socket that listens already.
    """

    def __init__(self, target, host="127.0.0.1", rate=float("inf"), delay=0.0, stream=None):
        self.target, self.rate, self.delay = target, rate, delay
        self.num_bytes = 0  # to the target
        self._loop = BackgroundLoop()
        where = {"host": host, "port": 0} if stream is None else {"sock": stream}
        self.port = self._loop.run(self._open(where))

    async def _open(self, where):
        self._flows = asyncio.Event()
        self._flows.set()
        self._server = await asyncio.start_server(self._serve, **where)
        return self._server.sockets[0].getsockname()[1]

    def cut(self):
        """Pass nothing any more, without closing a connection."""
        self._loop.run(self._set(flows=False))

    def heal(self):
        """Pass bytes again."""
        self._loop.run(self._set(flows=True))

    def close(self):
        """Close the port and all connections.  Harmless a second time."""
        if self._server is not None:
            self._loop.run(self._close())
            self._loop.close()

    async def _close(self):
        self._server.close()
        self._server = None
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _set(self, *, flows):
        (self._flows.set if flows else self._flows.clear)()

    async def _serve(self, reader, writer):
        there, back = await asyncio.open_connection(*self.target)
        ways = [self._pass(reader, back, is_counted=True), self._pass(there, writer)]
        try:
            with suppress(OSError, asyncio.CancelledError):  # else the server logs it
                await asyncio.gather(*ways)
        finally:
            for end in (writer, back):
                end.transport.abort()

    async def _pass(self, reader, writer, *, is_counted=False):
        """Pass chunks on, each after the delay, and no faster than the rate."""
        loop, queue = asyncio.get_running_loop(), asyncio.Queue(DELAYED)

        async def read():
            while True:
                chunk = await reader.read(CHUNK)
                await queue.put((loop.time() + self.delay, chunk))
                if not chunk:
                    return

        reading = asyncio.create_task(read())
        try:
            while True:
                due, chunk = await queue.get()
                await asyncio.sleep(max(len(chunk) / self.rate, due - loop.time()))
                await self._flows.wait()
                if not chunk:
                    writer.write_eof() if writer.can_write_eof() else writer.close()
                    return
                self.num_bytes += is_counted * len(chunk)
                writer.write(chunk)
                await writer.drain()
        finally:
            reading.cancel()
