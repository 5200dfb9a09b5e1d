"""The agents of this machine: started together, ended together, started again.

`Agents` lives as long as one gang; `AgentSupervisor` starts the next.  Runs on the threads of the
script that calls `distributed.startup_agents`.
"""

import os
import select
import time
from contextlib import suppress
from pathlib import Path

from mindspore_serving import log
from mindspore_serving.core.backoff import Backoff
from mindspore_serving.distributed import messages, rank_table
from mindspore_serving.distributed.connecting import GangConnection, Refusal, Stopped, connect
from mindspore_serving.distributed.launching import AgentProcess
from mindspore_serving.distributed.messages import AgentSetup, Take
from mindspore_serving.distributed.places import AgentOptions, choose_ranks, environment
from mindspore_serving.distributed.rank_table import Rank
from mindspore_serving.errors import ServingError, StartError
from mindspore_serving.process.vocabulary import Exit, Failed, Hello, why_other

SEARCHING, BETWEEN_TRIES = 60.0, 1.0  # seconds, for the worker
TABLES = "temp_rank_table"  # where agents find the rank table


class Absent(StartError):
    """There is no worker."""


class Agents:
    """The processes of this machine's ranks, and their script's connection to the worker."""

    def __init__(self, options: AgentOptions, connection: GangConnection, stop: int) -> None:
        """`stop` is a descriptor that is readable when all should end."""
        self.ranks: list[Rank] = []
        self._options = options
        self._connection = connection
        self._stop = stop
        self._processes: list[AgentProcess] = []
        self._table: Path | None = None

    def launch(self) -> None:
        """Start the processes.  Raises ServingError or OSError; `end` is to be called then too."""
        options, plan = self._options, self._connection.plan
        ranks = rank_table.parse(plan.rank_table)
        self.ranks = choose_ranks(ranks, options)
        self._connection.ask(Take([rank.number for rank in self.ranks]))
        self._table = _write_table(plan.rank_table, len(ranks))
        for place, rank in enumerate(self.ranks):
            groups = options.group_files[place] if options.group_files else ()
            variables = environment(rank, ranks, str(self._table), groups, options.start_port)
            setup = _setup(options, plan.servable, rank, options.model_files[place])
            self._processes.append(AgentProcess(setup, variables))

    def wait(self, *, for_end: bool) -> None:
        """Wait until all have joined the gang, or with `for_end` until one of them or the worker
        has ended.  Raises StartError with the reason of an end, Stopped if it is for good."""
        poll = select.poll()
        for descriptor in (self._stop, self._connection.fileno()):
            poll.register(descriptor, select.POLLIN)
        for process in self._processes:
            poll.register(process.pidfd, select.POLLIN)
            if not process.is_ready:
                poll.register(process.stream.fileno(), select.POLLIN)
        while for_end or not all(process.is_ready for process in self._processes):
            ready = {descriptor for descriptor, _ in poll.poll()}
            if self._stop in ready:
                raise Stopped("the agents are stopped")
            for process in self._processes:
                if process.stream.fileno() in ready and not self._read(process):
                    poll.unregister(process.stream.fileno())
            self._read_worker()
            for process in self._processes:
                if process.pidfd in ready:
                    raise StartError(f"the agent of rank {process.rank} {process.end_text()}")

    def give_up(self, error: Exception) -> None:
        """Tell the worker that the agents cannot start, unless it is the worker that says so."""
        if not isinstance(error, Refusal | Stopped):
            with suppress(OSError):
                self._connection.send(Failed(f"agents cannot start: {error}"))

    def end(self) -> None:
        """Kill all; close the connection."""
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.close()
        self._connection.close()
        if self._table is not None:
            self._table.unlink(missing_ok=True)

    def _read(self, process: AgentProcess) -> bool:
        """Take what an agent says of its start; whether it says more.  Raises StartError."""
        with suppress(EOFError):  # it has died; its pidfd tells
            for report in process.reports():
                if isinstance(report, Failed):
                    raise StartError(f"rank {process.rank}: {report.text}")
                if isinstance(report, Hello):
                    if why := why_other(report, messages, "agent"):
                        raise StartError(f"rank {process.rank}: {why}")
                else:
                    process.is_ready = True
            return not process.is_ready
        return False

    def _read_worker(self) -> None:
        try:
            for message in self._connection.receive(wait=False):
                if isinstance(message, Exit):
                    raise Stopped("the servable is stopped")
                if isinstance(message, Failed):
                    raise Refusal(f"the worker refuses: {message.text}")
        except EOFError:
            raise StartError("the worker has ended the connection") from None


