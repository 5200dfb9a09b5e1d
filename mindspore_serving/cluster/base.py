"""The seam for who starts a worker and where: a launcher gives a process and a channel to it.

The dispatcher sees a connected stream and, on one machine, two shared-memory arenas; whether the
other end is a child, a process on another machine or an actor of some engine is not its business.
"""

import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from mindspore_serving.ipc.arena import Arena, ArenaView, NoArena
from mindspore_serving.process.group import RunningProcess


@dataclass(frozen=True, slots=True)
class Needs:
    """What a worker needs of the machine that it runs on.

    `device_type` is "none" for any; `labels` are those that its machine must have; `slots` are how
    many it takes there, one for each process that computes.
    """

    servable: str = ""
    device_type: str = "none"
    device_id: int | None = None  # of a worker that owns one
    labels: Mapping[str, str] = field(default_factory=dict)
    is_here: bool = False  # it has to run on the master's machine
    patience: float = 0.0  # seconds that it may wait for a place
    python: str = ""  # the interpreter, if it is not ours
    environment: str = ""  # a directory that lists the packages of an interpreter to make
    slots: int = 1


ANYTHING = Needs()


@dataclass(frozen=True, slots=True)
class WorkerPlace:
    """Where a worker runs."""

    node: str = ""  # "" is the master's machine
    device_id: int | None = None
    slots: int = 0  # that it takes of the machine's; 0 where any number may be taken


class Process(RunningProcess, Protocol):
    """A started worker process."""

    @property
    def is_moving(self) -> bool:
        """Whether its machine is leaving: the worker that follows it runs elsewhere."""
        ...


@dataclass(slots=True)
class Launched:
    """A worker that was started: its process, our end of the channel, and the arenas."""

    process: Process
    stream: socket.socket
    arena: Arena | NoArena
    view: ArenaView | NoArena
    place: WorkerPlace = WorkerPlace()
    python: str = ""  # the interpreter that runs it, for people; "" for that of its machine


class Launcher(Protocol):
    """Starts workers."""

    async def launch(self, name: str, log_name: str, needs: Needs) -> Launched:
        """Start a worker process; `name` is for people.  Raises StartError, or ResourceShortage if
        it may succeed later.
        """
        ...
