"""Owns everything in the master: starts workers, registers them, and ends all of it in order.

Front ends see its dispatcher, which is an `Inference`, and its `control`.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from mindspore_serving import log
from mindspore_serving.cluster.base import Launcher
from mindspore_serving.core.deployment import Deployment
from mindspore_serving.errors import ServableUnavailable, ServingError, StartError
from mindspore_serving.ipc.messages import WorkerCall
from mindspore_serving.master import deployed as workers
from mindspore_serving.master import gathering, liveness, loading, vllm_metrics
from mindspore_serving.master.adapters import ServedAdapters
from mindspore_serving.master.budget import LoadBudget
from mindspore_serving.master.deployed import Deployed
from mindspore_serving.master.dispatcher import Dispatcher
from mindspore_serving.master.link import Link
from mindspore_serving.master.liveness import Pulse
from mindspore_serving.master.overview import Overview
from mindspore_serving.master.registry import ServableService
from mindspore_serving.master.supervisor import WorkerSupervisor
from mindspore_serving.metrics.exposition import Page
from mindspore_serving.tracing.options import TraceOptions

EXIT_GRACE = 10.0  # seconds a worker has to leave before it is killed
_HOLD = 0.5  # seconds until the end of a dead worker's stream, unless a child of it holds on
_LOOK = 0.02  # seconds between two looks whether requests have been answered


class Master:
    """All workers of this server and the requests between them and the front ends."""

    def __init__(self, launcher: Launcher, on_all_gone: Callable[[], None]) -> None:
        self.dispatcher = Dispatcher()
        self.registry = self.dispatcher.registry
        self.adapters = ServedAdapters(self.registry)
        self._launcher = launcher
        self._on_all_gone = on_all_gone
        self._deployed: list[Deployed] = []  # what clients may know of
        self._beside: list[Deployed] = []  # what starts in the place of those, or leaves
        self._services: dict[Link, ServableService] = {}
        self._links: dict[Link, WorkerSupervisor] = {}
        self.budget = LoadBudget()
        self.control = Overview(self.registry, self._deployed)
        self.registry.find_reason = self.control.find_reason
        self.traces: TraceOptions | None = None  # of the servables' own code
        self._is_stopping = False
        self._watches: set[asyncio.Task[None]] = set()

    def add_metrics(self, page: Page, *, has_vllm: bool = False) -> None:
        """Put what can be counted here on `page`; with `has_vllm`, also under vLLM's names."""
        page.add("serving_requests_in_flight", self.dispatcher.num_in_flight)
        gathering.add_deployed(page, zip(self._deployed, self.control.readiness(), strict=True))
        gathering.add_services(page, self.registry)
        if has_vllm:
            vllm_metrics.add_models(page, self.registry)

    # --- starting and stopping --------------------------------------------------------------

    @property
    def deployments(self) -> list[Deployment]:
        """What is deployed, whether it runs or not."""
        return [one.deployment for one in self._deployed]

    async def deploy(
        self, deployments: Sequence[Deployment], *, is_strict: bool = True
    ) -> list[tuple[Deployment, StartError]]:
        """Start all workers.  Raises StartError; what was started is then to be stopped.

        Unless `is_strict`, deployments that cannot start are left out, as long as there are others,
        and returned with the reasons.
        """
        new = [self._new(deployment) for deployment in deployments]
        self._deployed += new
        failed = await self._start(new, is_strict=is_strict)
        self.control.is_starting = False
        await self._end(list(failed), 0.0)
        return [(one.deployment, error) for one, error in failed.items()]

    async def roll(
        self, new: Sequence[Deployment], old: Sequence[Deployment], seconds: float
    ) -> None:
        """Start `new`; when all of it is ready, requests go there, and `old` ends when it has
        answered what it has, or after so many seconds.

        A deployment of `new` that takes the place of one of the same version has a higher
        generation.  Raises StartError; then `old` goes on, and nothing of `new` is left.
        """
        coming = [self._new(deployment) for deployment in new]
        leaving = [one for one in self._deployed if one.deployment in old]
        hidden = [one for one in coming if any(map(one.is_same_version, leaving))]
        self._deployed += [one for one in coming if one not in hidden]
        self._beside += hidden
        try:
            await self._start(coming)
        except BaseException:
            await asyncio.shield(self._end(coming, 0.0))
            raise
        self.control.is_starting = False
        for one in coming:
            self.registry.promote(one.deployment)
        self._beside = [one for one in self._beside if one not in hidden]
        self._deployed += hidden
        await self._end(leaving, seconds)
        self.adapters.forget({one.name for one in old} - {one.name for one in self.deployments})

    async def _start(
        self, deployed: Sequence[Deployed], *, is_strict: bool = True
    ) -> dict[Deployed, StartError]:
        """As `deployed.start`; one after another if not all may be loaded together."""
        if not self.budget.most:
            return await workers.start(deployed, is_strict=is_strict)
        failed: dict[Deployed, StartError] = {}
        for one in deployed:
            while not self._may_load(one):
                await asyncio.sleep(_LOOK)
            try:
                await workers.start([one])
            except StartError as error:
                failed[one] = error
                if is_strict or len(failed) == len(deployed):
                    raise
        return failed

    def _may_load(self, deployed: Deployed) -> bool:
        return self.budget.admit(o for o in self._deployed if not o.is_same_version(deployed))

    async def drain(self, limit: float) -> bool:
        """Wait until nothing is in flight, at most `limit` seconds; whether that was reached.  From
        now on nothing is ready.
        """
        self.control.is_ending = True
        await self._wait_until(lambda: not self.dispatcher.num_in_flight, limit)
        return self.dispatcher.num_in_flight == 0

    async def stop(self, grace: float = EXIT_GRACE) -> None:
        """Answer what is pending, end every worker.  Harmless if nothing runs."""
        self._is_stopping = self.control.is_ending = True
        self.dispatcher.fail_all(
            ServableUnavailable("servable is not available: the server is stopping")
        )
        for link in list(self._links):
            if not link.is_ready:
                link.process.kill()
        await asyncio.gather(*(one.stop(grace) for one in self._deployed + self._beside))

    def _new(self, deployment: Deployment) -> Deployed:
        return Deployed(
            deployment,
            self._launch,
            self.dispatcher,
            retire=self.on_leaving,
            on_change=self._check_any_left,
            may_load=self._may_load,
        )

    async def _end(self, leaving: Sequence[Deployed], seconds: float) -> None:
        """Let `leaving` answer what it has, for at most so many seconds, and end its workers."""
        self._deployed[:] = [one for one in self._deployed if one not in leaving]
        self._beside += [one for one in leaving if one not in self._beside]
        for one in leaving:
            self.registry.withdraw(one.deployment)

        def methods() -> set[object]:
            return {m for one in leaving for s in one.services for m in s.methods.values()}

        await self._wait_until(lambda: not self.dispatcher.num_in(methods()), seconds)
        reason = "servable is not available: it was unloaded"
        self.dispatcher.fail_all(ServableUnavailable(reason), methods())
        await asyncio.gather(*(one.stop(EXIT_GRACE) for one in leaving))
        for one in leaving:
            self.registry.forget(one.deployment)
        self._beside = [one for one in self._beside if one not in leaving]

    async def _wait_until(self, condition: Callable[[], bool], limit: float) -> None:
        end = asyncio.get_running_loop().time() + limit
        while not condition() and asyncio.get_running_loop().time() < end:
            await asyncio.sleep(_LOOK)

    async def _launch(
        self,
        deployed: Deployed,
        supervisor: WorkerSupervisor,
        log_name: str,
        device_id: int | None,
    ) -> Link:
        deployment, title = deployed.deployment, supervisor.title
        needs = loading.needs_of(deployment, device_id, supervisor.patience)
        launched = await self._launcher.launch(title, log_name, needs)
        owns_models = device_id is not None or not deployment.device_ids
        link = Link(launched, title, self, owns_models=owns_models)
        self._links[link] = supervisor
        supervisor.first_link = supervisor.first_link or link
        self._watch(_close_after(link))
        if self._is_stopping:
            link.process.kill()
        await self._load(link, deployed, device_id)
        return link

    def _watch(self, watch: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(watch)
        self._watches.add(task)
        task.add_done_callback(self._watches.discard)

    async def _load(self, link: Link, deployed: Deployed, device_id: int | None) -> None:
        """Have the worker load the servable, and register what it can do."""
        deployment = deployed.deployment
        name = deployment.servable_name
        models = None if link.owns_models else deployed.models
        supervisor = self._links[link]
        setup = loading.setup_of(deployment, device_id, models, self.traces)
        try:
            ready = await loading.load(link, setup)
        except ServingError as error:
            if self._is_stopping:
                raise StartError("the server was stopped by a signal or stop()") from error
            if not supervisor.should_run:
                raise StartError("the worker was ended by SIGINT or SIGTERM") from error
            raise
        if link.owns_models:
            deployed.models = ready.models
        self._watch(liveness.watch(link, deployment, self._on_pulse))
        async with self.adapters.joining(deployment.name, link, ready.card) as card:
            self._services[link] = self.registry.add_worker(
                deployment, ready.version, ready.methods, link, card=card
            )
        if ready.card is not None:
            log.info("%s", ready.card.summary)
            loading.check_slots(deployment.name, link.place, ready.card)
        log.info("Register success: worker address: pid %d, servable: %s", link.process.pid, name)

    # --- what links and supervisors report ----------------------------------------------------

    def on_call(self, link: Link, call: WorkerCall) -> None:
        self.dispatcher.on_call(link, call, self._services.get(link))

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
            service.totals.fold()
            service.reason = ""  # another is expected, unless its supervisor says otherwise

    def _on_pulse(self, link: Link, pulse: Pulse) -> None:
        """The worker gives no heartbeat, or does again."""
        service = self._services.get(link)
        if service is None:
            return
        link.is_silent = pulse.is_silent
        if pulse.is_silent:
            log.warning("%s: no heartbeat for %.0f s", link.name, pulse.silent_for)
            self.dispatcher.withhold(link, service.methods.values())
        else:
            for method in service.methods.values():
                method.restore(link)

    def _check_any_left(self) -> None:
        """End the server if all workers have ended for good."""
        is_empty = bool(self._deployed) and all(one.is_gone for one in self._deployed)
        if not self._is_stopping and is_empty:
            log.error("Serving server begin to exit: all worker processes have exited")
            self._on_all_gone()


async def _close_after(link: Link) -> None:
    """The end of the process is the end of the link, also if a child of it has the stream open."""
    await link.process.wait()
    await asyncio.wait([link.closed], timeout=_HOLD)
    link.close()
