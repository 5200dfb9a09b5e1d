"""The agents of this machine: a group of processes, restarted together after it has ended.

The worker is a member of the group, at the other end of a connection.  The script that calls
`distributed.startup_agents` uses `AgentSupervisor`; the rest runs on an event loop of its own.
"""

import asyncio
import concurrent.futures
import os
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from mindspore_serving.aio import BackgroundLoop, on_thread, readable
from mindspore_serving.cluster.worker_process import log_path, worker_variables
from mindspore_serving.distributed import messages, rank_table
from mindspore_serving.distributed.connecting import GangConnection, JoinRefusal, Stopped, connect
from mindspore_serving.distributed.local_ranks import AgentOptions, choose_ranks, environment
from mindspore_serving.distributed.messages import AgentSetup, FromAgent, Take
from mindspore_serving.distributed.rank_table import RankEntry
from mindspore_serving.errors import ServingError, StartError
from mindspore_serving.process.channel import BlockingChannel
from mindspore_serving.process.child import Child, Program
from mindspore_serving.process.child_log import ChildLog
from mindspore_serving.process.group import Group, ProcessMember
from mindspore_serving.process.supervisor import NoRestart, Supervisor
from mindspore_serving.process.vocabulary import Exit, Failed

SEARCH_SECONDS, RETRY_SECONDS = 60.0, 0.2  # timeout and interval of connecting to the worker
TABLES = "temp_rank_table"  # directory of the rank tables for agents


class NoWorker(NoRestart):
    """No worker of a distributed servable was found."""


class AgentMember(ProcessMember):
    """The process of a rank.

    It exits with status 0 if the worker told it that the servable is stopped, which may be seen
    before the worker's message to the script.
    """

    def describe_exit(self, status: int) -> str:
        """Describe an exit status.  Raises Stopped if there is nothing to be restarted."""
        if status == 0:
            raise Stopped("the servable is stopped")
        return super().describe_exit(status)


def start_agent(setup: AgentSetup, variables: Mapping[str, str]) -> ProcessMember:
    """Start the child process of one rank.  Raises OSError."""
    name = f"{setup.servable}, rank:{setup.rank}, device id:{setup.device_id}"
    child = Child(
        Program(
            "mindspore_serving.distributed",
            ["--name", name],
            variables={**worker_variables(), **variables},
            log=ChildLog(log_path(f"log_{setup.servable}_agent{setup.rank}")),
            channel=socket.SOCK_STREAM,
        )
    )
    channel: BlockingChannel[FromAgent] = BlockingChannel(child.stream, FromAgent)
    with suppress(OSError):  # it has ended, which the member will report
        channel.send(setup)
    return AgentMember(f"rank {setup.rank}", child, channel, messages)


class WorkerMember:
    """The worker as a member of the group, so that the agents end with it."""

    def __init__(self, connection: GangConnection) -> None:
        self._connection = connection
        self._reading = asyncio.ensure_future(self._read())

    async def ready(self) -> None:
        """Return at once: the worker is ready, as it has greeted."""

    async def ended(self) -> str:
        """Wait until the worker has ended or ends the agents, see `Member.ended`.

        Raises Stopped if the servable is stopped, JoinRefusal if the worker refuses the agents.
        """
        await asyncio.wait({self._reading})
        return "" if self._reading.cancelled() else self._reading.result()

    def kill(self) -> None:
        """Stop listening to the worker, which keeps running."""
        self._reading.cancel()

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    async def _read(self) -> str:
        try:
            while True:
                for message in self._connection.receive(wait=False):
                    if isinstance(message, Exit):
                        raise Stopped("the servable is stopped")
                    if isinstance(message, Failed):
                        raise JoinRefusal(f"the worker refuses: {message.text}")
                await readable(self._connection.fileno())
        except EOFError:
            return "the worker has closed the connection"


