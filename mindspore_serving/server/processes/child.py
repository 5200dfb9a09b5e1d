"""The child process of a front end: its command line and the descriptors that it inherits."""

import asyncio
import os
import socket
from contextlib import ExitStack
from struct import Struct

from mindspore_serving.aio import on_thread
from mindspore_serving.cluster.worker_process import worker_variables
from mindspore_serving.errors import StartError
from mindspore_serving.ipc import arena
from mindspore_serving.process.child import Child, Program
from mindspore_serving.server.processes.pipe import Ends

MODULE = "mindspore_serving.server.processes"
CONNECTION = Struct("<BQ")  # server and number of a connection that a front end gets


class FrontEndProcess(Child):
    """The child process of a front end.

    `ends` are our ends of its channel, `connections` is the socket over which it gets accepted
    connections, and `ended` is a task that returns its exit status at its end.
    """

    ended: "asyncio.Task[int]"
    is_killed = False

    def __init__(self, number: int) -> None:
        """Start the process.  Raises OSError."""
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
        """Kill and reap the process if necessary, and close descriptors, see `Child.close`."""
        super().close()
        self.connections.close()

    def kill(self) -> None:
        """Kill the process and its descendants, see `Child.kill`."""
        self.is_killed = True
        super().kill()


async def start(number: int) -> FrontEndProcess:
    """Start front end `number`.  Raises StartError."""
    try:
        child = await on_thread("front ends", FrontEndProcess, number)
    except OSError as error:
        raise StartError(f"cannot start a front-end process: {error}") from error
    child.ended = asyncio.create_task(child.wait())
    return child
