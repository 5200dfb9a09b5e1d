"""The seam for who starts a worker and where: a launcher gives a process and a channel to it.

The dispatcher sees a connected stream and, on one machine, two shared-memory arenas; whether the
other end is a child, a process on another machine or an actor of some engine is not its business.
"""

import socket
from dataclasses import dataclass
from typing import Protocol

from mindspore_serving.ipc.arena import Arena, ArenaView, NoArena


class Process(Protocol):
    """A started worker process."""

    @property
    def pid(self) -> int: ...

    async def wait(self) -> int:
        """Its exit status once it has ended (negative: the signal that ended it)."""
        ...

    def kill(self) -> None:
        """End it and everything it started, now.  Harmless if it is gone."""
        ...

    def log_tail(self) -> str:
        """The end of what it wrote to its log, for error texts."""
        ...


@dataclass(slots=True)
class Launched:
    """A worker that was started: its process, our end of the channel, and the arenas."""

    process: Process
    stream: socket.socket
    arena: Arena | NoArena
    view: ArenaView | NoArena


class Launcher(Protocol):
    """Starts workers."""

    async def launch(self, name: str, log_name: str) -> Launched:
        """Start a worker process; `name` is for people.  Raises StartError, or ResourceShortage if
        it may succeed later."""
        ...
