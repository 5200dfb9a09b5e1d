"""Autoscaling: adapt the number of a servable's workers to the number of its requests.

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

INTERVAL = 0.25  # seconds between two checks
RETRY_SECONDS = 5.0  # after a failed start


def num_at_start(deployment: Deployment) -> int:
    """Return the initial number of workers of a scaled deployment.

    At least 1, since only a worker can report the servable's methods.
    """
    return max(1, deployment.min_workers) if deployment.is_scaled else 0


class Scaler:
    """Number of workers according to `requests_per_worker`, within the deployment's bounds.

    It decreases when fewer workers would have been enough for `scale_down_delay` seconds.
    """

    def __init__(self, deployment: Deployment, num_workers: int, now: float) -> None:
        self._deployment = deployment
        # Times and needs, the needs decreasing: the first is the maximum of the delay's span.
        self._needs = deque([(now, num_workers)])

    def target(self, num_requests: int, now: float) -> int:
        """Return the number of workers to have for `num_requests` in flight."""
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
    """Loop that scales one deployment.

    Args:
        deployment: what is scaled.
        workers: its workers without those that leave; shared with the caller.
        num_requests: returns the number of requests in flight.
        make: creates the supervisor of the worker with this number and adds it to `workers`.
        retire: ends a worker after it has answered its requests.
        can_retire: returns whether a worker may end now.
        on_failed: called with the seconds until a failed start can be retried.
        may_load: returns whether the first worker can start now; called again if not.
    """

    def __init__(
        self,
        deployment: Deployment,
        workers: list[WorkerSupervisor],
        *,
        num_requests: Callable[[], int],
        make: Callable[[int], WorkerSupervisor],
        retire: Callable[[WorkerSupervisor], None],
        can_retire: Callable[[WorkerSupervisor], bool],
        on_failed: Callable[[float], None],
        may_load: Callable[[], bool],
    ) -> None:
        self._deployment = deployment
        self._name = deployment.name
        self._workers = workers
        # By worker; also of workers that leave.
        self._numbers = {worker: number for number, worker in enumerate(workers)}
        self._num_requests = num_requests
        self._make = make
        self._end = retire
        self._can_retire = can_retire
        self._on_failed = on_failed
        self._may_load = may_load
        self._scaler = Scaler(deployment, len(workers), asyncio.get_running_loop().time())
        self._not_before = 0.0
        self._starts: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Scale until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(INTERVAL)
            now, num_requests = loop.time(), self._num_requests()
            numbers = self._numbers.items()
            self._numbers = {worker: n for worker, n in numbers if worker.state != "gone"}
            target, num_workers = self._scaler.target(num_requests, now), len(self._workers)
            if target < num_workers:
                self._retire(num_workers - target, num_requests)
            elif target > num_workers and now >= self._not_before and self._may_add():
                self._add(target - num_workers, num_requests)

    def unload(self) -> None:
        """Retire all workers until there are requests again."""
        self._retire(len(self._workers), 0)
        self._scaler = Scaler(self._deployment, 0, asyncio.get_running_loop().time())

    def _may_add(self) -> bool:
        return bool(self._workers) or self._may_load()

    def _add(self, count: int, num_requests: int) -> None:
        free = set(range(self._deployment.max_workers)) - set(self._numbers.values())
        for number in sorted(free)[:count]:
            log.info("servable %s: adding a worker, for %d requests", self._name, num_requests)
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
            if supervisor in self._workers:
                self._workers.remove(supervisor)
            if supervisor.should_run:
                log.warning("%s; trying again in %g s", error, RETRY_SECONDS)
                self._not_before = asyncio.get_running_loop().time() + RETRY_SECONDS
                self._on_failed(RETRY_SECONDS)

    def _retire(self, count: int, num_requests: int) -> None:
        """Retire the workers with the fewest parts."""
        started = [worker for worker in self._workers if worker.state != "starting"]
        started = [worker for worker in started if self._can_retire(worker)]
        for supervisor in sorted(started, key=WorkerSupervisor.num_parts)[:count]:
            log.info("servable %s: retiring a worker, for %d requests", self._name, num_requests)
            self._workers.remove(supervisor)
            self._end(supervisor)
