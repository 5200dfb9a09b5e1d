"""A deployment and its workers: how they are started, scaled and ended, and who waits for them.

Knows no other deployment.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Protocol

from mindspore_serving import log
from mindspore_serving.core.deployment import Deployment
from mindspore_serving.errors import ServableUnavailable, StartError
from mindspore_serving.ipc.messages import ModelReport
from mindspore_serving.master.autoscaling import Autoscaler, num_at_start
from mindspore_serving.master.dispatcher import Dispatcher
from mindspore_serving.master.link import Link
from mindspore_serving.master.registry import ServableService
from mindspore_serving.master.supervisor import WorkerSupervisor


class Launch(Protocol):
    """Starts a worker of `deployed` under the name `log_name`, and has it load."""

    def __call__(
        self,
        deployed: "Deployed",
        supervisor: WorkerSupervisor,
        log_name: str,
        device_id: int | None,
    ) -> Coroutine[None, None, Link]: ...


class Deployed:
    """One deployment.

    Args:
        deployment: what is to run.
        launch: starts a worker.
        dispatcher: has the requests, and the services that the workers are registered with.
        retire: ends the worker of a link when it has answered what it has.
        on_change: called when a worker runs, or runs no more, or later than was expected.
        may_load: whether it may have its first worker now.
    """

    def __init__(
        self,
        deployment: Deployment,
        launch: Launch,
        dispatcher: Dispatcher,
        *,
        retire: Callable[[Link], None],
        on_change: Callable[[], None],
        may_load: "Callable[[Deployed], bool]",
    ) -> None:
        self.deployment = deployment
        self.workers: list[WorkerSupervisor] = []  # that it is to have
        self.models: dict[str, ModelReport] = {}  # what its device workers have loaded
        self._started: list[WorkerSupervisor] = []  # also those that leave
        self._num_restarts = 0  # of those that are gone
        self._launch = launch
        self._dispatcher = dispatcher
        self._retire_link = retire
        self._on_change = on_change
        self._may_load = may_load
        self._autoscaler: Autoscaler | None = None
        self._scaling: asyncio.Task[None] | None = None

    @property
    def services(self) -> Sequence[ServableService]:
        """What its workers can do, as they reported."""
        return self._dispatcher.registry.of(self.deployment)

    @property
    def is_gone(self) -> bool:
        """Whether all its workers have ended for good."""
        return bool(self.workers) and all(one.state == "gone" for one in self.workers)

    @property
    def is_starting(self) -> bool:
        """Whether no worker of it has run yet."""
        states = {one.state for one in self.workers}
        return bool(states) and states <= {"new", "starting"}

    @property
    def num_restarts(self) -> int:
        """Workers that ran in place of others."""
        return self._num_restarts + sum(one.num_restarts for one in self._started)

    def is_same_version(self, other: "Deployed") -> bool:
        own, others = self.deployment, other.deployment
        return (own.name, own.version_number) == (others.name, others.version_number)

    # --- see `budget.BudgetMember` ----------------------------------------------------------------

    @property
    def is_loaded(self) -> bool:
        return any(one.state != "gone" for one in self._started)

    @property
    def is_leaving(self) -> bool:
        return not self.workers

    @property
    def is_idle(self) -> bool:
        is_running = all(one.state in ("ready", "gone") for one in self._started)
        is_used = self._num_requests() > 0
        may_end = self.deployment.is_scaled and not self.deployment.min_workers
        return is_running and not is_used and may_end

    @property
    def last_used(self) -> float:
        methods = [method for one in self.services for method in one.methods.values()]
        return max((method.series.last_answer for method in methods), default=0.0)

    def unload(self) -> None:
        if self._autoscaler is not None:
            self._autoscaler.unload()

    # --- starting and ending ------------------------------------------------------------------

    async def stop(self, grace: float) -> None:
        """End all workers, which may take `grace` seconds to finish what they run."""
        if self._scaling is not None:
            self._scaling.cancel()
        await asyncio.gather(*(one.stop(grace) for one in self._started))

    def first_workers(self) -> list[WorkerSupervisor]:
        """Those that own devices, or one that has to say what it can do."""
        if self.deployment.is_scaled:
            return [self._replica(i) for i in range(num_at_start(self.deployment))]
        return [self._make(device_id=i) for i in self.deployment.device_ids]

    def extra_workers(self) -> list[WorkerSupervisor]:
        """Those that call the first ones, which run."""
        return [self._make(extra=i) for i in range(self._num_extra_workers())]

    def begin_scaling(self) -> None:
        """Let the number of workers follow that of requests, if it is to."""
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
        """Of a worker with all models, of those of a deployment that is scaled."""
        if self.deployment.device_ids:
            return self._make(device_id=self.deployment.device_ids[number])
        return self._make(extra=number)

    def _make(self, *, device_id: int | None = None, extra: int | None = None) -> WorkerSupervisor:
        """Of a worker that owns a device, or of an extra one."""
        deployment = self.deployment
        name, version = deployment.servable_name, deployment.version_number
        if deployment.gang is not None:
            title, log_name = f"distributed servable {name}", f"log_{name}_distributed"
        elif device_id is not None:
            title = f"servable {name}, device {device_id}"
            log_name = f"log_{name}_device{device_id}_version{version}"
        else:
            title = f"servable {name}, worker {extra}"
            log_name = f"log_{name}_extra{extra}_version{version}"

        supervisor = WorkerSupervisor(
            title,
            lambda: self._launch(self, supervisor, log_name, device_id),
            lambda _: self._on_worker(),
            deployment.restart_policy,
            is_awaited=deployment.gang is None,
        )
        self.workers.append(supervisor)
        gone = [one for one in self._started if one.state == "gone"]
        self._num_restarts += sum(one.num_restarts for one in gone)
        self._started = [*(one for one in self._started if one not in gone), supervisor]
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
            on_failed=self._on_failed_to_add,
            may_load=lambda: self._may_load(self),
        )

    def _num_requests(self) -> int:
        """How many are in flight, also to its models."""
        methods = {method for service in self.services for method in service.methods.values()}
        return self._dispatcher.num_in(methods)

    # --- who waits for workers ----------------------------------------------------------------

    def _on_worker(self) -> None:
        """A worker runs now, or no more, or later than before."""
        own = self.workers
        if own and all(one.state == "ready" or one.ready_in() is None for one in own):
            last = next((one.last_exit for one in own if one.last_exit), "they were told to")
            later = [one.next_start_in() for one in own if one.state == "restarting"]
            self._refuse(last, min(later, default=None))
        self._on_change()

    def _on_failed_to_add(self, retry_after: float) -> None:
        """Refuse requests, if there is no worker for them, until another start may be tried."""
        self._refuse("one could not be started", retry_after)

        def accept() -> None:
            for service in self.services:
                service.reason = ""

        asyncio.get_running_loop().call_later(retry_after, accept)

    def _refuse(self, last_exit: str, retry_after: float | None) -> None:
        """Let nothing wait for more workers: none is expected within `retry_after` seconds, or
        ever.
        """
        for service in self.services:
            service.reason = f"its workers have ended ({last_exit}), see the server's log"
            service.retry_after = retry_after
            for method in service.methods.values():
                if not method.is_served:
                    text = f"Request {method.label} , servable is not available: {service.reason}"
                    self._dispatcher.fail_waiting(method, ServableUnavailable(text, retry_after))


async def start(
    deployed: Sequence[Deployed], *, is_strict: bool = True
) -> dict[Deployed, StartError]:
    """Start all workers: those that own a device first, since the others call them.

    Raises StartError with the first worker's reason.  Unless `is_strict`, those that have a worker
    which cannot start are returned with the reason, as long as there are others.
    """
    failed = await _start_all({one: one.first_workers() for one in deployed}, is_strict=is_strict)
    going = [one for one in deployed if one not in failed]
    failed |= await _start_all({one: one.extra_workers() for one in going}, is_strict=is_strict)
    for one in deployed:
        if one not in failed:
            one.begin_scaling()
    return failed


async def _start_all(
    workers: Mapping[Deployed, Sequence[WorkerSupervisor]], *, is_strict: bool
) -> dict[Deployed, StartError]:
    supervisors = [worker for own in workers.values() for worker in own]
    results = await asyncio.gather(*(s.start() for s in supervisors), return_exceptions=True)
    errors = {}
    for supervisor, result in zip(supervisors, results, strict=True):
        if isinstance(result, StartError):
            errors[supervisor] = result
        elif isinstance(result, BaseException):
            raise result
    failed = {one: errors[s] for one, own in workers.items() for s in own if s in errors}
    if failed and (is_strict or len(failed) == len(workers)):
        raise StartError(f"Fail to start workers: {next(iter(errors.values()))}")
    return failed
