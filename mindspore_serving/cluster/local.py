"""Starts workers as processes of this machine, over a socket pair and two shared arenas.

Knows nothing of servables: what the worker is to load goes over the channel.
"""

import asyncio
import errno
import os
import signal
import socket
import subprocess
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from mindspore_serving.aio import FunctionThread
from mindspore_serving.cluster.base import ANYTHING, Launched, Needs, Place
from mindspore_serving.cluster.environment import Environments
from mindspore_serving.cluster.interpreter import OWN, Interpreter, find_interpreter
from mindspore_serving.cluster.node_token import TOKEN
from mindspore_serving.cluster.worker_log import WorkerLog
from mindspore_serving.errors import ResourceShortage, StartError
from mindspore_serving.ipc import arena, status
from mindspore_serving.ipc.arena import NoArena
from mindspore_serving.ipc.protocol import protocol

LOG_DIRECTORY = "serving_logs"
# Malloc then asks the kernel for pages of 2 MiB: what a model reads in every step is read faster.
# glibc takes it from the environment of a new process alone.
HUGE_PAGES = "glibc.malloc.hugetlb"
_SHORTAGES = {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.ENOBUFS, errno.ENOSPC}


class LocalProcess:
    """A child that leads its own process group, so that all it starts can be ended with it.

    `lifeline` is the end of a pipe: when it closes, with this process, the kernel kills the group.
    """

    def __init__(
        self, child: "subprocess.Popen[bytes]", pidfd: int, lifeline: int, log: WorkerLog
    ) -> None:
        self._child = child
        self._pidfd = pidfd
        self._lifeline = lifeline
        self._ended: asyncio.Future[int] | None = None
        self._log = log

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def is_moving(self) -> bool:
        return False

    async def wait(self) -> int:
        if self._ended is None:
            loop = asyncio.get_running_loop()
            self._ended = loop.create_future()
            loop.add_reader(self._pidfd, self._reap, loop, self._ended)
        return await asyncio.shield(self._ended)

    def _reap(self, loop: asyncio.AbstractEventLoop, ended: "asyncio.Future[int]") -> None:
        loop.remove_reader(self._pidfd)
        self.kill()  # what the worker started and left behind
        ended.set_result(self._child.wait())
        self._log.pump()
        os.close(self._pidfd)
        os.close(self._lifeline)

    def kill(self) -> None:
        if self._child.returncode is None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)

    def log_tail(self) -> str:
        return self._log.tail()


class LocalLauncher:
    """Worker processes of this machine; their output goes to files in `serving_logs/`.

    With `is_inline` payloads go through the stream, as it leads to another machine in the end.
    """

    def __init__(self, *, is_inline: bool = False) -> None:
        self._spawner = FunctionThread("spawner")  # now: later there may be no thread to be had
        self._is_inline = is_inline
        self._environments = Environments()

    def close(self) -> None:
        """End what makes environments."""
        self._environments.close()

    async def launch(
        self, name: str, log_name: str, needs: Needs = ANYTHING, options: Sequence[str] = ()
    ) -> Launched:
        """As `Launcher.launch`, with more `options` of the worker's command line."""
        interpreter = await self._find_interpreter(needs)
        with ExitStack() as inherited, ExitStack() as ours:
            try:
                log = WorkerLog(log_path(log_name))
                inherited.callback(log.close_writer)
                ours.callback(log.close)
                start = _Start(interpreter, ["--name", name, *options], log.writer)
                launched = await self._launch(start, log, inherited, ours)
            except OSError as error:
                kind = ResourceShortage if error.errno in _SHORTAGES else StartError
                text = f"could not start a worker process for {name}: {error}"
                raise kind(text) from error
            launched.place = Place(device_id=needs.device_id)
            launched.python = "" if interpreter.is_own else str(interpreter)
            return launched

    async def _find_interpreter(self, needs: Needs) -> Interpreter:
        """The worker's.  Raises StartError if there is none that can run it."""
        if needs.environment:
            base = needs.python or OWN.path
            return await self._environments.make(needs.environment, base)
        if needs.python:
            return await self._spawner.run(find_interpreter, needs.python)
        return OWN

    async def _launch(
        self, start: "_Start", log: WorkerLog, inherited: ExitStack, ours: ExitStack
    ) -> Launched:
        """What the worker inherits is closed in any case, what is ours if this fails."""
        stream, theirs = socket.socketpair()
        inherited.callback(theirs.close)
        ours.callback(stream.close)
        descriptors = {"channel": theirs.fileno()}
        for kind in ("to-master",) if self._is_inline else ("to-worker", "to-master"):
            descriptors[kind] = arena.create()
            inherited.callback(os.close, descriptors[kind])
        descriptors["lifeline"], lifeline = os.pipe2(os.O_CLOEXEC)
        inherited.callback(os.close, descriptors["lifeline"])
        ours.callback(os.close, lifeline)
        to_worker = NoArena() if self._is_inline else arena.Arena(descriptors["to-worker"])
        ours.callback(to_worker.close)
        to_master = arena.ArenaView(descriptors["to-master"], status.SIZE)
        ours.callback(to_master.close)
        child, pidfd = await self._spawner.run(_spawn, start, descriptors)
        ours.pop_all()
        log.begin()
        process = LocalProcess(child, pidfd, lifeline, log)
        return Launched(process, stream, to_worker, to_master)


@dataclass(frozen=True, slots=True)
class _Start:
    """What is started: the interpreter, its arguments, and where it prints."""

    interpreter: Interpreter
    arguments: Sequence[str]
    output: int


def _spawn(start: _Start, descriptors: dict[str, int]) -> "tuple[subprocess.Popen[bytes], int]":
    """The worker's process, and a descriptor of it."""
    command = start.interpreter.command("mindspore_serving.execution")
    command += [*start.arguments, "--protocol", protocol()]
    command += ["--channel", f"fd:{descriptors['channel']}"]
    if "to-worker" in descriptors:
        command += ["--arenas", f"{descriptors['to-master']},{descriptors['to-worker']}"]
    else:
        command += ["--status", str(descriptors["to-master"])]
    command += ["--lifeline", str(descriptors["lifeline"])]
    child = subprocess.Popen(
        command,
        pass_fds=tuple(descriptors.values()),
        stdin=subprocess.DEVNULL,
        stdout=start.output,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        env=environment(start.interpreter),
    )
    try:
        return child, os.pidfd_open(child.pid)
    except OSError:
        child.kill()
        child.wait()
        raise


def environment(interpreter: Interpreter = OWN) -> dict[str, str]:
    """Ours, with what `interpreter` needs, and memory in huge pages."""
    environment = interpreter.environment(os.environ)
    tunables = environment.get("GLIBC_TUNABLES", "")
    if HUGE_PAGES not in tunables:
        asked = f"{HUGE_PAGES}=1"
        environment["GLIBC_TUNABLES"] = f"{tunables}:{asked}" if tunables else asked
    environment.pop(TOKEN, None)  # what a servable does not need
    environment["PYTHONUNBUFFERED"] = "1"
    return environment


def log_path(log_name: str) -> Path | None:
    """The log file of a worker or an agent; None where no directory can be made."""
    directory = Path(LOG_DIRECTORY)
    try:
        directory.mkdir(exist_ok=True)
    except OSError:
        return None
    return (directory / f"{log_name}.log").absolute()
