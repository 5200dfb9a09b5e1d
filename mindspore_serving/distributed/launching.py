"""Starts an agent as a process of this machine, hears how it went, and ends it."""

import os
import signal
import socket
import subprocess
from collections.abc import Mapping
from contextlib import ExitStack, suppress

from mindspore_serving.cluster.local import environment, log_path
from mindspore_serving.cluster.worker_log import WorkerLog
from mindspore_serving.distributed.setup import AgentSetup, FromAgent
from mindspore_serving.ipc.channel import BlockingChannel
from mindspore_serving.isolation.spawning import command, exit_text

_TAIL = 800  # characters of an agent's log that an error shows


class AgentProcess:
    """A child that leads its own process group.  When this process ends, the kernel ends it."""

    def __init__(self, setup: AgentSetup, variables: Mapping[str, str]) -> None:
        """Raises OSError."""
        self.rank = setup.rank
        self.is_ready = False
        with ExitStack() as inherited, ExitStack() as ours:
            self._log = WorkerLog(log_path(f"log_{setup.servable}_agent{setup.rank}"))
            inherited.callback(self._log.close_writer)
            ours.callback(self._log.close)
            stream, theirs = socket.socketpair()
            inherited.callback(theirs.close)
            ours.callback(stream.close)
            lifeline, self._lifeline = os.pipe2(os.O_CLOEXEC)
            inherited.callback(os.close, lifeline)
            ours.callback(os.close, self._lifeline)
            ends = (theirs.fileno(), lifeline)
            self._child = _spawn(setup, ends, self._log.writer, {**environment(), **variables})
            ours.callback(self._child.kill)
            self.pidfd = os.pidfd_open(self._child.pid)
            ours.pop_all()
        self._log.begin()
        self.stream = stream
        self._channel: BlockingChannel[FromAgent] = BlockingChannel(stream, FromAgent)
        self._channel.send(setup)

    @property
    def pid(self) -> int:
        return self._child.pid

    def reports(self) -> list[FromAgent]:
        """What it has said of its start.  Raises EOFError when nothing more will come."""
        try:
            return self._channel.receive(wait=False)
        except ConnectionError as error:
            raise EOFError(str(error)) from error

    def end_text(self) -> str:
        """How it ended, which it has."""
        status = self._child.wait()
        tail = self._log.tail()[-_TAIL:] if status != -signal.SIGKILL else ""
        return f"{exit_text(status)}{': ' if tail else ''}{tail}"

    def kill(self) -> None:
        """End it and everything it started, now."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    def close(self) -> None:
        """Wait for its end, and give back what it took."""
        self.kill()
        self._child.wait()
        self._log.pump()
        self.stream.close()
        os.close(self.pidfd)
        os.close(self._lifeline)


def _spawn(
    setup: AgentSetup, ends: tuple[int, int], output: int, variables: Mapping[str, str]
) -> "subprocess.Popen[bytes]":
    name = f"{setup.servable}, rank:{setup.rank}, device id:{setup.device_id}"
    arguments = ["--channel", f"fd:{ends[0]}", "--lifeline", str(ends[1]), "--name", name]
    return subprocess.Popen(
        command("mindspore_serving.distributed", *arguments),
        pass_fds=ends,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        env=variables,
    )
