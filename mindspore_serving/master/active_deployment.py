"""Deployment with its workers: how they are started, scaled and ended, and when requests may wait.

It knows no other deployment.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Protocol

from mindspore_serving import log
from mindspore_serving.cluster.rank_hosts import make_credentials
from mindspore_serving.core.deployment import Deployment
from mindspore_serving.core.placement import GroupCredentials
from mindspore_serving.errors import ServableUnavailable, StartError
from mindspore_serving.ipc.messages import ModelReport
from mindspore_serving.master.autoscaling import Autoscaler, num_at_start
from mindspore_serving.master.dispatcher import Dispatcher
from mindspore_serving.master.link import Link
from mindspore_serving.master.registry import Method, ServableService
from mindspore_serving.master.supervisor import WorkerSupervisor


class Launch(Protocol):
    """Function that starts a worker and has it load the servable.

    `log_name` is the name of its log file.
    """

    def __call__(
        self,
        deployed: "ActiveDeployment",
        supervisor: WorkerSupervisor,
        log_name: str,
        device_id: int | None,
    ) -> Coroutine[None, None, Link]: ...


class ActiveDeployment:
    """Deployment with its workers.

    Args:
        deployment: what to run.
        launch: starts a worker.
        dispatcher: has the requests, and the services that the workers are registered with.
        retire: ends the worker of a link after it has answered its requests.
        on_change: called when a worker starts, ends, or is delayed.
        may_load: returns whether the deployment can have its first worker now.
    """

    def __init__(
        self,
        deployment: Deployment,
        launch: Launch,
        dispatcher: Dispatcher,
        *,
        retire: Callable[[Link], None],
        on_change: Callable[[], None],
        may_load: "Callable[[ActiveDeployment], bool]",
    ) -> None:
        self.deployment = deployment
        self.workers: list[WorkerSupervisor] = []  # without those that leave
        self.models: dict[str, ModelReport] = {}  # loaded by its device workers
        self._started: list[WorkerSupervisor] = []  # including those that leave
        self._num_restarts = 0  # of supervisors that have ended
        self._credentials: GroupCredentials | None = None
        self._launch = launch
        self._dispatcher = dispatcher
        self._retire_link = retire
        self._on_change = on_change
        self._may_load = may_load
        self._autoscaler: Autoscaler | None = None
        self._scaling: asyncio.Task[None] | None = None

    def credentials(self) -> GroupCredentials:
        """Return the credentials of the links between its workers, made at first use.

        Raises StartError without the library that makes them.
        """
        if self._credentials is None:
            self._credentials = make_credentials("a model with roles over several machines")
        return self._credentials

    @property
    def services(self) -> Sequence[ServableService]:
        """Services of its workers, as they reported them."""
        return self._dispatcher.registry.of(self.deployment)

    @property
    def is_gone(self) -> bool:
        """True if all of its workers have ended for good."""
        return bool(self.workers) and all(worker.state == "gone" for worker in self.workers)

    @property
    def is_starting(self) -> bool:
        """True if none of its workers has run yet."""
        states = {worker.state for worker in self.workers}
        return bool(states) and states <= {"new", "starting"}

    @property
    def num_restarts(self) -> int:
        """Number of times that a worker was replaced."""
        return self._num_restarts + sum(worker.num_restarts for worker in self._started)

    def is_same_version(self, other: "ActiveDeployment") -> bool:
        first, second = self.deployment, other.deployment
        return (first.name, first.version_number) == (second.name, second.version_number)

    # --- `budget.BudgetMember` --------------------------------------------------------------------

    @property
    def is_loaded(self) -> bool:
        return any(worker.state != "gone" for worker in self._started)

    @property
    def is_leaving(self) -> bool:
        return not self.workers

    @property
    def is_idle(self) -> bool:
        is_running = all(worker.state in ("ready", "gone") for worker in self._started)
        is_used = self._num_requests() > 0
        may_end = self.deployment.is_scaled and not self.deployment.min_workers
        return is_running and not is_used and may_end

    @property
    def last_used(self) -> float:
        return max((method.series.last_answer for method in self._methods()), default=0.0)

    def unload(self) -> None:
        if self._autoscaler is not None:
            self._autoscaler.unload()

    # --- starting and ending ------------------------------------------------------------------

    async def stop(self, grace: float) -> None:
        """End all workers; they have `grace` seconds to finish what they run."""
        if self._scaling is not None:
            self._scaling.cancel()
        await asyncio.gather(*(worker.stop(grace) for worker in self._started))

    def first_workers(self) -> list[WorkerSupervisor]:
        """Create the supervisors of device workers, or of the initial replicas if scaled."""
        if self.deployment.is_scaled:
            return [self._replica(i) for i in range(num_at_start(self.deployment))]
        return [self._make(device_id=i) for i in self.deployment.device_ids]

    def extra_workers(self) -> list[WorkerSupervisor]:
        """Create the supervisors of workers without devices; the first workers run already."""
        return [self._make(extra=i) for i in range(self._num_extra_workers())]

    def begin_scaling(self) -> None:
        """Start autoscaling if the deployment is scaled."""
        if self.deployment.is_scaled:
            self._autoscaler = self._new_autoscaler()
            self._scaling = asyncio.create_task(self._autoscaler.run())

    def _num_extra_workers(self) -> int:
        if self.deployment.is_scaled:
            return 0
        number = self.deployment.num_extra_workers
        service = next((service for service in self.services if service.workers), None)
        if not number or service is None:
            return number
        reports = [method.report for method in service.methods.values()]
        if any(not r.is_only_models for r in reports if not r.name.startswith("@")):
            return number
        log.warning(
            "servable %s: num_parallel_workers is ignored, all methods consist only of models",
            self.deployment.servable_name,
        )
        return 0

    def _replica(self, number: int) -> WorkerSupervisor:
        """Create the supervisor of a replica, with all models, of a scaled deployment."""
        if self.deployment.device_ids:
            return self._make(device_id=self.deployment.device_ids[number])
        return self._make(extra=number)

    def _make(self, *, device_id: int | None = None, extra: int | None = None) -> WorkerSupervisor:
        """Create the supervisor of a worker that owns a device, or of an extra worker."""
        deployment = self.deployment
        name, version = deployment.servable_name, deployment.version_number
        devices, number = deployment.device_ids, extra or 0
        if deployment.gang is not None:
            title, log_name = f"distributed servable {name}", f"log_{name}_distributed"
        elif device_id is not None:
            title = f"servable {name}, device {device_id}"
            log_name = f"log_{name}_device{device_id}_version{version}"
            number = devices.index(device_id)
        else:
            title = f"servable {name}, worker {extra}"
            log_name = f"log_{name}_extra{extra}_version{version}"
            number += len(devices)

        supervisor = WorkerSupervisor(
            title,
            lambda: self._launch(self, supervisor, log_name, device_id),
            lambda _: self._on_worker(),
            deployment.restart_policy,
            is_awaited=deployment.gang is None,
            number=number,
        )
        self.workers.append(supervisor)
        ended = [worker for worker in self._started if worker.state == "gone"]
        self._num_restarts += sum(worker.num_restarts for worker in ended)
        self._started = [*(worker for worker in self._started if worker not in ended), supervisor]
        return supervisor

    def _new_autoscaler(self) -> Autoscaler:
        def retire(supervisor: WorkerSupervisor) -> None:
            link = supervisor.link
            if link is None or link.closed.done():
                supervisor.leave()
            else:
                self._retire_link(link)

        return Autoscaler(
            self.deployment,
            self.workers,
            num_requests=self._num_requests,
            make=self._replica,
            retire=retire,
            can_retire=self._can_retire,
            on_failed=self._on_failed_to_add,
            may_load=lambda: self._may_load(self),
        )

    def _num_requests(self) -> int:
        """Return the number of requests in flight, including calls of its models.

        A sequence counts as a request, from its start to its end.
        """
        num_requests = self._dispatcher.num_in(self._methods(), with_sequences=False)
        return num_requests + self.num_sequences()

    def num_sequences(self, link: Link | None = None) -> int:
        """Return the number of sequences that have not ended, all or those of a worker."""
        return sum(method.num_sequences(link) for method in self._methods())

    def _methods(self) -> set[Method]:
        return {method for service in self.services for method in service.methods.values()}

    def _can_retire(self, supervisor: WorkerSupervisor) -> bool:
        """Return whether no sequence would end with the worker."""
        link = supervisor.link
        return link is None or self.deployment.keep_sequences or not self.num_sequences(link)

    # --- requests that wait for workers -------------------------------------------------------

    def _on_worker(self) -> None:
        """Handle a worker that has started, ended, or is delayed."""
        workers = self.workers
        if workers and all(
            worker.state == "ready" or worker.ready_in() is None for worker in workers
        ):
            last = next(
                (worker.last_exit for worker in workers if worker.last_exit), "they were told to"
            )
            later = [worker.next_start_in() for worker in workers if worker.state == "restarting"]
            self._refuse(last, min(later, default=None))
        self._on_change()

    def _on_failed_to_add(self, retry_after: float) -> None:
        """Refuse requests that have no worker until another start can be tried."""
        self._refuse("a worker could not be started", retry_after)

        def accept() -> None:
            for service in self.services:
                service.reason = ""

        asyncio.get_running_loop().call_later(retry_after, accept)

    def _refuse(self, last_exit: str, retry_after: float | None) -> None:
        """Refuse requests that have no worker.

        None is expected within `retry_after` seconds, or ever if that is None.
        """
        for service in self.services:
            service.reason = f"its workers have ended ({last_exit}), see the server's log"
            service.retry_after = retry_after
            for method in service.methods.values():
                if not method.is_served:
                    text = f"Request {method.label}, servable is not available: {service.reason}"
                    self._dispatcher.fail_waiting(method, ServableUnavailable(text, retry_after))


async def start(
    deployed: Sequence[ActiveDeployment], *, is_strict: bool = True
) -> dict[ActiveDeployment, StartError]:
    """Start all workers: those that own a device first, since the others call them.

    Raises StartError with the first worker's reason.  Unless `is_strict`, deployments with a worker
    that cannot start are returned with the reason, as long as there are others.
    """
    first = {deployment: deployment.first_workers() for deployment in deployed}
    failed = await _start_all(first, is_strict=is_strict)
    extra = {each: each.extra_workers() for each in deployed if each not in failed}
    failed |= await _start_all(extra, is_strict=is_strict)
    for deployment in deployed:
        if deployment not in failed:
            deployment.begin_scaling()
    return failed


async def _start_all(
    workers_of: Mapping[ActiveDeployment, Sequence[WorkerSupervisor]], *, is_strict: bool
) -> dict[ActiveDeployment, StartError]:
    supervisors = [worker for workers in workers_of.values() for worker in workers]
    results = await asyncio.gather(*(s.start() for s in supervisors), return_exceptions=True)
    errors = {}
    for supervisor, result in zip(supervisors, results, strict=True):
        if isinstance(result, StartError):
            errors[supervisor] = result
        elif isinstance(result, BaseException):
            raise result
    failed = {
        deployment: errors[worker]
        for deployment, workers in workers_of.items()
        for worker in workers
        if worker in errors
    }
    if failed and (is_strict or len(failed) == len(workers_of)):
        raise StartError(f"Fail to start workers: {next(iter(errors.values()))}")
    return failed
