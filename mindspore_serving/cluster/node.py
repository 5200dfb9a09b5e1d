"""A node: a machine that joins a master elsewhere and starts workers for it.

It starts our workers and hosts of their ranks only, for servables of one directory; no command,
path or code comes over the wire.  If it loses the master, it kills its workers and tries to join
again.
"""

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass

from mindspore_serving import log
from mindspore_serving.aio import is_set_within, within
from mindspore_serving.cluster.base import ANYTHING
from mindspore_serving.cluster.dialing import CannotReach, MasterAddress
from mindspore_serving.cluster.local import LocalLauncher
from mindspore_serving.cluster.node_connection import FAILURES, NodeConnection
from mindspore_serving.cluster.node_messages import (
    Attach,
    JoinCluster,
    NotStarted,
    Start,
    ToNode,
    check_start,
)
from mindspore_serving.cluster.node_worker import NodeWorker
from mindspore_serving.cluster.worker_process import RANK_HOST, WORKER
from mindspore_serving.errors import ResourceShortage, ServingError, StartError
from mindspore_serving.process.vocabulary import Beat, Failed, Leaving, Ready

ANSWER_SECONDS = 15.0  # timeout of the master's answer to a join
_FIRST_DELAY, _MAX_DELAY = 0.25, 5.0  # seconds between attempts to join


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """Settings of a node.

    Args:
        master: the master to join.
        servables: the only directory of servables; None: the paths that the master sends.
        address: where workers and ranks of this machine listen for others; "": where it reaches
            the master.
    """

    master: MasterAddress
    servables: str | None = None
    address: str = ""


class ClusterNode:
    """The node of this machine; `offer` describes it to the master.

    `on_joined` is called each time the node has joined.
    """

    def __init__(
        self, offer: JoinCluster, settings: NodeSettings, on_joined: Callable[[], None]
    ) -> None:
        self._offer = offer
        self._settings = settings
        self._on_joined = on_joined
        self._launcher = LocalLauncher(is_inline=True)
        self._connection: NodeConnection | None = None
        self._tasks: set[asyncio.Task[None]] = set()  # of workers
        self._workers: set[NodeWorker] = set()
        self._has_joined = False
        self._address = settings.address
        self._is_leaving = asyncio.Event()

    async def run(self, join_seconds: float) -> None:
        """Join the master and serve it, until `leave`.

        Raises StartError if the first join is refused or does not succeed in `join_seconds`.
        """
        loop = asyncio.get_running_loop()
        end, delay = loop.time() + join_seconds, _FIRST_DELAY
        while not self._is_leaving.is_set():
            had_joined = self._has_joined
            try:
                await self._stay_joined()
                delay = _FIRST_DELAY
            except (CannotReach, StartError) as error:
                is_over = isinstance(error, StartError) or loop.time() + delay > end
                if not had_joined and is_over:
                    raise StartError(str(error)) from None
                log.warning("%s; retrying in %.1f s", error, delay)
            jittered = delay * random.uniform(0.7, 1.0)
            await is_set_within(jittered, self._is_leaving)
            delay = min(_MAX_DELAY, 2 * delay)

    async def leave(self, seconds: float) -> None:
        """Leave the cluster; workers may finish for `seconds`, and the master moves them."""
        self._is_leaving.set()
        if self._connection is None:
            return
        self._connection.send(Leaving())
        for worker in self._workers:
            worker.leave()
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=seconds)
        self._connection.abort()

    async def _stay_joined(self) -> None:
        """Join, and obey the master until the connection is lost.

        Raises StartError if the master refuses this node, CannotReach if it does not answer.
        """
        connection = await self._settings.master.dial()
        try:
            await self._join(connection)
            self._connection, self._has_joined = connection, True
            self._address = self._settings.address or connection.host
            self._on_joined()
            log.warning("lost the master: %s", await self._follow(connection))
        finally:
            self._connection = None
            connection.abort()
            await self._end_workers()

    async def _join(self, connection: NodeConnection) -> None:
        connection.send(self._offer)
        try:
            answer = await within(ANSWER_SECONDS, _first_answer(connection))
        except (asyncio.TimeoutError, *FAILURES) as error:
            why = connection.why_lost(error) or f"no answer within {ANSWER_SECONDS:g} s"
            raise CannotReach(
                f"the master did not accept this node ({why}); see its log: it may require a "
                "certificate (--tls-cert)"
            ) from error
        if isinstance(answer, Failed):
            raise StartError(f"the master refused this node: {answer.text}")

    async def _follow(self, connection: NodeConnection) -> str:
        """Handle messages of the master until it is lost; return why."""
        alive = asyncio.create_task(connection.keep_alive())
        try:
            while True:
                message: ToNode = await connection.receive(ToNode)
                if isinstance(message, Start):
                    self._begin(message)
                elif not isinstance(message, Beat):
                    raise ValueError("it sent a message that a node does not expect")
        except FAILURES as error:
            return connection.why_lost(error)
        finally:
            alive.cancel()

    def _begin(self, start: Start) -> None:
        task = asyncio.create_task(self._work(start))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _end_workers(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _work(self, start: Start) -> None:
        """Start a worker and serve it until it has ended."""
        connection = await self._dial_for_worker(start.name)
        try:
            connection.send(Attach(start.id))
            worker = await self._launch(start, connection)
            if worker is not None:
                await self._stay(worker)
        finally:
            connection.abort()

    async def _dial_for_worker(self, name: str) -> NodeConnection:
        """Connect to the master, retrying until it succeeds or the node is cancelled."""
        while True:
            try:
                return await self._settings.master.dial()
            except ServingError as error:
                log.warning("%s: %s", name, error)
                await asyncio.sleep(_MAX_DELAY)

    async def _stay(self, worker: NodeWorker) -> None:
        self._workers.add(worker)
        try:
            await worker.run()
        finally:
            self._workers.discard(worker)

    async def _launch(self, start: Start, connection: NodeConnection) -> NodeWorker | None:
        """Start a worker and return it; None if that failed, after telling the master why."""
        try:
            check_start(start, self._offer)
            if len(self._tasks) > self._offer.slots or self._is_leaving.is_set():
                raise ResourceShortage("no slot is free")
            log_name = f"{self._offer.name}_{start.log_name}"
            launched = await self._launcher.launch(
                start.name, log_name, ANYTHING, self._options(start),
                RANK_HOST if start.hosts_ranks else WORKER,
            )  # fmt: skip
        except ServingError as error:
            is_shortage = isinstance(error, ResourceShortage)
            connection.send(NotStarted(str(error), is_shortage))
            await connection.close()
            return None
        log.info("started %s: pid %d", start.name, launched.process.pid)
        return NodeWorker(launched, connection)

    def _options(self, start: Start) -> list[str]:
        """Return options of the worker that depend on this machine."""
        options = []
        if self._settings.servables is not None:
            options += ["--servables", self._settings.servables]
        if start.device_id is not None and self._offer.device_ids:
            options += ["--device-id", str(start.device_id)]
        options += ["--address", self._address]
        if not start.hosts_ranks:
            options += ["--server", self._settings.master.host]
        return options


async def _first_answer(connection: NodeConnection) -> Ready | Failed:
    answer: Ready | Failed = await connection.receive(Ready | Failed)
    return answer
