"""Owns the parts of the master: starts workers, registers them, and ends everything in order.

Front ends see it as `Inference` (by its dispatcher) and `Control`.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from mindspore_serving import log
from mindspore_serving.cluster.base import Launcher
from mindspore_serving.core.deployment import Deployment
from mindspore_serving.core.model_card import ModelCard
from mindspore_serving.core.service import Reply
from mindspore_serving.dispatch import live
from mindspore_serving.dispatch.calls import Part
from mindspore_serving.dispatch.dispatcher import Dispatcher
from mindspore_serving.dispatch.link import MOST_PARKED, Link
from mindspore_serving.dispatch.registry import Registry, Service
from mindspore_serving.dispatch.supervisor import Keeper, exit_text
from mindspore_serving.errors import ServableUnavailable, ServingError, StartError
from mindspore_serving.ipc.messages import Call, ModelReport, Ready, Setup

EXIT_GRACE = 10.0  # seconds a worker has to leave before it is killed
_HOLD = 0.5  # seconds until the end of a dead worker's stream, unless a child of it holds on


class Master:
    """All workers of this server and the requests between them and the front ends."""

    def __init__(self, launcher: Launcher, on_all_gone: Callable[[], None]) -> None:
        self.registry = Registry()
        self.dispatcher = Dispatcher(self.registry)
        self._launcher = launcher
        self._on_all_gone = on_all_gone
        self._keepers: list[Keeper] = []
        self._services: dict[Link, Service] = {}
        self._links: dict[Link, Keeper] = {}
        self._models: dict[tuple[str, int], dict[str, ModelReport]] = {}
        self._is_stopping = False
        self._watches: set[asyncio.Task[None]] = set()

    # --- starting and stopping --------------------------------------------------------------

    async def deploy(self, deployments: Sequence[Deployment]) -> None:
        """Start all workers: those that own a device first, since the others ask them.

        Raises StartError with the first worker's reason; what was started is then to be stopped.
        """
        devices = [(d, i) for d in deployments for i in d.device_ids]
        await self._start_all([self._keeper(d, device_id=i) for d, i in devices])
        extras = []
        for deployment in deployments:
            extras += [
                self._keeper(deployment, extra=index)
                for index in range(self._num_extra_workers(deployment))
            ]
        await self._start_all(extras)

    async def drain(self, limit: float) -> bool:
        """Wait until nothing is in flight, at most `limit` seconds; whether that was reached."""
        end = asyncio.get_running_loop().time() + limit
        while self.dispatcher.num_in_flight and asyncio.get_running_loop().time() < end:
            await asyncio.sleep(0.02)
        return self.dispatcher.num_in_flight == 0

    async def stop(self, grace: float = EXIT_GRACE) -> None:
        """Answer what is pending, end every worker.  Harmless if nothing runs."""
        self._is_stopping = True
        self.dispatcher.fail_all(
            ServableUnavailable("servable is not available: the server is stopping")
        )
        for link in list(self._links):
            if not link.is_ready:
                link.process.kill()
        await asyncio.gather(*(keeper.stop(grace) for keeper in self._keepers))

    def _num_extra_workers(self, deployment: Deployment) -> int:
        number = deployment.num_extra_workers
        service = self._any_service(deployment)
        if not number or service is None:
            return number
        reports = [line.report for line in service.lines.values()]
        if any(not r.is_only_models for r in reports if not r.name.startswith("@")):
            return number
        log.warning(
            "servable %s: num_parallel_workers is ignored, all methods consist only of models",
            deployment.servable_name,
        )
        return 0

    def _any_service(self, deployment: Deployment) -> Service | None:
        for service in self.registry:
            if service.deployment == deployment and service.workers:
                return service
        return None

    async def _start_all(self, keepers: list[Keeper]) -> None:
        self._keepers += keepers
        results = await asyncio.gather(*(k.start() for k in keepers), return_exceptions=True)
        for result in results:
            if isinstance(result, StartError):
                raise StartError(f"Fail to start workers: {result}")
            if isinstance(result, BaseException):
                raise result

    def _keeper(
        self, deployment: Deployment, *, device_id: int | None = None, extra: int | None = None
    ) -> Keeper:
        name, version = deployment.servable_name, deployment.version
        if device_id is not None:
            title = f"servable name:{name}, device id:{device_id}"
            log_name = f"log_{name}_device{device_id}_version{version}"
        else:
            title = f"servable:{name}, version:{version}, extra:{extra}"
            log_name = f"log_{name}_extra{extra}_version{version}"

        async def start() -> Link:
            launched = await self._launcher.launch(title, log_name)
            link = Link(launched, title, self)
            self._links[link] = keeper
            watch = asyncio.create_task(_close_after(link))
            self._watches.add(watch)
            watch.add_done_callback(self._watches.discard)
            if self._is_stopping:
                link.process.kill()
            return await self._load(link, deployment, device_id)

        keeper = Keeper(title, start, lambda k: self._on_keeper_gone(k, deployment))
        return keeper

    async def _load(self, link: Link, deployment: Deployment, device_id: int | None) -> Link:
        """Have the worker load the servable, and register what it can do."""
        name = deployment.servable_name
        owns_models = device_id is not None or not deployment.device_ids
        if not owns_models:
            link.most_messages = MOST_PARKED
        link.setup(
            Setup(
                deployment.servable_directory,
                name,
                deployment.version,
                deployment.device_type,
                device_id,
                owns_models,
                deployment.dec_key,
                deployment.dec_mode,
                deployment.enable_lite,
                {} if owns_models else self._models.get((name, deployment.version), {}),
                dict(deployment.llm_options),
            )
        )
        keeper = self._links[link]
        try:
            ready: Ready = await link.loaded
        except ServingError as error:
            link.close()
            link.process.kill()
            status = await link.process.wait()
            words = link.process.last_words()
            if self._is_stopping:
                raise StartError("the server was stopped by a signal or stop()") from error
            if not keeper.is_wanted:
                raise StartError("the worker was told to end by SIGINT or SIGTERM") from error
            if not link.has_spoken:
                last = f": {words[-800:]}" if words else ""
                raise StartError(f"{error}, {exit_text(status)}{last}") from error
            raise
        if owns_models:
            self._models[(name, deployment.version)] = ready.models
        self._services[link] = self.registry.add_worker(
            deployment, ready.version, ready.methods, link, card=ready.card
        )
        if ready.card is not None:
            log.info("%s", ready.card.summary)
        self.dispatcher.on_new_worker()
        log.info("Register success: worker address: pid %d, servable: %s", link.process.pid, name)
        return link

    # --- what links and keepers say ---------------------------------------------------------

    def on_answers(self, link: Link, answers: list[tuple[Part, Reply]]) -> None:
        self.dispatcher.on_answers(link, answers)

    def on_call(self, link: Link, call: Call) -> None:
        self.dispatcher.on_call(link, call)

    def on_leaving(self, link: Link) -> None:
        """A signal told the worker to go: no new work; it ends when it has answered the rest."""
        self._links[link].leave()
        self._unregister(link)
        if link.is_ready:
            link.ask_to_exit()
        else:
            link.process.kill()

    def on_lost(self, link: Link) -> None:
        parts = list(link.parts.values())
        link.parts.clear()
        self._unregister(link)
        self._links.pop(link, None)
        self.dispatcher.give_elsewhere(parts, "the worker process that had the request died")

    def _unregister(self, link: Link) -> None:
        service = self._services.pop(link, None)
        if service is not None:
            for line in self.registry.remove_worker(service, link):
                self.dispatcher.fail_line(line)

    def _on_keeper_gone(self, keeper: Keeper, deployment: Deployment) -> None:
        for service in self.registry:
            if service.deployment == deployment and not service.workers:
                service.reason = (
                    f"its workers have ended ({keeper.last_exit}), see the server's log"
                )
        if not self._is_stopping and all(k.state == "gone" for k in self._keepers):
            log.error("Serving server begin to exit: all worker processes have exited")
            self._on_all_gone()

    # --- Control ------------------------------------------------------------------------------

    def language_models(self) -> list[tuple[str, int, ModelCard]]:
        newest = {
            service.name: (service.name, service.version, service.card)
            for service in sorted(self.registry, key=lambda service: service.version)
            if service.card is not None and service.workers
        }
        return list(newest.values())

    @property
    def has_language_models(self) -> bool:
        return any(service.card is not None for service in self.registry)

    def streams(self, servable: str, version: int, method: str) -> bool | None:
        try:
            return self.registry.find(servable, version, method).report.streams
        except ServingError:
            return None

    @property
    def is_ready(self) -> bool:
        wanted = [keeper for keeper in self._keepers if keeper.is_wanted]
        return bool(wanted) and all(keeper.state == "ready" for keeper in wanted)

    def observe(self) -> list[dict[str, Any]]:
        return [
            {**what, **live.of(service)}
            for what, service in zip(self.describe(), self.registry, strict=True)
        ]

    def describe(self) -> list[dict[str, Any]]:
        return [
            {
                "name": service.name,
                "version": service.version,
                "methods": {
                    name: {"inputs": line.report.inputs, "outputs": line.report.outputs}
                    for name, line in service.lines.items()
                    if not name.startswith("@")
                },
                "num_workers": len(service.workers),
                **({"summary": service.card.summary} if service.card else {}),
            }
            for service in self.registry
        ]


async def _close_after(link: Link) -> None:
    """The end of the process is the end of the link, also if a child of it has the stream open."""
    await link.process.wait()
    await asyncio.wait([link.closed], timeout=_HOLD)
    link.close()
