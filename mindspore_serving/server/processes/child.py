"""Starts a front-end process: its command, what it inherits, and its end."""

import asyncio
import os
import signal
import socket
import subprocess
from contextlib import ExitStack, suppress
from dataclasses import dataclass

from mindspore_serving.aio import on_thread
from mindspore_serving.cluster.local import environment
from mindspore_serving.errors import StartError
from mindspore_serving.ipc import arena
from mindspore_serving.isolation.spawning import command
from mindspore_serving.server.processes.pipe import Ends

MODULE = "mindspore_serving.server.processes"


@dataclass(slots=True, eq=False)
class Child:
    """A process that leads its own group, which the kernel kills with ours, when `lifeline` closes.
    `connections` is where it takes those that we accept; `ended` is done at its end."""

    process: "subprocess.Popen[bytes]"
    pidfd: int
    lifeline: int
    ends: Ends
    connections: socket.socket

    ended: "asyncio.Future[int]"
    is_killed: bool = False

    def watch(self) -> None:
        """From here on `ended` will be done, with its exit status."""
        asyncio.get_running_loop().add_reader(self.pidfd, self._reap)

    def _reap(self) -> None:
        asyncio.get_running_loop().remove_reader(self.pidfd)
        self.kill()  # what it may have started
        status = self.process.wait()
        os.close(self.pidfd)
        os.close(self.lifeline)
        self.connections.close()
        self.ended.set_result(status)

    def kill(self) -> None:
        self.is_killed = True
        if self.process.returncode is None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, signal.SIGKILL)


async def start(number: int) -> Child:
    """Raises StartError."""
    ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    try:
        child = await on_thread("front ends", _start, number, ended)
    except OSError as error:
        raise StartError(f"a front-end process could not be started: {error}") from error
    child.watch()
    return child


def _start(number: int, ended: "asyncio.Future[int]") -> Child:
    with ExitStack() as inherited, ExitStack() as ours:
        stream, their_stream = socket.socketpair()
        handing, taking = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        arenas = arena.create(), arena.create()
        lifeline_end, lifeline = os.pipe2(os.O_CLOEXEC)
        for one in (their_stream, taking):
            inherited.callback(one.close)
        inherited.callback(os.close, lifeline_end)
        for mine in (stream, handing):
            ours.callback(mine.close)
        for descriptor in (*arenas, lifeline):
            ours.callback(os.close, descriptor)
        numbers = [their_stream.fileno(), taking.fileno(), arenas[1], arenas[0], lifeline_end]
        child = subprocess.Popen(
            command(MODULE, f"--number={number}", "--descriptors", *map(str, numbers)),
            pass_fds=numbers,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            env=environment(),
        )
        ours.callback(child.kill)
        pidfd = os.pidfd_open(child.pid)
        handing.setblocking(False)
        ours.pop_all()
        return Child(child, pidfd, lifeline, Ends(stream, *arenas), handing, ended)
