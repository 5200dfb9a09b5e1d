"""Processes of workers on this machine: their command line, descriptors, environment and log.

Imports little: a process may start before the rest of the server is imported.  Then the server
takes it when it launches a worker of that name, unless the environment has changed meanwhile.
"""

import os
import socket
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from mindspore_serving.ipc import arena_file
from mindspore_serving.process.child import Child, Program, large_pages
from mindspore_serving.process.child_log import ChildLog
from mindspore_serving.process.interpreter import CURRENT, Interpreter

LOG_DIRECTORY = "serving_logs"
WORKER = "mindspore_serving.worker"
RANK_HOST = "mindspore_serving.llm.parallel.host_process"  # of ranks whose worker is elsewhere
TOKEN = "MINDSPORE_SERVING_TOKEN"  # environment variable: every user could read an argument


class LocalProcess(Child):
    """A worker process of this machine; a `RunningProcess`.

    `writes` and `reads` are the files of the arenas that it writes and reads; without `reads`
    payloads go through its channel.  `module` is what it runs.
    """

    def __init__(
        self, name: str, log_name: str, options: Sequence[str] = (), *, is_inline: bool = False,
        interpreter: Interpreter = CURRENT, module: str = WORKER,
    ) -> None:  # fmt: skip
        """Start the process.  Raises OSError."""
        self.name, self.log_name = name, log_name
        with ExitStack() as on_failure:
            self.reads: int | None = None
            self.writes = arena_file.create()
            on_failure.callback(self.close_files)
            if not is_inline:
                self.reads = arena_file.create()
            descriptors = [self.writes] if self.reads is None else [self.writes, self.reads]
            memory = ["--status", str(self.writes)]
            if self.reads is not None:
                memory = ["--arenas", f"{self.writes},{self.reads}"]
            program = Program(
                module,
                ["--name", name, *options, *memory],
                descriptors,
                worker_variables(),
                channel=socket.SOCK_STREAM,
                log=ChildLog(log_path(log_name)),
                interpreter=interpreter,
            )
            super().__init__(program)
            on_failure.pop_all()

    def close_files(self) -> None:
        """Close the files of the arenas, which are mapped or not needed."""
        for descriptor in (self.writes, self.reads):
            if descriptor is not None:
                os.close(descriptor)


class EarlyProcess:
    """A process that was started before the server launches a worker, or none."""

    def __init__(self) -> None:
        self._process: LocalProcess | None = None
        self._environment: dict[str, str] = {}

    def start(self, name: str, log_name: str, options: Sequence[str]) -> None:
        """Start a process.  Without the resources there is none: launching tells of that."""
        try:
            self._process = LocalProcess(name, log_name, options)
        except OSError:
            return
        self._environment = dict(os.environ)

    @property
    def pid(self) -> int | None:
        """Process id; None if no process waits."""
        process = self._process
        return process.pid if process is not None and process.poll() is None else None

    def take(self, name: str, log_name: str) -> LocalProcess | None:
        """Return the process if it is the same as would be started now; end it otherwise."""
        process = self._process
        if (
            process is None
            or process.poll() is not None
            or os.environ != self._environment
            or (process.name, process.log_name) != (name, log_name)
        ):
            self.end()
            return None
        self._process = None
        return process

    def end(self) -> None:
        """Kill the process that was not taken."""
        process, self._process = self._process, None
        if process is not None:
            process.stream.close()
            process.close_files()
            process.close()


early = EarlyProcess()


def worker_variables() -> dict[str, str | None]:
    """Return changes to the environment variables of processes that run servables."""
    return {**large_pages(), TOKEN: None, "PYTHONUNBUFFERED": "1"}


def log_path(log_name: str) -> Path | None:
    """Return the log file of a worker or agent; None if the directory cannot be created."""
    directory = Path(LOG_DIRECTORY)
    try:
        directory.mkdir(exist_ok=True)
    except OSError:
        return None
    return (directory / f"{log_name}.log").absolute()
