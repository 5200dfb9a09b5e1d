"""Master: starts workers, registers them, and ends everything in order.

Front ends see its dispatcher, which is an `Inference`, and its `control`.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from mindspore_serving import log
from mindspore_serving.cluster.base import Launcher
from mindspore_serving.core.default_sampling import describe_sampling
from mindspore_serving.core.deployment import Deployment
from mindspore_serving.core.roles import role_of
from mindspore_serving.errors import ServableUnavailable, ServingError, StartError
from mindspore_serving.ipc.messages import WorkerCall
from mindspore_serving.master import active_deployment, liveness, loading, metrics, vllm_metrics
from mindspore_serving.master.active_deployment import ActiveDeployment
from mindspore_serving.master.adapters import ServedAdapters
from mindspore_serving.master.answer_stores import AnswerStores
from mindspore_serving.master.budget import LoadBudget
from mindspore_serving.master.dispatcher import Dispatcher
from mindspore_serving.master.link import Link
from mindspore_serving.master.liveness import HeartbeatMonitor
from mindspore_serving.master.memory_shares import share_memory
from mindspore_serving.master.overview import Overview
from mindspore_serving.master.registry import ServableService
from mindspore_serving.master.supervisor import WorkerSupervisor
from mindspore_serving.metrics.exposition import Page
from mindspore_serving.tracing.options import TraceOptions

EXIT_GRACE = 10.0  # seconds that a worker has to exit before it is killed
_CLOSE_TIMEOUT = 0.5  # seconds; a child of a dead worker may keep its stream open
_POLL_INTERVAL = 0.02  # seconds


class Master:
    """All workers of this server, and the requests between them and the front ends."""

    def __init__(self, launcher: Launcher, on_all_ended: Callable[[], None]) -> None:
        self.dispatcher = Dispatcher()
        self.registry = self.dispatcher.registry
        self.adapters = ServedAdapters(self.registry)
        self._launcher = launcher
        self._on_all_ended = on_all_ended
        self._deployed: list[ActiveDeployment] = []  # visible to clients
        self._hidden: list[ActiveDeployment] = []  # that start to replace those, or leave
        self._services: dict[Link, ServableService] = {}
        self._links: dict[Link, WorkerSupervisor] = {}
        self.budget = LoadBudget()
        self.answers = AnswerStores()
        self.control = Overview(self.registry, self._deployed)
        self.registry.find_reason = self.control.find_reason
        self.traces: TraceOptions | None = None  # of the user's code in workers
        self._is_stopping = False
        self._watches: set[asyncio.Task[None]] = set()

    def add_metrics(self, page: Page, *, has_vllm: bool = False) -> None:
        """Add the metrics of the master to `page`; with `has_vllm`, also under vLLM's names."""
        page.add("serving_requests_in_flight", self.dispatcher.num_in_flight)
        metrics.add_deployed(page, zip(self._deployed, self.control.readiness(), strict=True))
        metrics.add_services(page, self.registry)
        metrics.add_shadows(page, self.registry.routes.values())
        if has_vllm:
            vllm_metrics.add_models(page, self.registry)

    # --- starting and stopping --------------------------------------------------------------

    @property
    def deployments(self) -> list[Deployment]:
        """Deployments of this server, whether they run or not."""
        return [active.deployment for active in self._deployed]

    async def deploy(
        self, deployments: Sequence[Deployment], *, is_strict: bool = True
    ) -> list[tuple[Deployment, StartError]]:
        """Start all workers.  Raises StartError; the caller must then call `stop`.

        Unless `is_strict`, deployments that cannot start are dropped, as long as there are others,
        and returned with the reasons.
        """
        await self.answers.open(deployments)
        new = [self._new(deployment) for deployment in deployments]
        for deployment in deployments:
            self.registry.set_route(deployment)
        self._deployed += new
        failed = await self._start(new, is_strict=is_strict)
        self.control.is_starting = False
        await self._end(list(failed), 0.0)
        return [(active.deployment, error) for active, error in failed.items()]

    async def roll(
        self, new: Sequence[Deployment], old: Sequence[Deployment], seconds: float
    ) -> None:
        """Start `new`, switch requests over when all of it is ready, and end `old`.

        `old` has `seconds` to answer its requests; the sequences of what is replaced continue there
        for `sequence_handover_seconds`, after this has returned.  A deployment of `new` that
        replaces one of the same version must have a higher generation.  Raises StartError; then
        `old` continues, and nothing of `new` is left.
        """
        await self.answers.open(new)
        starting = [self._new(deployment) for deployment in new]
        leaving = [active for active in self._deployed if active.deployment in old]
        hidden = [active for active in starting if any(map(active.is_same_version, leaving))]
        self._deployed += [active for active in starting if active not in hidden]
        self._hidden += hidden
        try:
            await self._start(starting)
        except BaseException:
            await asyncio.shield(self._end(starting, 0.0))
            raise
        self.control.is_starting = False
        for active in starting:
            self.registry.promote(active.deployment)
            self.registry.set_route(active.deployment)
        self._hidden = [active for active in self._hidden if active not in hidden]
        self._deployed += hidden
        replaced = {deployment.name for deployment in new}
        held = [active for active in leaving if active.deployment.name in replaced]
        held = [active for active in held if active.num_sequences()]
        if held:
            self._withdraw(held, has_handover=True)
            self._watch(self._end_after_sequences(held, seconds))
        await self._end([active for active in leaving if active not in held], seconds)
        names = {deployment.name for deployment in self.deployments}
        self.adapters.remove({deployment.name for deployment in old} - names)

    async def _start(
        self, deployed: Sequence[ActiveDeployment], *, is_strict: bool = True
    ) -> dict[ActiveDeployment, StartError]:
        """Start like `active_deployment.start`.

        With a limit of loaded servables, start one after another as the limit permits.
        """
        if not self.budget.limit:
            return await active_deployment.start(deployed, is_strict=is_strict)
        failed: dict[ActiveDeployment, StartError] = {}
        for active in deployed:
            while not self._may_load(active):
                await asyncio.sleep(_POLL_INTERVAL)
            try:
                await active_deployment.start([active])
            except StartError as error:
                failed[active] = error
                if is_strict or len(failed) == len(deployed):
                    raise
        return failed

    def _may_load(self, deployed: ActiveDeployment) -> bool:
        loaded = (active for active in self._deployed if not active.is_same_version(deployed))
        return self.budget.admit(loaded)

    async def drain(self, limit: float) -> bool:
        """Wait at most `limit` seconds until no request is in flight; return whether that is so.

        The server reports not ready from now on.
        """
        self.control.is_ending = True
        await self._wait_until(lambda: not self.dispatcher.num_in_flight, limit)
        return self.dispatcher.num_in_flight == 0

    async def stop(self, grace: float = EXIT_GRACE) -> None:
        """Fail pending requests and end all workers.  Harmless if nothing runs."""
        self._is_stopping = self.control.is_ending = True
        self.dispatcher.fail_all(
            ServableUnavailable("servable is not available: the server is stopping")
        )
        loading_links = [link for link in self._links if not link.is_ready]
        for link in loading_links:
            link.end_unused()
        await asyncio.gather(*(active.stop(grace) for active in self._deployed + self._hidden))
        if loading_links:
            await asyncio.wait([link.closed for link in loading_links], timeout=grace)
        await self.answers.close()

    def _new(self, deployment: Deployment) -> ActiveDeployment:
        return ActiveDeployment(
            deployment,
            self._launch,
            self.dispatcher,
            retire=self.on_leaving,
            on_change=self._check_any_left,
            may_load=self._may_load,
        )

    def _withdraw(self, leaving: Sequence[ActiveDeployment], *, has_handover: bool = False) -> None:
        self._deployed[:] = [active for active in self._deployed if active not in leaving]
        self._hidden += [active for active in leaving if active not in self._hidden]
        for active in leaving:
            self.registry.withdraw(active.deployment, has_handover=has_handover)

    async def _end_after_sequences(self, held: list[ActiveDeployment], seconds: float) -> None:
        """End `held`, which were replaced, when their sequences have ended or the time is over."""
        limit = max(active.deployment.sequence_handover_seconds for active in held)
        await self._wait_until(
            lambda: self._is_stopping or not any(active.num_sequences() for active in held), limit
        )
        await self._end(held, seconds)

    async def _end(self, leaving: Sequence[ActiveDeployment], seconds: float) -> None:
        """Give `leaving` at most `seconds` to answer its requests, and end its workers."""
        self._withdraw(leaving)

        def methods() -> set[object]:
            services = [service for active in leaving for service in active.services]
            return {method for service in services for method in service.methods.values()}

        await self._wait_until(lambda: not self.dispatcher.num_in(methods()), seconds)
        reason = "servable is not available: it was unloaded"
        self.dispatcher.fail_all(ServableUnavailable(reason), methods())
        await asyncio.gather(*(active.stop(EXIT_GRACE) for active in leaving))
        for active in leaving:
            self.registry.remove(active.deployment)
        self._hidden = [active for active in self._hidden if active not in leaving]

    async def _wait_until(self, condition: Callable[[], bool], limit: float) -> None:
        end = asyncio.get_running_loop().time() + limit
        while not condition() and asyncio.get_running_loop().time() < end:
            await asyncio.sleep(_POLL_INTERVAL)

    async def _launch(
        self,
        deployed: ActiveDeployment,
        supervisor: WorkerSupervisor,
        log_name: str,
        device_id: int | None,
    ) -> Link:
        deployment, title = deployed.deployment, supervisor.title
        is_first = supervisor.first_link is None
        needs = loading.needs_of(deployment, device_id, supervisor.patience, is_first=is_first)
        launched = await self._launcher.launch(title, log_name, needs)
        owns_models = device_id is not None or not deployment.device_ids
        link = Link(
            launched,
            title,
            self,
            owns_models=owns_models,
            has_agents=deployment.gang is not None,
        )
        link.role = role_of(deployment.roles, supervisor.number)
        self._links[link] = supervisor
        supervisor.first_link = supervisor.first_link or link
        self._watch(_close_after(link))
        if launched.placement is not None:
            self._watch(self._leave_with(link))
        if self._is_stopping:
            link.process.kill()
        await self._load(link, deployed, device_id)
        return link

    async def _leave_with(self, link: Link) -> None:
        """Have a worker finish and start again elsewhere once a machine of its ranks leaves."""
        waits = [asyncio.ensure_future(wait) for wait in (link.is_left.wait(), link.process.wait())]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
        if link.is_left.is_set() and link in self._links:
            self.on_leaving(link)

    def _watch(self, watch: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(watch)
        self._watches.add(task)
        task.add_done_callback(self._watches.discard)

    async def _load(self, link: Link, deployed: ActiveDeployment, device_id: int | None) -> None:
        """Have the worker load the servable, and register its methods."""
        deployment = deployed.deployment
        name = deployment.servable_name
        models = None if link.owns_models else deployed.models
        supervisor = self._links[link]
        number = supervisor.number
        roles = loading.link_of(link, deployed.credentials) if deployment.roles else None
        setup = loading.setup_of(
            deployment, device_id, models, self.traces, number=number, placement=link.placement,
            link=roles,
        )  # fmt: skip
        files = await self.answers.look(deployment)
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
        self._watch(liveness.watch(link, deployment, self._on_heartbeat_change))
        async with self.adapters.joining(deployment.name, link, ready.card) as card:
            self._services[link] = self.registry.add_worker(
                deployment, ready.version, ready.methods, link, card=card, role=link.role
            )
            self.answers.join(self._services[link], files)
        share_memory(self._services)
        if ready.card is not None:
            log.info("%s", ready.card.summary)
            for line in (ready.card.memory, describe_sampling(ready.card)):
                if line:
                    log.info("%s: %s", deployment.name, line)
            loading.check_slots(deployment.name, link.location, ready.card)
        log.info("Register success: worker address: pid %d, servable: %s", link.process.pid, name)

    # --- events of links and supervisors ------------------------------------------------------

    def on_call(self, link: Link, call: WorkerCall) -> None:
        self.dispatcher.on_call(link, call, self._services.get(link))

    def on_dropped_call(self, link: Link, call_id: int) -> None:
        self.dispatcher.on_dropped_call(link, call_id)

    def on_leaving(self, link: Link) -> None:
        """Handle a worker that is to end: it gets no new parts, and exits when all are answered."""
        self._unregister(link)
        if not link.is_left.is_set():
            self._links[link].leave()
        if link.is_ready:
            link.ask_to_exit()
        else:
            link.end_unused()

    def on_lost(self, link: Link) -> None:
        self._unregister(link)
        self._links.pop(link, None)
        detail = f" ({link.end_reason})" if link.end_reason else ""
        reason = f"the worker process that had the request died{detail}"
        self.dispatcher.on_lost(link, reason)

    def _unregister(self, link: Link) -> None:
        service = self._services.pop(link, None)
        if service is not None:
            self.registry.remove_worker(service, link)
            share_memory(self._services)
            service.totals.fold()
            service.reason = ""  # another worker is expected, unless the supervisor gives a reason

    def _on_heartbeat_change(self, link: Link, monitor: HeartbeatMonitor) -> None:
        """Withhold work from a worker whose heartbeats have stopped, until they resume."""
        service = self._services.get(link)
        if service is None:
            return
        link.is_silent = monitor.is_silent
        if monitor.is_silent:
            log.warning("%s: no heartbeat for %.0f s", link.name, monitor.silent_for)
            self.dispatcher.withhold(link, service.methods.values())
        else:
            for method in service.methods.values():
                method.restore(link)

    def _check_any_left(self) -> None:
        """End the server if all workers have ended for good."""
        is_empty = bool(self._deployed) and all(active.is_gone for active in self._deployed)
        if not self._is_stopping and is_empty:
            log.error("Serving server begin to exit: all worker processes have exited")
            self._on_all_ended()


async def _close_after(link: Link) -> None:
    """Close the link when the process ends, even if a child of it keeps the stream open."""
    await link.process.wait()
    await asyncio.wait([link.closed], timeout=_CLOSE_TIMEOUT)
    link.close()
