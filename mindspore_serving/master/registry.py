"""Registry of servables, versions and methods, with the workers that can run each.  No I/O."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import TypeAlias

from mindspore_serving.core.deployment import Deployment
from mindspore_serving.core.model_card import ModelCard
from mindspore_serving.core.roles import runs_method
from mindspore_serving.core.sequences import SequenceStep
from mindspore_serving.core.signature import ServableSignature
from mindspore_serving.core.traffic import rule_of
from mindspore_serving.errors import NotFound, ServableUnavailable, ServingError, did_you_mean
from mindspore_serving.ipc.messages import MethodReport
from mindspore_serving.master.batched import BatchedMethod
from mindspore_serving.master.link import Link
from mindspore_serving.master.routes import TrafficRoute
from mindspore_serving.master.streamed import StreamedMethod
from mindspore_serving.master.totals import ServiceTotals
from mindspore_serving.servable.contents import ReadFiles

Method: TypeAlias = BatchedMethod | StreamedMethod
_SHOWN = 8  # names in an error


@dataclass(slots=True, eq=False)
class ServableService:
    """Version of a servable, with its methods and workers."""

    name: str
    version: int
    deployment: Deployment
    methods: dict[str, Method] = field(default_factory=dict)
    workers: list[Link] = field(default_factory=list)
    reason: str = ""  # why there is no worker, if none is expected soon
    retry_after: float | None = None  # seconds, with `reason`
    card: ModelCard | None = None  # of its language model
    has_handover: bool = False  # its sequences continue here, though it is not current
    files: ReadFiles | None = None  # that its workers have loaded, if answers are shared
    totals: ServiceTotals = field(default_factory=ServiceTotals)

    @property
    def public(self) -> dict[str, MethodReport]:
        """Methods that clients can call."""
        reports = {name: method.report for name, method in self.methods.items()}
        return {name: report for name, report in reports.items() if not name.startswith("@")}


class Registry:
    """Services of all servables.  Version 0 stands for the newest that runs.

    Requests use the current service of a version.  A deployment of a higher generation gets a new
    service, which `promote` makes the current one; the one before keeps its requests until it is
    removed.
    """

    def __init__(self, new_method: Callable[[Deployment, int, MethodReport], Method]) -> None:
        self._new_method = new_method
        self._current: dict[str, dict[int, ServableService]] = {}
        self.all: list[ServableService] = []  # including services that are not current
        self.routes: dict[str, TrafficRoute] = {}  # of servables with a traffic rule
        self.has_caches = False  # whether a method had a cache of answers at any time
        # Returns why a servable version is not available yet; "" if it is not expected.
        self.find_reason: Callable[[str, int], str] = lambda servable, version: ""

    def __iter__(self) -> Iterator[ServableService]:
        """Iterate over the current services."""
        for versions in self._current.values():
            yield from versions.values()

    def of(self, deployment: Deployment) -> list[ServableService]:
        """Return the services of a deployment, current or not."""
        return [service for service in self.all if service.deployment == deployment]

    def add_worker(
        self,
        deployment: Deployment,
        version: int,
        reports: list[MethodReport],
        worker: Link,
        *,
        card: ModelCard | None = None,
        role: str = "",
    ) -> ServableService:
        """Add a worker that has loaded `version` and can run the methods in `reports`.

        `card` describes its language model.  With a `role` it gets requests to some methods only.
        """
        service = self._service(deployment, version)
        service.card = card or service.card
        service.reason = ""
        service.workers.append(worker)
        service.totals.add(worker)
        for report in reports:
            if report.name not in service.methods:
                method = self._new_method(deployment, version, report)
                service.methods[report.name] = method
                self.has_caches |= method.cache is not None
            if not role or runs_method(role, report.name):
                service.methods[report.name].add_worker(worker)
        _set_capacity(service)
        return service

    def _service(self, deployment: Deployment, version: int) -> ServableService:
        current = self._current.setdefault(deployment.name, {}).get(version)
        if current is not None and current.deployment.generation == deployment.generation:
            return current
        matches = (each for each in self.of(deployment) if each.version == version)
        service = next(matches, None)
        if service is None:
            service = ServableService(deployment.name, version, deployment)
            self.all.append(service)
            if current is None:
                self._current[deployment.name][version] = service
        return service

    def promote(self, deployment: Deployment) -> None:
        """Make the services of `deployment` current, so that new requests go there."""
        for service in self.of(deployment):
            self._current[service.name][service.version] = service

    def set_route(self, deployment: Deployment) -> None:
        """Split the requests to the servable of `deployment` by its traffic rule from now on."""
        name, rule = deployment.name, rule_of(deployment)
        if rule is None:
            self.routes.pop(name, None)
        elif name in self.routes:
            self.routes[name].rule = rule
        else:
            self.routes[name] = TrafficRoute(name, rule)

    def choose_version(self, servable: str, key: str = "") -> int:
        """Return the version for a request without one that sticks by `key`; 0 for the newest."""
        route = self.routes.get(servable)
        if route is None:
            return 0
        versions = self._current.get(servable, {})
        ready = [number for number, each in versions.items() if each.workers or not each.reason]
        return route.choose(key, ready, versions)

    def versions_of(self, servable: str) -> dict[int, ServableService]:
        """Return the current services of a servable, by version."""
        return self._current.get(servable, {})

    def with_sequences(self, servable: str) -> Iterator[ServableService]:
        """Iterate over the services of a servable whose sequences continue, withdrawn ones too."""
        versions = self._current.get(servable, {})
        for service in (*versions.values(), *self.all):
            is_current = versions.get(service.version) is service
            if service.name == servable and (service.has_handover or is_current):
                yield service

    def withdraw(self, deployment: Deployment, *, has_handover: bool = False) -> None:
        """Hide the services of `deployment` from new requests; their own requests continue.

        With `has_handover` so do the sequences that have begun.
        """
        for service in self.of(deployment):
            service.has_handover = has_handover
            versions = self._current.get(service.name, {})
            if versions.get(service.version) is service:
                del versions[service.version]
                if not versions:
                    del self._current[service.name]

    def remove(self, deployment: Deployment) -> None:
        """Remove the services of `deployment`, whose workers have ended."""
        self.withdraw(deployment)
        self.all = [service for service in self.all if service.deployment != deployment]

    def remove_worker(self, service: ServableService, worker: Link) -> None:
        """Remove a worker that has died or is leaving."""
        if worker in service.workers:
            service.workers.remove(worker)
        for method in service.methods.values():
            method.remove_worker(worker)
        _set_capacity(service)

    def find(self, servable: str, version: int, method: str) -> Method:
        """Return the method for a request, which may have to wait for a worker.

        Raises NotFound or ServableUnavailable.
        """
        service = self._find_service(servable, version)
        if service is None:
            raise self._no_service(servable, version, method)
        served = service.methods.get(method)
        if served is None:
            near = did_you_mean(method, service.public) or _named("methods", service.public)
            text = f"{_label(servable, version, method)}, method is not available{near}"
            raise NotFound(text)
        if served.workers or served.is_served or not service.reason:
            return served
        text = f"{_label(servable, version, method)}, servable is not available: {service.reason}"
        raise ServableUnavailable(text, service.retry_after)

    def find_routed(self, servable: str, version: int, method: str) -> Method:
        """Return the method for a call of a stage, like `find`; version 0 is chosen by the rule."""
        return self.find(servable, version or self.choose_version(servable), method)

    def find_for(self, step: SequenceStep, servable: str, version: int, method: str) -> Method:
        """Return the method for a request of a sequence, which stays in the version that has it.

        That may be one that a newer version has replaced.  Raises like `find`.
        """
        versions = self._current.get(servable, {})
        for service in () if step.is_start else self.with_sequences(servable):
            is_named = version in (0, service.version, max(versions, default=0))
            served = service.methods.get(method) if is_named else None
            if served is not None and served.has_sequence((step.owner, step.id)):
                return served
        return self.find(servable, version, method)

    def _no_service(self, servable: str, version: int, method: str) -> ServingError:
        """Return the error of a request for a servable version that does not exist."""
        label = _label(servable, version, method)
        if reason := self.find_reason(servable, version):
            return ServableUnavailable(f"{label}, servable is not available: {reason}")
        near = did_you_mean(servable, (name for name in self._current if name != servable))
        near = near or _named("versions", sorted(self._current.get(servable, ())))
        return NotFound(f"{label}, servable is not available{near}")

    def signature(self, servable: str, version: int) -> ServableSignature | None:
        """Return the signatures of a servable version's methods; None if it never ran."""
        service = self._find_service(servable, version)
        if service is None:
            return None
        methods = {name: report.signature for name, report in service.public.items()}
        versions = tuple(sorted(self._current[servable]))
        header = self.routes[servable].rule.header if servable in self.routes else ""
        return ServableSignature(servable, service.version, versions, methods, header)

    def _find_service(self, servable: str, version: int) -> ServableService | None:
        versions = self._current.get(servable)
        if not versions:
            return None
        if version:
            return versions.get(version)
        if len(versions) == 1:
            return next(iter(versions.values()))
        running = [number for number, service in versions.items() if service.workers]
        return versions[max(running or versions)]


def _set_capacity(service: ServableService) -> None:
    if service.card is not None:
        for method in service.methods.values():
            method.set_capacity(service.card, len(method.workers) + len(method.withheld))


def _label(servable: str, version: int, method: str) -> str:
    """Return the label of a request in errors."""
    number = f" version({version})" if version else ""
    return f"Request servable({servable}) method({method}){number}"


def _named(kind: str, names: Iterable[object]) -> str:
    """List the first few of the available names; "" if there are none."""
    shown = [str(name) for name in islice(names, _SHOWN + 1)]
    more = ", ..." if len(shown) > _SHOWN else ""
    return f"; {kind} are {', '.join(shown[:_SHOWN])}{more}" if shown else ""
