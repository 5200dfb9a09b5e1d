"""Child processes that run a module of this package: start, wait, terminate and kill.

The only place that starts such processes.  Does not know the messages of parent and child.
"""

import asyncio
import os
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field

from mindspore_serving.process.child_log import ChildLog
from mindspore_serving.process.entry import CHANNEL, LIFELINE
from mindspore_serving.process.interpreter import CURRENT, Interpreter

# Makes malloc ask the kernel for pages of 2 MiB, which speeds up reading weights in every step.
# glibc reads this tunable from the environment at process start only.
_LARGE_PAGES = "glibc.malloc.hugetlb"


@dataclass(frozen=True, slots=True)
class Program:
    """The command line, the descriptors and the environment of a child process.

    Args:
        module: the module that `python -m` runs; it calls `entry.enter`.
        arguments: command-line arguments; `Child` appends the options of channel and lifeline.
        descriptors: inherited under the same numbers; the caller closes its copies afterwards.
        variables: environment variables to set, or to remove where the value is None.
        log: receives stdout and stderr; None: the child inherits those of this process.
        stdout, stderr: descriptors for the output, instead of a log.
        interpreter: the Python that runs the module.
        channel: the type of a socket pair (SOCK_STREAM, for example) of which the child inherits
            one end, as the option `--channel fd:N`; None: no channel.
    """

    module: str
    arguments: Sequence[str] = ()
    descriptors: Sequence[int] = ()
    variables: Mapping[str, str | None] = field(default_factory=dict)
    log: ChildLog | None = None
    stdout: int | None = None
    stderr: int | None = None
    interpreter: Interpreter = CURRENT
    channel: socket.SocketKind | None = None


class Child:
    """A child process that leads its own process group, so that its descendants end with it.

    The child inherits the read end of a pipe, its lifeline.  The write end closes when this process
    ends, for whatever reason, and then the kernel kills the group.

    `pid` is the process id, `pidfd` a descriptor that becomes readable once the child has ended,
    and `stream` our end of its channel, which the caller has to close.
    """

    stream: socket.socket

    def __init__(self, program: Program) -> None:
        """Start the process.  Raises OSError, and closes the log of `program` then."""
        self._log = program.log
        self._waiting: asyncio.Future[int] | None = None
        self._is_closed = False
        with ExitStack() as inherited, ExitStack() as on_failure:
            if self._log is not None:
                on_failure.callback(self._log.close)
                inherited.callback(self._log.close_writer)
            theirs = None
            if program.channel is not None:
                self.stream, theirs = socket.socketpair(socket.AF_UNIX, program.channel)
                on_failure.callback(self.stream.close)
                inherited.callback(theirs.close)
            self._process, self._lifeline = _spawn(program, theirs)
            on_failure.callback(self.close)
            self.pid = self._process.pid
            self.pidfd = -1
            self.pidfd = os.pidfd_open(self.pid)
            on_failure.pop_all()
        if self._log is not None:
            self._log.begin()

    def poll(self) -> int | None:
        """Return the exit status as `join` does, or None while the process runs."""
        return self._process.poll()

    def join(self, timeout: float | None = None) -> int:
        """Wait until the process has ended; return its exit status, negative for a signal.

        Raises TimeoutError after `timeout` seconds (None: no limit).
        """
        try:
            return self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"process {self.pid} has not ended within {timeout} s") from None

    async def wait(self) -> int:
        """Wait on the running event loop until the process has ended; close it, return as `join`.

        Several tasks may wait; cancelling one does not affect the others.
        """
        if self._waiting is None:
            loop = asyncio.get_running_loop()
            self._waiting = loop.create_future()
            loop.add_reader(self.pidfd, self._on_end, loop, self._waiting)
        return await asyncio.shield(self._waiting)

    def terminate(self) -> None:
        """Send SIGTERM to the process."""
        self._process.terminate()

    def kill(self) -> None:
        """Kill the process and its descendants (SIGKILL), unless it has been reaped."""
        if self._process.returncode is None:  # else another process may have its pid by now
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def close(self) -> None:
        """Kill the process if it still runs, reap it and close descriptors; once only."""
        if self._is_closed:
            return
        self._is_closed = True
        self.kill()
        self._process.wait()
        if self._log is not None:
            self._log.pump()
        for descriptor in (self.pidfd, self._lifeline):
            if descriptor >= 0:
                os.close(descriptor)

    def log_tail(self) -> str:
        """Return the last output of the process; "" without a log."""
        return "" if self._log is None else self._log.tail()

    def _on_end(self, loop: asyncio.AbstractEventLoop, waiting: "asyncio.Future[int]") -> None:
        loop.remove_reader(self.pidfd)
        self.close()
        waiting.set_result(self._process.wait())


def _spawn(
    program: Program, channel: socket.socket | None
) -> "tuple[subprocess.Popen[bytes], int]":
    """Start the process of `program`; return it with the write end of its lifeline.

    `channel` is the end of the channel that the child inherits.
    """
    command = [*program.interpreter.command(program.module), *program.arguments]
    descriptors = list(program.descriptors)
    log = program.log
    with ExitStack() as inherited, ExitStack() as on_failure:
        if channel is not None:
            descriptors.append(channel.fileno())
            command += [CHANNEL, f"fd:{channel.fileno()}"]
        theirs, ours = os.pipe2(os.O_CLOEXEC)
        inherited.callback(os.close, theirs)
        on_failure.callback(os.close, ours)
        process = subprocess.Popen(
            [*command, LIFELINE, str(theirs)],
            pass_fds=(*descriptors, theirs),
            stdin=subprocess.DEVNULL,
            stdout=program.stdout if log is None else log.writer,
            stderr=program.stderr if log is None else subprocess.STDOUT,
            start_new_session=True,
            env=program.interpreter.environment(program.variables),
        )
        on_failure.pop_all()
        return process, ours


def large_pages() -> dict[str, str | None]:
    """Return environment variables that give a child large memory pages.

    Empty if the operator has set the page size in GLIBC_TUNABLES.
    """
    tunables = os.environ.get("GLIBC_TUNABLES", "")
    if _LARGE_PAGES in tunables:
        return {}
    return {"GLIBC_TUNABLES": ":".join(filter(None, [tunables, f"{_LARGE_PAGES}=1"]))}


def exit_text(status: int) -> str:
    """Describe an exit status; a negative one is the signal that ended the process."""
    if status < 0:
        return f"ended by signal {signal.Signals(-status).name}"
    return f"exit status {status}"
