"""Who serves what: servables, versions, methods, and the workers that can run each.  No I/O."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from mindspore_serving.batching.batcher import Batcher
from mindspore_serving.core.deployment import BatchPolicy, Deployment
from mindspore_serving.core.model_card import ModelCard
from mindspore_serving.dispatch.calls import Part
from mindspore_serving.errors import NotFound, ServableUnavailable
from mindspore_serving.ipc.messages import MethodReport
from mindspore_serving.metrics import Series


class Holder(Protocol):
    """A worker as the registry and the queues see it."""

    def room(self, batch_size: int) -> int:
        """How many more parts it may be sent."""
        ...


@dataclass(slots=True, eq=False)
class Line:
    """The queue of one method of one servable version, and the workers that can run it."""

    service: "Service"
    report: MethodReport
    batcher: Batcher[Part]
    series: Series
    workers: list[Any] = field(default_factory=list)
    wake_at: float = 0.0  # when the loop will look at a delayed batch

    @property
    def can_retry(self) -> bool:
        return self.report.retry and self.service.deployment.retry

    @property
    def label(self) -> str:
        return f"servable({self.service.name}) method({self.report.name})"


@dataclass(slots=True, eq=False)
class Service:
    """One version of one servable."""

    name: str
    version: int
    deployment: Deployment
    lines: dict[str, Line] = field(default_factory=dict)
    workers: list[Any] = field(default_factory=list)
    reason: str = ""  # why nobody serves it any more, once given up
    card: ModelCard | None = None  # of its language model


class Registry:
    """All services.  Version 0 asks for the newest that runs."""

    def __init__(self) -> None:
        self._services: dict[str, dict[int, Service]] = {}

    def __iter__(self) -> Iterator[Service]:
        for versions in self._services.values():
            yield from versions.values()

    def add_worker(
        self,
        deployment: Deployment,
        version: int,
        reports: list[MethodReport],
        worker: Any,
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
        for report in reports:
            line = service.lines.get(report.name)
            if line is None:
                series = Series(service.name, version, report.name)
                batcher: Batcher[Part] = Batcher(_policy(deployment, report))
                line = service.lines[report.name] = Line(service, report, batcher, series)
            line.workers.append(worker)
        service.workers.append(worker)
        return service

    def remove_worker(self, service: Service, worker: Any) -> list[Line]:
        """`worker` is gone; returns the lines that nobody can run now."""
        if worker in service.workers:
            service.workers.remove(worker)
        orphaned = []
        for line in service.lines.values():
            if worker in line.workers:
                line.workers.remove(worker)
                if not line.workers:
                    orphaned.append(line)
        return orphaned

    def find(self, servable: str, version: int, method: str) -> Line:
        """The line for a request.  Raises NotFound or ServableUnavailable."""
        service = self._find_service(servable, version)
        line = service.lines.get(method) if service else None
        if line is not None and line.workers:
            return line
        number = f" version({version}) " if version else ""
        label = f"Request servable({servable}) method({method}) {number} "
        if service is None:
            raise NotFound(f"{label}, servable is not available")
        if line is None:
            raise NotFound(f"{label}, method is not available")
        reason = f": {service.reason}" if service.reason else ""
        raise ServableUnavailable(f"{label}, servable is not available{reason}")

    def _find_service(self, servable: str, version: int) -> Service | None:
        versions = self._services.get(servable)
        if not versions:
            return None
        if version or len(versions) == 1:
            return versions.get(version or next(iter(versions)))
        running = [number for number, service in versions.items() if service.workers]
        return versions[max(running or versions)]


def _policy(deployment: Deployment, report: MethodReport) -> BatchPolicy:
    """With a delay and no preferred size, a batch of the method's own size need not wait; what
    streams is not batched here."""
    if report.streams:
        return BatchPolicy()
    policy = deployment.batching
    if policy.max_wait and not policy.preferred_size:
        return replace(policy, preferred_size=report.batch_size)
    return policy
