"""How many workers a servable has, between bounds, by how many requests it has.

`Scaler` decides, without a clock: `now` is an argument, in seconds.  `Autoscaler` is the loop that
has workers started and retired.
"""

import asyncio
from collections import deque
from collections.abc import Callable

from mindspore_serving import log
from mindspore_serving.core.deployment import Deployment
from mindspore_serving.errors import StartError
from mindspore_serving.master.supervisor import WorkerSupervisor

INTERVAL = 0.25  # seconds between two looks
RETRY_SECONDS = 5.0  # after a start that failed


def num_at_start(deployment: Deployment) -> int:
    """Workers of one that is scaled; at least one, since only a worker knows what it can do."""
    return max(1, deployment.min_workers) if deployment.is_scaled else 0


class Scaler:
    """As many workers as `requests_per_worker` says; fewer when fewer would have done for
    `scale_down_delay` seconds.
    """

    def __init__(self, deployment: Deployment, num_workers: int, now: float) -> None:
        self._deployment = deployment
        self._needs = deque([(now, num_workers)])  # when that many were needed; later ones fewer

    def wanted(self, num_requests: int, now: float) -> int:
        """The workers to have, with so many requests in flight."""
        options, needs = self._deployment, self._needs
        need = -(-num_requests // options.requests_per_worker)
        need = min(options.max_workers, max(options.min_workers, need))
        while needs and needs[-1][1] <= need:
            needs.pop()
        needs.append((now, need))
        while needs[0][0] < now - options.scale_down_delay:
            needs.popleft()
        return needs[0][1]


class Autoscaler:
    """Of one deployment.

    Args:
        deployment: what is scaled.
        own: its workers, but those that leave; shared with the owner.
        num_requests: how many are in flight.
        make: a supervisor, which is added to `own`, for the worker with this number.
        retire: has a worker end when it has answered what it has.
        on_failed: called with the seconds after which a start that failed may be tried again.
        may_load: whether there may be a first worker now; asked again if not.
    """

    def __init__(
        self,
        deployment: Deployment,
        own: list[WorkerSupervisor],
        *,
        num_requests: Callable[[], int],
        make: Callable[[int], WorkerSupervisor],
        retire: Callable[[WorkerSupervisor], None],
        on_failed: Callable[[float], None],
        may_load: Callable[[], bool],
    ) -> None:
        self._deployment = deployment
        self._name = deployment.name
        self._own = own
        self._numbers = {one: number for number, one in enumerate(own)}  # also of those that leave
        self._num_requests = num_requests
        self._make = make
        self._end = retire
        self._on_failed = on_failed
        self._may_load = may_load
        self._scaler = Scaler(deployment, len(own), asyncio.get_running_loop().time())
        self._not_before = 0.0
        self._starts: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """For ever."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(INTERVAL)
            now, num_requests = loop.time(), self._num_requests()
            self._numbers = {one: n for one, n in self._numbers.items() if one.state != "gone"}
            wanted, num_workers = self._scaler.wanted(num_requests, now), len(self._own)
            if wanted < num_workers:
                self._retire(num_workers - wanted, num_requests)
            elif wanted > num_workers and now >= self._not_before and self._may_add():
                self._add(wanted - num_workers, num_requests)

    def unload(self) -> None:
        """End all workers, until there are requests again."""
        self._retire(len(self._own), 0)
        self._scaler = Scaler(self._deployment, 0, asyncio.get_running_loop().time())

    def _may_add(self) -> bool:
        return bool(self._own) or self._may_load()

    def _add(self, count: int, num_requests: int) -> None:
        free = set(range(self._deployment.max_workers)) - set(self._numbers.values())
        for number in sorted(free)[:count]:
            log.info("servable %s: one more worker, for %d requests", self._name, num_requests)
            supervisor = self._make(number)
            supervisor.is_added = True
            self._numbers[supervisor] = number
            task = asyncio.create_task(self._start(supervisor))
            self._starts.add(task)
            task.add_done_callback(self._starts.discard)

    async def _start(self, supervisor: WorkerSupervisor) -> None:
        try:
            await supervisor.start()
        except StartError as error:
            if supervisor in self._own:
                self._own.remove(supervisor)
            if supervisor.should_run:
                log.warning("%s; trying again in %g s", error, RETRY_SECONDS)
                self._not_before = asyncio.get_running_loop().time() + RETRY_SECONDS
                self._on_failed(RETRY_SECONDS)

    def _retire(self, count: int, num_requests: int) -> None:
        """End those that have the least to do, when they have answered it."""
        started = [one for one in self._own if one.state != "starting"]
        for supervisor in sorted(started, key=WorkerSupervisor.num_parts)[:count]:
            log.info("servable %s: one worker less, for %d requests", self._name, num_requests)
            self._own.remove(supervisor)
            self._end(supervisor)
