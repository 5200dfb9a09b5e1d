"""Starts a child process that runs a module of this package, waits for its end, and ends it.

The only place that starts one.  What the two say to each other is up to their module.
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
from mindspore_serving.process.interpreter import OWN, Interpreter

# Malloc then asks the kernel for pages of 2 MiB: weights that every step reads are read faster.
# glibc reads it from the environment at the start of a process only.
_LARGE_PAGES = "glibc.malloc.hugetlb"


@dataclass(frozen=True, slots=True)
class Program:
    """The command line, the descriptors and the environment of a child process.

    Args:
        module: what `python -m` runs; it calls `entry.enter`.
        arguments: its command line; `enter` adds and reads the option for the lifeline.
        descriptors: inherited under the same numbers; the caller closes its copies afterwards.
        variables: set in the environment, or removed from it where the value is None.
        log: receives the output; None: the child prints where this process does.
        stdout, stderr: descriptors for the output in place of a log.
        interpreter: the Python that runs the module.
        channel: the kind of a socket pair (SOCK_STREAM, say), of which the child gets one end, by
            the option `--channel fd:N`; None: it has no channel.
    """

    module: str
    arguments: Sequence[str] = ()
    descriptors: Sequence[int] = ()
    variables: Mapping[str, str | None] = field(default_factory=dict)
    log: ChildLog | None = None
    stdout: int | None = None
    stderr: int | None = None
    interpreter: Interpreter = OWN
    channel: socket.SocketKind | None = None


class Child:
    """A child process that leads its own process group, so that all it starts ends with it.

    It inherits one end of a pipe, its lifeline.  The other end closes with this process, whatever
    ends that, and then the kernel kills the group.

    `pid` is its number, `pidfd` a descriptor that is readable once it has ended, and `stream` our
    end of its channel, which is the caller's to close.
    """

    stream: socket.socket

    def __init__(self, program: Program) -> None:
        """Start the process.  Raises OSError; the log of `program` is closed then."""
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
        """Return the exit status, as `join` does, or None while the process runs."""
        return self._process.poll()

    def join(self, timeout: float | None = None) -> int:
        """Wait for the end of the process; return its exit status, or minus the signal.

        Raises TimeoutError after `timeout` seconds (None: no limit).
        """
        try:
            return self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"process {self.pid} has not ended within {timeout} s") from None

    async def wait(self) -> int:
        """Wait for the end on the running event loop, close, and return the status as `join`.

        Several tasks may wait; a task that is cancelled stops only itself.
        """
        if self._waiting is None:
            loop = asyncio.get_running_loop()
            self._waiting = loop.create_future()
            loop.add_reader(self.pidfd, self._on_end, loop, self._waiting)
        return await asyncio.shield(self._waiting)

    def terminate(self) -> None:
        """Ask the process to end (SIGTERM)."""
        self._process.terminate()

    def kill(self) -> None:
        """Kill the process and all it has started, now.  Harmless if it has been reaped."""
        if self._process.returncode is None:  # else its number may be another's by now
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def close(self) -> None:
        """Kill what still runs, reap it, and give back descriptors.  Harmless a second time."""
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
        """Return the end of what the process printed; "" without a log."""
        return "" if self._log is None else self._log.tail()

    def _on_end(self, loop: asyncio.AbstractEventLoop, waiting: "asyncio.Future[int]") -> None:
        loop.remove_reader(self.pidfd)
        self.close()
        waiting.set_result(self._process.wait())


def _spawn(
    program: Program, channel: socket.socket | None
) -> "tuple[subprocess.Popen[bytes], int]":
    """Start the process of `program`, with its end of its channel; return it with our end of its
    lifeline.
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
    """Return the variables of a child whose memory is in large pages, unless the operator has
    chosen the size of pages.
    """
    tunables = os.environ.get("GLIBC_TUNABLES", "")
    if _LARGE_PAGES in tunables:
        return {}
    return {"GLIBC_TUNABLES": ":".join(filter(None, [tunables, f"{_LARGE_PAGES}=1"]))}


def exit_text(status: int) -> str:
    """Say how a process ended, by its exit status (negative: the signal that ended it)."""
    if status < 0:
        return f"ended by signal {signal.Signals(-status).name}"
    return f"exit status {status}"
