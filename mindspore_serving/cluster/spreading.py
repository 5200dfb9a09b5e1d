"""A launcher that starts each worker on the machine chosen by `nodes.choose`.

Does not know sockets: each node has a launcher of its own.
"""

import asyncio
from collections.abc import Coroutine, Sequence
from dataclasses import replace
from typing import Any

from mindspore_serving import log
from mindspore_serving.aio import is_set_within
from mindspore_serving.cluster.base import ANYTHING, Launched, Launcher, Needs, WorkerLocation
from mindspore_serving.cluster.nodes import Machine, choose, is_too_large, why_none
from mindspore_serving.cluster.rank_hosts import (
    RankHost,
    end_together,
    make_credentials,
    open_host,
)
from mindspore_serving.cluster.rank_machines import RankPlan, choose_machines, why_too_few
from mindspore_serving.core.placement import RankPlacement
from mindspore_serving.errors import InvalidInputs, NoFreeMachine, ResourceShortage

SOON = 10.0  # seconds; if a worker fails within them, its machine may be to blame
AVOID_SECONDS = 60.0  # for which such a machine is avoided
JOIN_SECONDS = 60.0  # to wait for a larger machine, if a worker needs more slots than any has


class SpreadingLauncher:
    """A launcher over several machines, this one first."""

    def __init__(self, local: Launcher) -> None:
        self.here = Machine("")
        self.host: str | None = None  # address of this machine for others, once they can join
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
            plan = await self._wait_for_machines(name, needs)
            try:
                if needs.machines == 1:
                    return await self._launch_on(plan.machines[0][0], name, log_name, needs)
                return await self._launch_ranks(plan, name, log_name, needs)
            except ResourceShortage:
                if all(machine in self._launchers for machine, _ in plan.machines):
                    raise
                # a node was lost meanwhile

    async def _launch_on(
        self, machine: Machine, name: str, log_name: str, needs: Needs
    ) -> Launched:
        """Start a worker, or a host of ranks, on a machine."""
        needed = replace(needs, device_id=machine.free_device(needs))
        worker = object()
        machine.workers[worker] = needed
        try:
            launched = await self._launchers[machine].launch(name, log_name, needed)
        except BaseException:
            self._free(machine, worker)
            raise
        taken = 0 if machine.slots is None else needed.slots
        launched.location = WorkerLocation(machine.name, needed.device_id, taken, self.host)
        self._watch(self._free_after(launched, machine, worker))
        return launched

    async def _launch_ranks(
        self, plan: RankPlan, name: str, log_name: str, needs: Needs
    ) -> Launched:
        """Start hosts of ranks on all machines but the first, then the worker there."""
        (first, count), *later = plan.machines
        credentials = make_credentials()

        async def start(machine: Machine, slots: int) -> RankHost:
            needed = replace(needs, slots=slots, hosts_ranks=True, device_id=None)
            started = await self._launch_on(machine, f"{name}, ranks", f"{log_name}_ranks", needed)
            return await open_host(started, credentials)

        tasks = [asyncio.ensure_future(start(*other)) for other in later]
        hosts: list[RankHost] = []
        try:
            for task in tasks:
                hosts.append(await task)
            launched = await self._launch_on(first, name, log_name, replace(needs, slots=count))
        except BaseException:
            await self._abandon(tasks)
            raise
        launched.placement = RankPlacement(
            tuple(count for _, count in plan.machines),
            plan.num_stages,
            tuple(machine.name or "of the server" for machine, _ in plan.machines),
            tuple(host.address for host in hosts),
            tuple(host.speed for host in hosts),
            credentials,
        )
        names = ", ".join(machine.name or "the server's" for machine, _ in plan.machines)
        log.info("%s: %d stages on machines %s", name, plan.num_stages, names)
        if later:
            taken = needs.slots if launched.location.slots else 0
            launched.location = replace(launched.location, node=names, slots=taken)
        self._watch(end_together(launched, hosts))
        return launched

    async def _abandon(self, tasks: "Sequence[asyncio.Future[RankHost]]") -> None:
        """Kill hosts whose worker could not be started."""
        for task in tasks:
            task.cancel()
        for host in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(host, RankHost):
                host.kill()

    def _watch(self, watch: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(watch)
        self._watches.add(task)
        task.add_done_callback(self._watches.discard)

    def _choose(self, needs: Needs, now: float) -> RankPlan | None:
        """Return where a worker and its ranks start; None if no machine is free."""
        if needs.machines > 1:
            return choose_machines(needs, self._launchers, now)
        machine = choose(needs, self._launchers, now)
        return None if machine is None else RankPlan(((machine, needs.slots),), needs.num_stages)

    async def _wait_for_machines(self, name: str, needs: Needs) -> RankPlan:
        loop = asyncio.get_running_loop()
        began, end = loop.time(), loop.time() + needs.placement_timeout
        is_first, explain = True, why_none if needs.machines == 1 else why_too_few
        while (plan := self._choose(needs, loop.time())) is None:
            problem = f"{name} waits: {explain(needs, self._launchers)}"
            if needs.machines == 1 and is_too_large(needs, self._launchers):
                end = min(end, began + JOIN_SECONDS)  # a larger machine may join
            if self._is_closed or loop.time() >= end:
                raise NoFreeMachine(problem)
            if is_first:
                log.warning("%s", problem)
            is_first = False
            await is_set_within(end - loop.time(), self._changed)
        return plan

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
