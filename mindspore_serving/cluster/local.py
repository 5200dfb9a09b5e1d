"""A launcher for worker processes of this machine, over a socket pair and two shared arenas.

Does not know servables: the worker learns over the channel what to load.
"""

import errno
import os
import socket
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from mindspore_serving.aio import FunctionThread
from mindspore_serving.cluster.base import ANYTHING, Launched, Needs, WorkerLocation
from mindspore_serving.cluster.dialing import TOKEN
from mindspore_serving.cluster.environment import Environments
from mindspore_serving.errors import ResourceShortage, StartError
from mindspore_serving.ipc import arena, status
from mindspore_serving.ipc.arena import NoArena
from mindspore_serving.process.child import Child, Program, large_pages
from mindspore_serving.process.child_log import ChildLog
from mindspore_serving.process.interpreter import CURRENT, Interpreter, find_interpreter

LOG_DIRECTORY = "serving_logs"
_SHORTAGES = {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.ENOBUFS, errno.ENOSPC}


class LocalProcess(Child):
    """A worker process of this machine; implements `cluster.base.Process`."""

    is_moving = False


class LocalLauncher:
    """A launcher of worker processes of this machine, with logs in `serving_logs/`.

    With `is_inline` payloads go through the stream, which is relayed to another machine.
    """

    def __init__(self, *, is_inline: bool = False) -> None:
        self._spawner = FunctionThread("spawner")  # created now: threads may be short later
        self._is_inline = is_inline
        self._environments = Environments()

    def close(self) -> None:
        """Kill running installations of environments."""
        self._environments.close()

    async def launch(
        self, name: str, log_name: str, needs: Needs = ANYTHING, options: Sequence[str] = ()
    ) -> Launched:
        """Start a worker, see `Launcher.launch`; `options` are added to its command line."""
        interpreter = await self._find_interpreter(needs)
        with ExitStack() as inherited, ExitStack() as ours:
            try:
                words = ["--name", name, *options]
                launched = await self._launch(interpreter, words, log_name, inherited, ours)
            except OSError as error:
                kind = ResourceShortage if error.errno in _SHORTAGES else StartError
                text = f"could not start a worker process for {name}: {error}"
                raise kind(text) from error
            launched.location = WorkerLocation(device_id=needs.device_id)
            launched.python = "" if interpreter.is_current else str(interpreter)
            return launched

    async def _find_interpreter(self, needs: Needs) -> Interpreter:
        """Return the interpreter for a worker.  Raises StartError if there is none."""
        if needs.environment:
            base = needs.python or CURRENT.path
            return await self._environments.make(needs.environment, base)
        if needs.python:
            return await self._spawner.run(find_interpreter, needs.python)
        return CURRENT

    async def _launch(
        self,
        interpreter: Interpreter,
        options: Sequence[str],
        log_name: str,
        inherited: ExitStack,
        ours: ExitStack,
    ) -> Launched:
        """Start the process; the caller closes `inherited` in any case, `ours` only on failure."""
        reads = [] if self._is_inline else [arena.create()]
        for descriptor in reads:
            inherited.callback(os.close, descriptor)
        writes = arena.create()
        inherited.callback(os.close, writes)
        to_worker = arena.Arena(reads[0]) if reads else NoArena()
        ours.callback(to_worker.close)
        to_master = arena.ArenaView(writes, status.SIZE)
        ours.callback(to_master.close)
        memory = ["--arenas", f"{writes},{reads[0]}"] if reads else ["--status", str(writes)]
        program = Program(
            "mindspore_serving.worker",
            [*options, *memory],
            [writes, *reads],
            worker_variables(),
            channel=socket.SOCK_STREAM,
            log=ChildLog(log_path(log_name)),
            interpreter=interpreter,
        )
        process = await self._spawner.run(LocalProcess, program)
        ours.pop_all()
        return Launched(process, process.stream, to_worker, to_master)


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


def open_mcp_log(name: str) -> ChildLog:
    """Open the log of the process of an MCP server."""
    plain = "".join(letter if letter.isalnum() else "_" for letter in name)
    return ChildLog(log_path(f"log_mcp_{plain}"))
