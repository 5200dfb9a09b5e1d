"""A launcher that starts each worker on the machine chosen by `nodes.choose`.

Does not know sockets: each node has a launcher of its own.
"""

import asyncio
from dataclasses import replace

from mindspore_serving import log
from mindspore_serving.aio import is_set_within
from mindspore_serving.cluster.base import ANYTHING, Launched, Launcher, Needs, WorkerLocation
from mindspore_serving.cluster.nodes import Machine, choose, is_too_large, why_none
from mindspore_serving.errors import InvalidInputs, NoFreeMachine, ResourceShortage

SOON = 10.0  # seconds; if a worker fails within them, its machine may be to blame
AVOID_SECONDS = 60.0  # for which such a machine is avoided
JOIN_SECONDS = 60.0  # to wait for a larger machine, if a worker needs more slots than any has


class SpreadingLauncher:
    """A launcher over several machines, this one first."""

    def __init__(self, local: Launcher) -> None:
        self.here = Machine("")
        self._launchers = {self.here: local}
        self._is_closed = False
        self._changed = asyncio.Event()
        self._watches: set[asyncio.Task[None]] = set()

    @property
    def machines(self) -> list[Machine]:
        """This machine, then the nodes in the order in which they joined."""
        return list(self._launchers)

    def join(self, machine: Machine, launcher: Launcher) -> None:
        """Add a machine.  Raises InvalidInputs if there is one of that name."""
        if any(known.name == machine.name for known in self._launchers):
            raise InvalidInputs(f"a node with the name {machine.name!r} has joined already")
        self._launchers[machine] = launcher
        self._change()

    def remove(self, machine: Machine) -> None:
        """Remove a machine that has left or is lost."""
        del self._launchers[machine]

    def close(self) -> None:
        """Fail all launches that wait for a machine."""
        self._is_closed = True
        self._change()

    async def launch(self, name: str, log_name: str, needs: Needs = ANYTHING) -> Launched:
        """Start a worker once a machine is free, see `Launcher.launch`."""
        while True:
            machine = await self._wait_for_machine(name, needs)
            launcher = self._launchers[machine]
            needed = replace(needs, device_id=machine.free_device(needs))
            worker = object()
            machine.workers[worker] = needed
            try:
                launched = await launcher.launch(name, log_name, needed)
            except BaseException as error:
                self._free(machine, worker)
                if isinstance(error, ResourceShortage) and machine not in self._launchers:
                    continue  # the node was lost meanwhile
                raise
            taken = 0 if machine.slots is None else needed.slots
            launched.location = WorkerLocation(machine.name, needed.device_id, taken)
            watch = asyncio.create_task(self._free_after(launched, machine, worker))
            self._watches.add(watch)
            watch.add_done_callback(self._watches.discard)
            return launched

    async def _wait_for_machine(self, name: str, needs: Needs) -> Machine:
        loop = asyncio.get_running_loop()
        began, end = loop.time(), loop.time() + needs.placement_timeout
        is_first = True
        while (machine := choose(needs, self._launchers, loop.time())) is None:
            problem = f"{name} waits: {why_none(needs, self._launchers)}"
            if is_too_large(needs, self._launchers):
                end = min(end, began + JOIN_SECONDS)  # a larger machine may join
            if self._is_closed or loop.time() >= end:
                raise NoFreeMachine(problem)
            if is_first:
                log.warning("%s", problem)
            is_first = False
            await is_set_within(end - loop.time(), self._changed)
        return machine

    async def _free_after(self, launched: Launched, machine: Machine, worker: object) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        if await launched.process.wait() and loop.time() < began + SOON:
            machine.avoided[machine.workers[worker].servable] = loop.time() + AVOID_SECONDS
        self._free(machine, worker)

    def _free(self, machine: Machine, worker: object) -> None:
        del machine.workers[worker]
        self._change()

    def _change(self) -> None:
        """Wake launches that wait for a machine."""
        self._changed.set()
        self._changed = asyncio.Event()
