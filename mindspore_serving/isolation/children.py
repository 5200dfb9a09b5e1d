"""The parent's side of a fork server: it is started, forks children, and they are killed."""

import os
import signal
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from mindspore_serving.isolation import messages
from mindspore_serving.isolation.messages import Fork, Forked, FromForkServer, RoleSetup
from mindspore_serving.process.channel import DescriptorChannel
from mindspore_serving.process.child import Child, Program
from mindspore_serving.process.vocabulary import Failed, Hello, Ready, why_other

START_SECONDS = 120.0  # for a fork server to load what it needs
# A child has one thread: what was forked knows no other, and jobs are small.
_VARIABLES = {
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "GLIBC_TUNABLES": None,  # memory in large pages cannot be shared with children
}


class ForkedChild:
    """A forked process; `stream` is our end of its stream."""

    def __init__(self, stream: socket.socket, pidfd: int) -> None:
        self.stream = stream
        self._pidfd = pidfd

    def kill(self) -> None:
        """End it now, whatever it does.  Harmless if it has ended."""
        if self._pidfd < 0:
            return
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
        os.close(self._pidfd)
        self._pidfd = -1
        self.stream.close()


class ForkServer:
    """The fork server of `module`, started when the first child is wanted, and again if it has
    ended.  Threads may share it.

    Args:
        module: calls `fork_server.run`.
        setup: gives what `module` loads, in its own form, at each start.
    """

    def __init__(self, module: str, setup: Callable[[], bytes]) -> None:
        self._module = module
        self._setup = setup
        self._lock = threading.Lock()
        self._process: Child | None = None
        self._channel: DescriptorChannel[Any]
        self._is_closed = False

    def start(self) -> None:
        """Begin to load.  Raises OSError."""
        with self._lock:
            self._start()

    def fork(self, role: str, memory: int, nice: int = 0) -> ForkedChild:
        """A new child, see `messages.Fork`; waits until all is loaded.  Raises OSError if there
        cannot be one.
        """
        message = Fork(role, memory, nice)
        with self._lock:
            try:
                return self._fork(message)
            except OSError:  # it has ended: once more, with a new one
                self._end()
                return self._fork(message)

    def close(self) -> None:
        """End it, and with it its children; no more can be forked."""
        self._is_closed = True
        process = self._process
        if process is not None:
            with suppress(OSError):
                process.stream.shutdown(socket.SHUT_RDWR)  # nobody waits until all is loaded
        with self._lock:
            self._end()

    def _start(self) -> None:
        if self._is_closed:
            raise OSError("the fork server is closed")
        if self._process is None:
            program = Program(self._module, variables=_VARIABLES, channel=socket.SOCK_STREAM)
            self._process = Child(program)
            stream = self._process.stream
            self._channel = DescriptorChannel(stream, FromForkServer, timeout=START_SECONDS)
            self._channel.send(RoleSetup(self._setup()))
            if self._is_closed:  # since then: `close` has not seen our end
                raise OSError("the fork server is closed")

    def _fork(self, message: Fork) -> ForkedChild:
        self._start()
        self._channel.send(message)
        try:
            while not isinstance(reply := self._channel.receive_one(), Forked):
                if why := _problem(reply):
                    raise OSError(why)
        except EOFError:
            raise OSError(f"{self._module} has ended; the log says why") from None
        pidfd, stream = self._channel.take_descriptors()
        return ForkedChild(socket.socket(fileno=stream), pidfd)

    def _end(self) -> None:
        if self._process is not None:
            self._process.stream.close()
            self._process.close()
            self._process = None


def _problem(message: Hello | Ready | Failed) -> str:
    """Say why the fork server that sent `message` cannot be used; "" if it can."""
    if isinstance(message, Hello):
        return why_other(message, messages, "fork server")
    return message.text if isinstance(message, Failed) else ""