class AgentSupervisor:
    """Keeps the agents of this machine running: `start`, then `supervise` on a thread."""

    def __init__(self, options: AgentOptions) -> None:
        self._options = options
        self._stop = os.eventfd(0, os.EFD_CLOEXEC)
        self._agents: Agents | None = None

    def start(self) -> list[Rank]:
        """Find the worker, start the agents, wait until all have joined.  Raises StartError, or
        another ServingError; nothing is left running then."""
        agents = Agents(self._options, self._find_worker(), self._stop)
        try:
            agents.launch()
            agents.wait(for_end=False)
        except (ServingError, OSError) as error:
            agents.give_up(error)
            agents.end()
            if isinstance(error, OSError):
                raise StartError(f"agents cannot be started: {error}") from error
            raise
        self._agents = agents
        return agents.ranks

    def supervise(self) -> None:
        """Start the agents again when their gang has ended, until it is over for good."""
        backoff = Backoff()
        while self._agents is not None:
            started = time.monotonic()
            reason = self._until_end(self._agents)
            self._agents = None
            while reason is not None and self._agents is None:
                delay = backoff.died(time.monotonic() - started) or 0.0
                log.warning("agents have ended (%s), starting again in %g s", reason, delay)
                reason, started = self._start_again(delay), time.monotonic()

    def stop(self) -> None:
        """From any thread: end the agents, and `start` or `supervise`."""
        os.eventfd_write(self._stop, 1)

    def _until_end(self, agents: Agents) -> str | None:
        """Why they are to be started again; None if they are not."""
        try:
            agents.wait(for_end=True)
        except Stopped:
            return None
        except StartError as error:
            return str(error)
        except Exception as error:  # what the worker sent is no message
            log.error("watching agents", exc_info=True)
            return str(error)
        finally:
            agents.end()
        return None

    def _start_again(self, delay: float) -> str | None:
        """Why it failed; None if it did not, or nobody wants it."""
        if self._is_stopped_within(delay):
            return None
        try:
            connection = self._find_worker()
        except Stopped:
            return None
        except Absent as error:
            log.error("Failed to start agents again: %s", error)
            return None
        except StartError as error:
            return str(error)
        agents = Agents(self._options, connection, self._stop)
        try:
            agents.launch()
        except (ServingError, OSError) as error:
            agents.end()
            return str(error)
        self._agents = agents
        return None

    def _find_worker(self) -> GangConnection:
        """A connection to the worker, which may be started later than we.  Raises Absent, or
        another StartError if it does not want us."""
        address, end = self._options.address, time.monotonic() + SEARCHING
        while True:
            try:
                return connect(address)
            except OSError as error:
                problem = error
            if time.monotonic() >= end:
                raise Absent(
                    f"no worker of a distributed servable was on {address} for {SEARCHING:g} s: "
                    f"{problem}"
                )
            if self._is_stopped_within(BETWEEN_TRIES):
                raise Stopped("the agents are stopped")

    def _is_stopped_within(self, seconds: float) -> bool:
        poll = select.poll()
        poll.register(self._stop, select.POLLIN)
        return bool(poll.poll(seconds * 1000))


def _setup(options: AgentOptions, servable: str, rank: Rank, files: tuple[str, ...]) -> AgentSetup:
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
    """The rank table as a file for the runtimes, which read it themselves."""
    name = f"hccl_rank_table_{time.time_ns()}_{os.getpid()}_{count}p.json"
    path = Path(TABLES, name).absolute()
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return path
