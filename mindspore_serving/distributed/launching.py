"""Starts an agent as a process of this machine, hears how it went, and ends it."""

import signal
import socket
from collections.abc import Mapping
from contextlib import ExitStack

from mindspore_serving.cluster.local import log_path, worker_variables
from mindspore_serving.distributed.messages import AgentSetup, FromAgent
from mindspore_serving.process.channel import BlockingChannel
from mindspore_serving.process.child import Child, Program, exit_text
from mindspore_serving.process.child_log import ChildLog

_TAIL = 800  # characters of an agent's log that an error shows


class AgentProcess(Child):
    """A child process that is the agent of one rank."""

    def __init__(self, setup: AgentSetup, variables: Mapping[str, str]) -> None:
        """Raises OSError."""
        self.rank = setup.rank
        self.is_ready = False
        name = f"{setup.servable}, rank:{setup.rank}, device id:{setup.device_id}"
        with ExitStack() as on_failure:
            self.stream, theirs = socket.socketpair()
            on_failure.callback(self.stream.close)
            with theirs:
                super().__init__(
                    Program(
                        "mindspore_serving.distributed",
                        ["--channel", f"fd:{theirs.fileno()}", "--name", name],
                        [theirs.fileno()],
                        {**worker_variables(), **variables},
                        ChildLog(log_path(f"log_{setup.servable}_agent{setup.rank}")),
                    )
                )
            on_failure.pop_all()
        self._channel: BlockingChannel[FromAgent] = BlockingChannel(self.stream, FromAgent)
        self._channel.send(setup)

    def reports(self) -> list[FromAgent]:
        """What it has said of its start.  Raises EOFError when nothing more will come."""
        return self._channel.receive(wait=False)

    def end_text(self) -> str:
        """Say how it ended, which it has."""
        status = self.join()
        tail = self.log_tail()[-_TAIL:] if status != -signal.SIGKILL else ""
        return f"{exit_text(status)}{': ' if tail else ''}{tail}"

    def close(self) -> None:
        """As `Child.close`, and close the stream."""
        super().close()
        self.stream.close()
