"""The launcher protocol: a launcher starts a worker and returns its process and channel.

The dispatcher sees a connected stream and, on its own machine, two shared-memory arenas.  It does
not know whether the worker is a child, a process of another machine or an actor of some framework.
"""

import asyncio
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from mindspore_serving.core.placement import RankPlacement
from mindspore_serving.ipc.arena import Arena, ArenaView, NoArena
from mindspore_serving.process.group import RunningProcess


@dataclass(frozen=True, slots=True)
class Needs:
    """Requirements of a worker on the machine that it runs on.

    Args:
        device_type: "none" for any.
        device_id: the device that it owns; None: none.
        labels: labels that the machine must have.
        is_local: whether it has to run on the master's machine.
        placement_timeout: seconds that it may wait for a free machine.
        python: the interpreter; "" for the current one.
        environment: directory with the list of packages of an environment to create; "" for none.
        slots: slots that it takes, one for each process that computes.
        machines: machines on which its ranks are placed: several stages, or ranks of one.
        num_stages: stages of its model; `slots` is a multiple of it.
        takes_fewer: whether fewer machines or stages will do, after one was lost.
        hosts_ranks: whether it is a host of ranks of a worker on another machine.
    """

    servable: str = ""
    device_type: str = "none"
    device_id: int | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    is_local: bool = False
    placement_timeout: float = 0.0
    python: str = ""
    environment: str = ""
    slots: int = 1
    machines: int = 1
    num_stages: int = 1
    takes_fewer: bool = False
    hosts_ranks: bool = False


ANYTHING = Needs()


@dataclass(frozen=True, slots=True)
class WorkerLocation:
    """The machine, device and slots of a worker.

    `server_host` is the address of the master's machine for others; None if none can join.
    """

    node: str = ""  # "" is the master's machine
    device_id: int | None = None
    slots: int = 0  # taken by the worker; 0 on a machine without a limit of slots
    server_host: str | None = None


@dataclass(slots=True)
class Launched:
    """A started worker: its process, our end of the channel, and the arenas.

    `is_left` is set once its machine, or one of its ranks, leaves: its replacement runs elsewhere.
    """

    process: RunningProcess
    stream: socket.socket
    arena: Arena | NoArena
    view: ArenaView | NoArena
    location: WorkerLocation = WorkerLocation()
    python: str = ""  # description of its interpreter; "" for the default of its machine
    placement: RankPlacement | None = None  # of ranks on several machines
    is_left: asyncio.Event = field(default_factory=asyncio.Event)


class Launcher(Protocol):
    """A way to start workers."""

    async def launch(self, name: str, log_name: str, needs: Needs) -> Launched:
        """Start a worker process; `name` is its title in messages.

        Raises StartError, or ResourceShortage if a later attempt may succeed.
        """
        ...
