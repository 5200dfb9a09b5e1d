"""Workers of a node on the master's side: a remote process, and its relayed stream.

Link <- socket pair -> relay <- connection that the node has opened -> NodeWorker <-> worker
"""

import asyncio
import secrets
import signal
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from mindspore_serving.aio import within
from mindspore_serving.cluster.base import Launched, Needs
from mindspore_serving.cluster.node_connection import FAILURES, NodeConnection, copy, open_stream
from mindspore_serving.cluster.node_messages import (
    MAX_DATA_MESSAGE,
    Data,
    Exited,
    FromWorker,
    Moving,
    NotStarted,
    Report,
    Start,
    WorkerStarted,
)
from mindspore_serving.errors import ResourceShortage, StartError
from mindspore_serving.ipc import status
from mindspore_serving.ipc.arena import NoArena

START_SECONDS = 60.0  # timeout of a node that starts a process


class RemoteProcess:
    """A worker process of a node.  The loss of its connection counts as its end."""

    def __init__(self, connection: NodeConnection, node: str, pid: int) -> None:
        self._connection = connection
        self._node = node
        self._pid = pid
        self._tail = ""
        self._ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.view = NoArena(status.SIZE)  # a copy of the worker's status
        self.is_left = asyncio.Event()  # set once its node leaves

    @property
    def pid(self) -> int:
        return self._pid

    async def wait(self) -> int:
        return await asyncio.shield(self._ended)

    def kill(self) -> None:
        """Close the connection, on which the node kills the process and its descendants."""
        self._end(-signal.SIGKILL, "")

    def lose(self, why: str) -> None:
        """Record the loss of the node; the last status of the worker is unknown."""
        if not self._ended.done():
            for lane in (status.STAGES, status.STEPS):
                status.Lane(self.view.reserved, lane).begin()
            self._end(-signal.SIGHUP, f"node {self._node} is lost: {why}")

    def log_tail(self) -> str:
        return self._tail

    async def relay(self, stream: socket.socket) -> None:
        """Copy between `stream` and the connection until either breaks, and close both."""
        reader, writer = await open_stream(stream)
        out = asyncio.create_task(self._copy_to_worker(reader))
        try:
            await self._copy_from_worker(writer)
        except FAILURES as error:
            self.lose(self._connection.why_lost(error))
        finally:
            out.cancel()
            self._connection.abort()
            writer.close()

    async def _copy_to_worker(self, reader: asyncio.StreamReader) -> None:
        with suppress(OSError):
            await copy(reader, self._connection.writer)

    async def _copy_from_worker(self, writer: asyncio.StreamWriter) -> None:
        while not self._ended.done():
            message: FromWorker = await self._connection.receive(FromWorker, MAX_DATA_MESSAGE)
            if isinstance(message, Data):
                writer.write(message.content)
                await writer.drain()
            else:
                self._take(message)

    def _take(self, message: FromWorker) -> None:
        if isinstance(message, Report):
            now = time.monotonic()
            running = [replace(entry, since=now - entry.since) for entry in message.running]
            status.write(self.view.reserved, message.num_beats, running)
            status.set_loaded(self.view.reserved, message.loaded)
            if message.numbers is not None:
                status.set_counters(self.view.reserved, message.numbers)
        elif isinstance(message, Moving):
            self.is_left.set()
        elif isinstance(message, Exited):
            self._end(message.status, message.tail)
        else:
            raise ValueError("it reported the start of the worker twice")

    def _end(self, exit_status: int, tail: str) -> None:
        if not self._ended.done():
            self._tail = tail
            self._ended.set_result(exit_status)
            self._connection.abort()


class RemoteLauncher:
    """A launcher of workers on one node; `send` sends a message to the node."""

    def __init__(self, node: str, send: Callable[[Start], None]) -> None:
        self._node = node
        self._send = send
        self._pending: dict[str, asyncio.Future[NodeConnection]] = {}
        self._processes: set[RemoteProcess] = set()
        self._relays: set[asyncio.Task[None]] = set()

    def attach(self, worker_id: str, connection: NodeConnection) -> bool:
        """Hand over the connection of a worker; return whether `worker_id` was requested here."""
        waiting = self._pending.get(worker_id)
        if waiting is None or waiting.done():
            return False
        waiting.set_result(connection)
        return True

    def lose(self, why: str) -> None:
        """Fail all workers and pending starts, as the node is lost."""
        for process in list(self._processes):
            process.lose(why)
        for waiting in self._pending.values():
            if not waiting.done():
                waiting.set_exception(ResourceShortage(f"node {self._node} is lost: {why}"))

    async def launch(self, name: str, log_name: str, needs: Needs) -> Launched:
        """Start a worker on the node, see `Launcher.launch`."""
        worker_id = secrets.token_hex(16)
        waiting = self._pending[worker_id] = asyncio.get_running_loop().create_future()
        self._send(Start(worker_id, name, log_name, needs.device_id, needs.hosts_ranks))
        try:
            connection = await within(START_SECONDS, waiting)
            answer = connection.receive(WorkerStarted | NotStarted)
            return self._launched(connection, await within(START_SECONDS, answer))
        except BaseException as error:
            if waiting.done() and not waiting.cancelled() and waiting.exception() is None:
                waiting.result().abort()
            if isinstance(error, (asyncio.TimeoutError, *FAILURES)):
                text = f"node {self._node} has not started a worker for {name}: {error}"
                raise ResourceShortage(text) from error
            raise
        finally:
            del self._pending[worker_id]

    def _launched(self, connection: NodeConnection, answer: WorkerStarted | NotStarted) -> Launched:
        if isinstance(answer, NotStarted):
            kind = ResourceShortage if answer.is_shortage else StartError
            raise kind(f"node {self._node}: {answer.text}")
        process = RemoteProcess(connection, self._node, answer.pid)
        ours, theirs = socket.socketpair()
        self._processes.add(process)
        relay = asyncio.create_task(process.relay(theirs))
        self._relays.add(relay)
        relay.add_done_callback(lambda _: self._processes.discard(process))
        relay.add_done_callback(self._relays.discard)
        return Launched(process, ours, NoArena(), process.view, is_left=process.is_left)