class Agents:
    """The agents of one gang on this machine, and the group of their processes and the worker."""

    def __init__(self, connection: GangConnection) -> None:
        self.ranks: list[RankEntry] = []
        self.group = Group()
        self.group.add(WorkerMember(connection))
        self._connection = connection
        self._table: Path | None = None

    def launch(self, options: AgentOptions) -> None:
        """Start the processes.  Raises ServingError or OSError; call `close` then, too."""
        plan = self._connection.plan
        ranks = rank_table.parse(plan.rank_table)
        self.ranks = choose_ranks(ranks, options)
        self._connection.ask(Take([rank.number for rank in self.ranks]))
        self._table = _write_table(plan.rank_table, len(ranks))
        for index, rank in enumerate(self.ranks):
            groups = options.group_files[index] if options.group_files else ()
            variables = environment(rank, ranks, str(self._table), groups, options.start_port)
            setup = _setup(options, plan.servable, rank, options.model_files[index])
            self.group.add(start_agent(setup, variables))

    def give_up(self, error: BaseException) -> None:
        """Tell the worker that the agents cannot start, unless `error` came from the worker."""
        is_ours = isinstance(error, ServingError | OSError)
        if is_ours and not isinstance(error, JoinRefusal | Stopped):
            with suppress(OSError):
                self._connection.send(Failed(f"agents cannot start: {error}"))

    async def wait(self) -> str:
        """Wait until an agent or the worker has ended; close the group and return how it ended.

        Raises Stopped if the servable is stopped.
        """
        try:
            return await self.group.wait()
        finally:
            await self.close()

    async def close(self) -> None:
        """Kill the agents, close the connection, and remove the rank table."""
        await self.group.close()
        if self._table is not None:
            self._table.unlink(missing_ok=True)


class AgentSupervisor:
    """A supervisor of the agents of this machine, for a script.

    It keeps them running from `start` to `stop`, or until the servable is stopped: then `on_end` is
    called, on another thread.
    """

    def __init__(self, options: AgentOptions, on_end: Callable[[], None]) -> None:
        self.ranks: list[RankEntry] = []
        self._options = options
        self._loop = BackgroundLoop()
        self._supervisor = Supervisor(
            "the group of agents",
            self._start,
            Agents.wait,
            lambda agents: agents.group.kill(),
            on_change=lambda _: on_end() if self.is_over else None,
        )

    @property
    def is_over(self) -> bool:
        """True if the agents have ended and will not be restarted."""
        return self._supervisor.state == "gone"

    def start(self) -> list[RankEntry]:
        """Find the worker, start the agents, wait until all have joined; return their ranks.

        Raises StartError, or another ServingError; no process is left running then.
        """
        try:
            self._loop.run(self._supervisor.start())
        except concurrent.futures.CancelledError:
            raise Stopped("the agents were stopped") from None
        return self.ranks

    def stop(self) -> None:
        """Kill the agents and end a `start` that waits; from another thread."""
        self._loop.run(self._cancel())
        self._loop.close()

    async def _cancel(self) -> None:
        self._supervisor.cancel()
        await self._supervisor.join()

    async def _start(self) -> Agents:
        """Return agents that have all joined.  Raises ServingError."""
        agents = Agents(await self._find_worker())
        try:
            agents.launch(self._options)
            await agents.group.ready()
        except BaseException as error:
            if not self.ranks:  # at the first start; later starts are retried
                agents.give_up(error)
            await agents.close()
            if isinstance(error, OSError):
                raise StartError(f"cannot start agents: {error}") from error
            raise
        self.ranks = agents.ranks
        return agents

    async def _find_worker(self) -> GangConnection:
        """Return a connection to the worker, which may start later than this script.

        Raises NoWorker after SEARCH_SECONDS, or another StartError if the worker refuses us.
        """
        loop, address = asyncio.get_running_loop(), self._options.address
        end = loop.time() + SEARCH_SECONDS
        while True:
            try:
                return await on_thread("agents", connect, address)
            except OSError as error:
                if loop.time() >= end:
                    raise NoWorker(
                        f"no worker of a distributed servable answered at {address} within "
                        f"{SEARCH_SECONDS:g} s: {error}"
                    ) from error
            await asyncio.sleep(RETRY_SECONDS)


def _setup(
    options: AgentOptions, servable: str, rank: RankEntry, files: tuple[str, ...]
) -> AgentSetup:
    return AgentSetup(
        options.address,
        servable,
        rank.number,
        rank.device_id,
        list(files),
        options.dec_key,
        options.dec_mode,
    )


def _write_table(text: str, count: int) -> Path:
    """Write the rank table to a file, which the runtimes read, and return its path."""
    name = f"hccl_rank_table_{time.time_ns()}_{os.getpid()}_{count}p.json"
    path = Path(TABLES, name).absolute()
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return path
