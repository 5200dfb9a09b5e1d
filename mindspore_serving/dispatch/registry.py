"""Who serves what: servables, versions, methods, and the workers that can run each.  No I/O."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

from mindspore_serving.core.deployment import Deployment
from mindspore_serving.core.model_card import ModelCard
from mindspore_serving.core.signature import ServableSignature
from mindspore_serving.dispatch.batched import BatchedMethod
from mindspore_serving.dispatch.link import Link
from mindspore_serving.dispatch.streamed import StreamedMethod
from mindspore_serving.errors import NotFound, ServableUnavailable
from mindspore_serving.ipc.messages import MethodReport

Method: TypeAlias = BatchedMethod | StreamedMethod


@dataclass(slots=True, eq=False)
class Service:
    """One version of one servable."""

    name: str
    version: int
    deployment: Deployment
    methods: dict[str, Method] = field(default_factory=dict)
    workers: list[Link] = field(default_factory=list)
    reason: str = ""  # why nobody serves it, if no worker is expected soon
    retry_after: float | None = None  # seconds, with `reason`
    card: ModelCard | None = None  # of its language model

    @property
    def public(self) -> dict[str, MethodReport]:
        """The methods that clients may call."""
        reports = {name: method.report for name, method in self.methods.items()}
        return {name: report for name, report in reports.items() if not name.startswith("@")}


class Registry:
    """All services.  Version 0 is the newest that runs."""

    def __init__(self, new_method: Callable[[Deployment, int, MethodReport], Method]) -> None:
        self._new_method = new_method
        self._services: dict[str, dict[int, Service]] = {}

    def __iter__(self) -> Iterator[Service]:
        for versions in self._services.values():
            yield from versions.values()

    def add_worker(
        self,
        deployment: Deployment,
        version: int,
        reports: list[MethodReport],
        worker: Link,
        *,
        card: ModelCard | None = None,
    ) -> Service:
        """`worker` has loaded `version` and can run the methods in `reports`; `card` is that of
        its language model."""
        versions = self._services.setdefault(deployment.name, {})
        service = versions.get(version)
        if service is None:
            service = versions[version] = Service(deployment.name, version, deployment)
        service.card = card or service.card
        service.reason = ""
        service.workers.append(worker)
        for report in reports:
            if report.name not in service.methods:
                service.methods[report.name] = self._new_method(deployment, version, report)
            service.methods[report.name].add_worker(worker)
        return service

    def remove_worker(self, service: Service, worker: Link) -> None:
        """`worker` is gone, or is to get no more work."""
        if worker in service.workers:
            service.workers.remove(worker)
        for method in service.methods.values():
            method.remove_worker(worker)

    def find(self, servable: str, version: int, method: str) -> Method:
        """The method for a request, which may have to wait there for a worker.  Raises NotFound or
        ServableUnavailable."""
        service = self._find_service(servable, version)
        found = service.methods.get(method) if service else None
        if (
            found is not None
            and service is not None
            and (found.workers or found.is_served or not service.reason)
        ):
            return found
        number = f" version({version}) " if version else ""
        label = f"Request servable({servable}) method({method}) {number} "
        if service is None:
            raise NotFound(f"{label}, servable is not available")
        if found is None:
            raise NotFound(f"{label}, method is not available")
        text = f"{label}, servable is not available: {service.reason}"
        raise ServableUnavailable(text, service.retry_after)

    def signature(self, servable: str, version: int) -> ServableSignature | None:
        """What the methods of a servable version take and give; None if it never ran."""
        service = self._find_service(servable, version)
        if service is None:
            return None
        methods = {name: report.signature for name, report in service.public.items()}
        versions = tuple(sorted(self._services[servable]))
        return ServableSignature(servable, service.version, versions, methods)

    def _find_service(self, servable: str, version: int) -> Service | None:
        versions = self._services.get(servable)
        if not versions:
            return None
        if version or len(versions) == 1:
            return versions.get(version or next(iter(versions)))
        running = [number for number, service in versions.items() if service.workers]
        return versions[max(running or versions)]
