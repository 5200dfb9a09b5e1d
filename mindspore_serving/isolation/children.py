"""The parent's side of a fork server: starts it, has it fork children, and kills them."""

import os
import select
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
from mindspore_serving.process.vocabulary import Failed, Hello, Ready, version_mismatch

START_SECONDS = 120.0  # timeout of loading
# Jobs are small, and a child has one thread only: threads of libraries do not survive a fork.
_VARIABLES = {
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "GLIBC_TUNABLES": None,  # large pages would not be shared with children
}


class ForkedChild:
    """A process that a fork server has forked; `stream` is our end of its socket pair."""

    def __init__(self, stream: socket.socket, pidfd: int) -> None:
        self.stream = stream
        self._pidfd = pidfd
        self._schedstat = ""  # path

    @property
    def has_ended(self) -> bool:
        poll = select.poll()
        poll.register(self._pidfd, select.POLLIN)
        return bool(poll.poll(0))

    def run_delay(self) -> float:
        """Return for how many seconds the process could have run, but waited for a processor.

        0.0 if that is not known: the process has ended, or the kernel does not count it.
        """
        try:
            if not self._schedstat:
                with open(f"/proc/self/fdinfo/{self._pidfd}") as lines:
                    pid = next(line.split()[1] for line in lines if line.startswith("Pid:"))
                self._schedstat = f"/proc/{pid}/schedstat"
            with open(self._schedstat) as numbers:
                return int(numbers.read().split()[1]) / 1e9
        except (OSError, StopIteration, IndexError, ValueError):
            return 0.0

    def kill(self) -> None:
        """Kill the process and close its stream, if that was not done before."""
        if self._pidfd < 0:
            return
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
        os.close(self._pidfd)
        self._pidfd = -1
        self.stream.close()


class ForkServer:
    """The fork server of a module: started with the first child, restarted if it has ended.

    Thread-safe.

    Args:
        module: the module to run; it calls `fork_server.run`.
        setup: returns what `module` is to load, in the module's own encoding; called at each start.
    """

    def __init__(self, module: str, setup: Callable[[], bytes]) -> None:
        self._module = module
        self._setup = setup
        self._lock = threading.Lock()
        self._process: Child | None = None
        self._channel: DescriptorChannel[Any]
        self._is_closed = False

    def start(self) -> None:
        """Start the process, which then loads.  Raises OSError."""
        with self._lock:
            self._start()

    def fork(self, role: str, memory: int, nice: int = 0) -> ForkedChild:
        """Fork and return a child, after waiting until the server has loaded.

        Raises OSError if no child can be forked.  For the arguments see `messages.Fork`.
        """
        message = Fork(role, memory, nice)
        with self._lock:
            try:
                return self._fork(message)
            except OSError:  # the server has ended: retry once with a new one
                self._end()
                return self._fork(message)

    def close(self) -> None:
        """Kill the server and its children; from now on none can be forked."""
        self._is_closed = True
        process = self._process
        if process is not None:
            with suppress(OSError):
                process.stream.shutdown(socket.SHUT_RDWR)  # ends a `fork` that waits for loading
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
            if self._is_closed:  # meanwhile, when `close` could not see this process yet
                raise OSError("the fork server is closed")

    def _fork(self, message: Fork) -> ForkedChild:
        self._start()
        self._channel.send(message)
        try:
            while not isinstance(reply := self._channel.receive_next(), Forked):
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
    """Return why the fork server that sent `message` cannot be used; "" if it can."""
    if isinstance(message, Hello):
        return version_mismatch(message, messages, "fork server")
    return message.text if isinstance(message, Failed) else ""
