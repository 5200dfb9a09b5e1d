"""A worker of a node: a local process whose stream is relayed to the master and back."""

import asyncio
import os
import signal
import time
from contextlib import suppress
from dataclasses import replace

from mindspore_serving.cluster.base import Launched
from mindspore_serving.cluster.node_connection import (
    FAILURES,
    NodeConnection,
    copy,
    open_stream,
)
from mindspore_serving.cluster.node_messages import MAX_DATA, Exited, Moving, Report, WorkerStarted
from mindspore_serving.ipc import status

_HOLD = 0.5  # seconds to wait for the end of a dead worker's stream, which its child may hold open
_FLUSH_SECONDS = 10.0  # timeout of sending buffered data to the master


class NodeWorker:
    """The relay of one worker process, which is killed if the connection to the master is lost."""

    def __init__(self, launched: Launched, connection: NodeConnection) -> None:
        self._launched = launched
        self._process = launched.process
        self._connection = connection

    def leave(self) -> None:
        """Make the worker finish, and the master start its replacement on another machine."""
        self._connection.send(Moving())
        with suppress(ProcessLookupError):
            os.kill(self._process.pid, signal.SIGTERM)

    async def run(self) -> None:
        """Relay the stream until the process has ended or the connection is lost."""
        self._connection.send(WorkerStarted(self._process.pid))
        reader, writer = await open_stream(self._launched.stream)
        to_worker = asyncio.create_task(self._copy_to_worker(writer))
        to_master = asyncio.create_task(self._copy_to_master(reader))
        reports = asyncio.create_task(self._report())
        ended = asyncio.create_task(self._process.wait())
        try:
            await asyncio.wait({to_worker, ended}, return_when=asyncio.FIRST_COMPLETED)
            if ended.done():
                await asyncio.wait({to_master}, timeout=_HOLD)
                reports.cancel()
                await self._say_goodbye(ended.result())
        finally:
            self._process.kill()
            await ended
            for task in (to_worker, to_master, reports):
                task.cancel()
            writer.close()
            self._connection.abort()
            self._launched.arena.close()
            self._launched.view.close()

    async def _copy_to_worker(self, writer: asyncio.StreamWriter) -> None:
        with suppress(*FAILURES):
            await copy(self._connection.reader, writer)

    async def _copy_to_master(self, reader: asyncio.StreamReader) -> None:
        with suppress(*FAILURES):
            while data := await reader.read(MAX_DATA):
                await self._connection.send_data(data)

    async def _report(self) -> None:
        while True:
            await asyncio.sleep(status.BEAT_SECONDS)
            if self._connection.has_room:
                self._connection.send(self._state())

    def _state(self) -> Report:
        memory, now = self._launched.view.reserved, time.monotonic()
        running = [replace(entry, since=now - entry.since) for entry in status.read(memory)]
        numbers = status.counters(memory)
        return Report(status.beats(memory) or 0, running, status.loaded(memory), numbers)

    async def _say_goodbye(self, exit_status: int) -> None:
        """Send the last status of the worker and its exit, after all the data that it sent."""
        self._connection.send(self._state())
        self._connection.send(Exited(exit_status, self._process.log_tail()))
        await self._connection.close(_FLUSH_SECONDS)
