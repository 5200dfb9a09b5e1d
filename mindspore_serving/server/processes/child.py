"""Starts a front-end process: its command, what it inherits, and its end."""

import asyncio
import os
import socket
from contextlib import ExitStack

from mindspore_serving.aio import on_thread
from mindspore_serving.cluster.local import worker_variables
from mindspore_serving.errors import StartError
from mindspore_serving.ipc import arena
from mindspore_serving.process.child import Child, Program
from mindspore_serving.server.processes.pipe import Ends

MODULE = "mindspore_serving.server.processes"


class FrontEndProcess(Child):
    """The child process of one front end.

    `ends` are our ends of its channel, `connections` is where it takes those that we accept, and
    `ended` is a task that is done at its end, with its exit status.
    """

    ended: "asyncio.Task[int]"
    is_killed = False

    def __init__(self, number: int) -> None:
        """Raises OSError."""
        with ExitStack() as inherited, ExitStack() as on_failure:
            self.connections, taking = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            on_failure.callback(self.connections.close)
            inherited.callback(taking.close)
            arenas = []
            for _ in range(2):
                arenas.append(arena.create())
                on_failure.callback(os.close, arenas[-1])
            reads, writes = arenas
            descriptors = [taking.fileno(), writes, reads]
            words = [f"--number={number}", "--descriptors", *map(str, descriptors)]
            variables, kind = worker_variables(), socket.SOCK_STREAM
            super().__init__(Program(MODULE, words, descriptors, variables, channel=kind))
            self.connections.setblocking(False)
            self.ends = Ends(self.stream, reads, writes)
            on_failure.pop_all()

    def close(self) -> None:
        """As `Child.close`, and close the socket for connections."""
        super().close()
        self.connections.close()

    def kill(self) -> None:
        """As `Child.kill`."""
        self.is_killed = True
        super().kill()


async def start(number: int) -> FrontEndProcess:
    """Start front end `number`.  Raises StartError."""
    try:
        child = await on_thread("front ends", FrontEndProcess, number)
    except OSError as error:
        raise StartError(f"a front-end process could not be started: {error}") from error
    child.ended = asyncio.create_task(child.wait())
    return child
