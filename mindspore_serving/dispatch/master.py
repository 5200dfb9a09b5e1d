"""Owns everything in the master: starts workers, registers them, and ends all of it in order.

Front ends see its dispatcher, which is an `Inference`, and its `control`.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from mindspore_serving import log
from mindspore_serving.cluster.base import Launcher
from mindspore_serving.core.deployment import Deployment
from mindspore_serving.dispatch import liveness, loading, starting
from mindspore_serving.dispatch.autoscaling import Autoscaler, num_at_start
from mindspore_serving.dispatch.dispatcher import Dispatcher
from mindspore_serving.dispatch.link import Link
from mindspore_serving.dispatch.liveness import Pulse
from mindspore_serving.dispatch.overview import Overview
from mindspore_serving.dispatch.registry import Service
from mindspore_serving.dispatch.supervisor import WorkerSupervisor
from mindspore_serving.errors import ServableUnavailable, ServingError, StartError
from mindspore_serving.ipc.messages import Call, ModelReport

EXIT_GRACE = 10.0  # seconds a worker has to leave before it is killed
_HOLD = 0.5  # seconds until the end of a dead worker's stream, unless a child of it holds on


class Master:
    """All workers of this server and the requests between them and the front ends."""

    def __init__(self, launcher: Launcher, on_all_gone: Callable[[], None]) -> None:
        self.dispatcher = Dispatcher()
        self.registry = self.dispatcher.registry
        self._launcher = launcher
        self._on_all_gone = on_all_gone
        self._supervisors: list[WorkerSupervisor] = []
        self._deployed: list[tuple[Deployment, list[WorkerSupervisor]]] = []
        self._services: dict[Link, Service] = {}
        self._links: dict[Link, WorkerSupervisor] = {}
        self._models: dict[tuple[str, int], dict[str, ModelReport]] = {}
        self.control = Overview(self.registry, self._deployed)
        self._is_stopping = False
        self._watches: set[asyncio.Task[None]] = set()
        self._scalings: list[asyncio.Task[None]] = []

    # --- starting and stopping --------------------------------------------------------------

    async def deploy(
        self, deployments: Sequence[Deployment], *, is_strict: bool = True
    ) -> list[tuple[str, StartError]]:
        """Start all workers: those that own a device first, since the others call them.

        Raises StartError with the first worker's reason; what was started is then to be stopped.
        Unless `is_strict`, servables that cannot start are left out, as long as one can, and
        returned with the reasons.
        """
        self._deployed += [(deployment, []) for deployment in deployments]
        fixed = [d for d in deployments if d.scaling is None]
        devices = [(d, i) for d in fixed for i in d.device_ids]
        replicas = [(d, i) for d in deployments for i in range(num_at_start(d))]
        first = [self._supervisor(d, device_id=i) for d, i in devices]
        first += [self._replica(d, i) for d, i in replicas]
        failed = await self._start_all(first, is_strict=is_strict)
        going = [deployment for deployment, _ in self._deployed]
        extras = [(d, i) for d in going for i in range(self._num_extra(d))]
        second = [self._supervisor(d, extra=i) for d, i in extras]
        failed += await self._start_all(second, is_strict=is_strict)
        for deployment, _ in self._deployed:
            if deployment.scaling is not None:
                scaler = self._autoscaler(deployment)
                self._scalings.append(asyncio.create_task(scaler.run()))
        return [(deployment.name, error) for deployment, error in failed]

    async def drain(self, limit: float) -> bool:
        """Wait until nothing is in flight, at most `limit` seconds; whether that was reached.  From
        now on nothing is ready."""
        self.control.is_ending = True
        end = asyncio.get_running_loop().time() + limit
        while self.dispatcher.num_in_flight and asyncio.get_running_loop().time() < end:
            await asyncio.sleep(0.02)
        return self.dispatcher.num_in_flight == 0

    async def stop(self, grace: float = EXIT_GRACE) -> None:
        """Answer what is pending, end every worker.  Harmless if nothing runs."""
        self._is_stopping = self.control.is_ending = True
        for scaling in self._scalings:
            scaling.cancel()
        self.dispatcher.fail_all(
            ServableUnavailable("servable is not available: the server is stopping")
        )
        for link in list(self._links):
            if not link.is_ready:
                link.process.kill()
        await asyncio.gather(*(one.stop(grace) for one in self._supervisors))

    def _num_extra(self, deployment: Deployment) -> int:
        is_scaled = deployment.scaling is not None
        return 0 if is_scaled else starting.num_extra_workers(self.registry, deployment)

    async def _start_all(
        self, supervisors: list[WorkerSupervisor], *, is_strict: bool
    ) -> list[tuple[Deployment, StartError]]:
        self._supervisors += supervisors
        return await starting.start_all(self._deployed, supervisors, is_strict=is_strict)

    def _supervisor(
        self, deployment: Deployment, *, device_id: int | None = None, extra: int | None = None
    ) -> WorkerSupervisor:
        """Of a worker that owns a device, or of an extra one."""
        name, version = deployment.servable_name, deployment.version
        if deployment.gang is not None:
            title, log_name = f"distributed servable:{name}", f"log_{name}_distributed"
        elif device_id is not None:
            title = f"servable name:{name}, device id:{device_id}"
            log_name = f"log_{name}_device{device_id}_version{version}"
        else:
            title = f"servable:{name}, version:{version}, extra:{extra}"
            log_name = f"log_{name}_extra{extra}_version{version}"

        async def start() -> Link:
            needs = loading.needs_of(deployment, device_id, supervisor.patience)
            launched = await self._launcher.launch(title, log_name, needs)
            owns_models = device_id is not None or not deployment.device_ids
            link = Link(launched, title, self, owns_models=owns_models)
            self._links[link] = supervisor
            self._watch(_close_after(link))
            if self._is_stopping:
                link.process.kill()
            await self._load(link, deployment, device_id)
            return link

        supervisor = WorkerSupervisor(
            title,
            start,
            lambda _: self._on_change(deployment),
            deployment.restart_policy,
            is_awaited=deployment.gang is None,
        )
        self._supervisors_of(deployment).append(supervisor)
        return supervisor

    def _replica(self, deployment: Deployment, number: int) -> WorkerSupervisor:
        """Of a worker with all models, of those of a deployment that is scaled."""
        if deployment.device_ids:
            return self._supervisor(deployment, device_id=deployment.device_ids[number])
        return self._supervisor(deployment, extra=number)

    def _autoscaler(self, deployment: Deployment) -> Autoscaler:
        def make(number: int) -> WorkerSupervisor:
            self._supervisors = [one for one in self._supervisors if one.state != "gone"]
            self._supervisors.append(supervisor := self._replica(deployment, number))
            return supervisor

        def retire(supervisor: WorkerSupervisor) -> None:
            link = supervisor.link
            if link is None or link.closed.done():
                supervisor.leave()
            else:
                self.on_leaving(link)

        return Autoscaler(
            deployment,
            self._supervisors_of(deployment),
            num_requests=lambda: self.dispatcher.shares.num_used(deployment.name),
            make=make,
            retire=retire,
            on_failed=lambda seconds: self._on_failed_to_add(deployment, seconds),
        )

    def _watch(self, watch: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(watch)
        self._watches.add(task)
        task.add_done_callback(self._watches.discard)

    async def _load(self, link: Link, deployment: Deployment, device_id: int | None) -> None:
        """Have the worker load the servable, and register what it can do."""
        name = deployment.servable_name
        key = (name, deployment.version)
        models = None if link.owns_models else self._models.get(key, {})
        supervisor = self._links[link]
        try:
            ready = await loading.load(link, loading.setup_of(deployment, device_id, models))
        except ServingError as error:
            if self._is_stopping:
                raise StartError("the server was stopped by a signal or stop()") from error
            if not supervisor.is_wanted:
                raise StartError("the worker was ended by SIGINT or SIGTERM") from error
            raise
        if link.owns_models:
            self._models[key] = ready.models
        self._services[link] = self.registry.add_worker(
            deployment, ready.version, ready.methods, link, card=ready.card
        )
        self._watch(liveness.watch(link, deployment, self._on_pulse))
        if ready.card is not None:
            log.info("%s", ready.card.summary)
        log.info("Register success: worker address: pid %d, servable: %s", link.process.pid, name)

    # --- what links and supervisors report ----------------------------------------------------

    def on_call(self, link: Link, call: Call) -> None:
        self.dispatcher.on_call(link, call)

    def on_leaving(self, link: Link) -> None:
        """The worker got a signal to end: no new work; it ends when it has answered the rest."""
        self._unregister(link)
        if not link.process.is_moving:
            self._links[link].leave()
        if link.is_ready:
            link.ask_to_exit()
        else:
            link.process.kill()

    def on_lost(self, link: Link) -> None:
        self._unregister(link)
        self._links.pop(link, None)
        why = f" ({link.why_ended})" if link.why_ended else ""
        reason = f"the worker process that had the request died{why}"
        self.dispatcher.on_lost(link, reason)

    def _unregister(self, link: Link) -> None:
        service = self._services.pop(link, None)
        if service is not None:
            self.registry.remove_worker(service, link)
            service.reason = ""  # another is expected, unless its supervisor says otherwise

    def _on_pulse(self, link: Link, pulse: Pulse) -> None:
        """The worker gives no heartbeat, or does again."""
        service = self._services.get(link)
        if service is None:
            return
        link.is_silent = pulse.is_silent
        if pulse.is_silent:
            log.warning("{%s}: no heartbeat for %.0f s", link.name, pulse.silent_for)
            self.dispatcher.withhold(link, service.methods.values())
        else:
            for method in service.methods.values():
                method.restore(link)

    def _on_change(self, deployment: Deployment) -> None:
        """A worker of `deployment` runs now, or no more, or later than before."""
        own = self._supervisors_of(deployment)
        if own and all(one.state == "ready" or one.ready_in() is None for one in own):
            last = next((one.last_exit for one in own if one.last_exit), "they were told to")
            later = [one.next_start_in() for one in own if one.state == "restarting"]
            self._refuse(deployment, last, min(later, default=None))
        is_empty = all(own and all(one.state == "gone" for one in own) for _, own in self._deployed)
        if not self._is_stopping and is_empty:
            log.error("Serving server begin to exit: all worker processes have exited")
            self._on_all_gone()

    def _on_failed_to_add(self, deployment: Deployment, retry_after: float) -> None:
        """Refuse requests, if there is no worker for them, until another start may be tried."""
        self._refuse(deployment, "one could not be started", retry_after)

        def accept() -> None:
            for service in self.registry:
                if service.deployment == deployment:
                    service.reason = ""

        asyncio.get_running_loop().call_later(retry_after, accept)

    def _refuse(self, deployment: Deployment, last_exit: str, retry_after: float | None) -> None:
        for service in self.registry:
            if service.deployment == deployment:
                self._give_up(service, last_exit, retry_after)

    def _give_up(self, service: Service, last_exit: str, retry_after: float | None) -> None:
        """Let nothing wait for more workers of `service`: none is expected within `retry_after`
        seconds, or ever."""
        service.reason = f"its workers have ended ({last_exit}), see the server's log"
        service.retry_after = retry_after
        for method in service.methods.values():
            if not method.is_served:
                text = f"Request {method.label} , servable is not available: {service.reason}"
                self.dispatcher.fail_waiting(method, ServableUnavailable(text, retry_after))

    def _supervisors_of(self, deployment: Deployment) -> list[WorkerSupervisor]:
        return next(own for one, own in self._deployed if one is deployment)


async def _close_after(link: Link) -> None:
    """The end of the process is the end of the link, also if a child of it has the stream open."""
    await link.process.wait()
    await asyncio.wait([link.closed], timeout=_HOLD)
    link.close()
