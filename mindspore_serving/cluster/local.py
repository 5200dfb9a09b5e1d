"""A launcher for worker processes of this machine, over a socket pair and two shared arenas.

Does not know servables: the worker learns over the channel what to load.
"""

import errno
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial

from mindspore_serving.aio import FunctionThread
from mindspore_serving.cluster.base import ANYTHING, Launched, Needs, WorkerLocation
from mindspore_serving.cluster.environment import Environments
from mindspore_serving.cluster.worker_process import WORKER, LocalProcess, early, log_path
from mindspore_serving.errors import ResourceShortage, StartError
from mindspore_serving.ipc import status
from mindspore_serving.ipc.arena import Arena, ArenaView, NoArena
from mindspore_serving.process.child_log import ChildLog
from mindspore_serving.process.interpreter import CURRENT, Interpreter, find_interpreter

_SHORTAGES = {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.ENOBUFS, errno.ENOSPC}


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
        self,
        name: str,
        log_name: str,
        needs: Needs = ANYTHING,
        options: Sequence[str] = (),
        module: str = WORKER,
    ) -> Launched:
        """Start a worker, see `Launcher.launch`; `options` are added to its command line.

        `module` is run instead of a worker's.
        """
        interpreter = await self._find_interpreter(needs)
        start = partial(
            LocalProcess, is_inline=self._is_inline, interpreter=interpreter, module=module
        )
        is_early = interpreter.is_current and not self._is_inline and not options
        try:
            launched = await self._launch(start, name, log_name, options, is_early=is_early)
        except OSError as error:
            kind = ResourceShortage if error.errno in _SHORTAGES else StartError
            raise kind(f"could not start a worker process for {name}: {error}") from error
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
        start: Callable[[str, str, Sequence[str]], LocalProcess],
        name: str,
        log_name: str,
        options: Sequence[str],
        *,
        is_early: bool,
    ) -> Launched:
        process = early.take(name, log_name) if is_early else None
        if process is None:
            process = await self._spawner.run(start, name, log_name, options)
        with ExitStack() as on_failure:
            on_failure.callback(process.close)
            on_failure.callback(process.stream.close)
            with ExitStack() as mapped:
                mapped.callback(process.close_files)
                to_worker = NoArena() if process.reads is None else Arena(process.reads)
                on_failure.callback(to_worker.close)
                to_master = ArenaView(process.writes, status.SIZE)
            on_failure.pop_all()
        return Launched(process, process.stream, to_worker, to_master)


def open_mcp_log(name: str) -> ChildLog:
    """Open the log of the process of an MCP server."""
    plain = "".join(letter if letter.isalnum() else "_" for letter in name)
    return ChildLog(log_path(f"log_mcp_{plain}"))
