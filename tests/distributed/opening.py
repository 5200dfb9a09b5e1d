"""A gang's model in this process, for agents that are only connections."""

import asyncio
import socket
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import numpy as np

from mindspore_serving.core.declaration import DistributedSpec
from mindspore_serving.core.deployment import GangOptions
from mindspore_serving.core.value import Signature, TensorSpec
from mindspore_serving.distributed import messages
from mindspore_serving.distributed.backend import GangModel
from mindspore_serving.distributed.connecting import GangConnection, connect
from mindspore_serving.distributed.messages import JoinGang, Ran, RunRank, Take
from mindspore_serving.errors import StartError
from mindspore_serving.ipc.messages import Fault
from mindspore_serving.process.vocabulary import Failed
from mindspore_serving.wire import native
from tests.distributed import tables
from tests.ports import free_port
from tests.waiting import PATIENCE, eventually

FLOAT = np.dtype(np.float32)
PID = 7  # of every agent


def report(name: str = "x", shape: tuple[int, ...] = (2, 3)) -> list[messages.GraphReport]:
    tensors = (TensorSpec(name, FLOAT, shape),)
    return messages.to_reports([Signature(tensors, (TensorSpec("y", FLOAT, shape),))])


class Opening:
    """A gang that waits for its agents on a thread; `model` once it is complete."""

    def __init__(self, pool: ThreadPoolExecutor, rank_size: int, stage_size: int, **how: Any):
        self.address = f"127.0.0.1:{free_port()}"
        self.broken: Future[str] = Future()
        self.connections: list[GangConnection] = []
        times = [how.pop(name, 0.0) for name in ("wait", "timeout", "limit")]
        machines = [(tables.IP, 8)] * (rank_size // 8) or [(tables.IP, rank_size)]
        options = GangOptions(tables.text(*machines), self.address, *times)
        spec = DistributedSpec(rank_size, stage_size, **how)
        self.stop_requested = threading.Event()
        self._opened = pool.submit(
            GangModel.open, "big", spec, options, self.broken.set_result, self._stop_requested
        )
        self._ranks = rank_size

    async def _stop_requested(self) -> None:
        while not self.stop_requested.is_set():
            await asyncio.sleep(0.01)

    @property
    def model(self) -> GangModel:
        return self._opened.result(PATIENCE)

    @property
    def error(self) -> str:
        return str(self._opened.exception(PATIENCE))

    def end_wait(self) -> None:
        """Give up by some connection that the gang still has, or a new one."""

        def attempt() -> bool:
            with suppress(OSError, StartError):
                self.connections.append(connect(self.address))
            for connection in self.connections:
                with suppress(OSError):
                    connection.send(Failed("the test is over"))
            return self._opened.done()

        eventually(attempt)

    def connect(self) -> GangConnection:
        def attempt() -> GangConnection | None:
            try:
                return connect(self.address)
            except OSError:
                return None

        self.connections.append(eventually(attempt))
        return self.connections[-1]

    def script(self, *ranks: int) -> GangConnection:
        connection = self.connect()
        connection.ask(Take(list(ranks or range(self._ranks))))
        return connection

    def agent(self, rank: int, *args: Any) -> GangConnection:
        connection = self.connect()
        connection.ask(JoinGang(rank, report(*args), PID))
        return connection


class Agent:
    """The agent of a rank, which answers what it is asked when a test says so."""

    def __init__(self, connection: GangConnection) -> None:
        self.connection = connection
        self._runs: list[RunRank] = []

    @property
    def is_idle(self) -> bool:
        """Whether nothing has come."""
        self._runs += self.connection.receive(wait=False)
        return not self._runs

    def next(self) -> RunRank:
        while not self._runs:
            self._runs += self.connection.receive(wait=True)
        return self._runs.pop(0)

    def answer(self, value: "np.ndarray | None" = None, run: RunRank | None = None) -> None:
        """To `run`, or the next one."""
        outputs = native.encode_values([value]) if value is not None else b""
        self.connection.send(Ran((run or self.next()).id, outputs))

    def fail(self, text: str) -> None:
        self.connection.send(Ran(self.next().id, b"", Fault(3, text)))


def complete(gang: Opening, *names: str) -> list[Agent]:
    gang.script()
    agents = [Agent(gang.agent(rank, name)) for rank, name in enumerate(names)]
    assert gang.model is not None
    return agents


def raw(gang: Opening) -> socket.socket:
    gang.connect().close()  # it listens
    return dial(gang)


def dial(gang: Opening) -> socket.socket:
    host, _, port = gang.address.rpartition(":")
    return socket.create_connection((host, int(port)), PATIENCE)


def all_of(stream: socket.socket) -> bytes:
    with stream:
        found = b""
        while chunk := stream.recv(1 << 16):
            found += chunk
        return found
