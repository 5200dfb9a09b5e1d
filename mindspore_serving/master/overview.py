"""`Control` of the master: what runs, how busy it is, and whether it takes requests."""

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from mindspore_serving.core.deployment import Deployment
from mindspore_serving.core.model_card import ModelCard
from mindspore_serving.core.service import MethodCounts, ServableReadiness
from mindspore_serving.core.signature import ServableSignature
from mindspore_serving.errors import ServingError
from mindspore_serving.master import status
from mindspore_serving.master.active_deployment import ActiveDeployment
from mindspore_serving.master.history import History
from mindspore_serving.master.registry import Registry, ServableService
from mindspore_serving.master.supervisor import WorkerSupervisor


class Overview:
    """Implementation of `core.service.Control`.

    `deployed` are the deployments with their workers, which the master changes.
    """

    def __init__(self, registry: Registry, deployed: Sequence[ActiveDeployment]) -> None:
        self.is_starting = True  # until the first deployments run
        self.is_ending = False  # the server stops, or will
        self._registry = registry
        self._deployed = deployed
        self.past = History(self.observe)

    def language_models(self) -> list[tuple[str, int, ModelCard]]:
        return status.language_models(self._registry)

    @property
    def has_language_models(self) -> bool:
        return any(service.card is not None for service in self._registry)

    def streams(self, servable: str, version: int, method: str) -> bool | None:
        try:
            return self._registry.find(servable, version, method).report.streams
        except ServingError:
            return None

    def signature(self, servable: str, version: int = 0) -> ServableSignature | None:
        return self._registry.signature(servable, version)

    def counts(self, servable: str, version: int, method: str) -> MethodCounts:
        try:
            return status.counts(self._registry.find(servable, version, method))
        except ServingError:
            return MethodCounts()

    @property
    def is_ready(self) -> bool:
        settled = [
            active for active in self._deployed if self.is_starting or not active.is_starting
        ]
        ready = (status.is_ready(active.deployment, active.workers) for active in settled)
        return bool(settled) and not self.is_ending and all(ready)

    def readiness(self) -> Sequence[ServableReadiness]:
        if self.is_ending:
            text = "the server is stopping"
            return [_unready(active.deployment, text) for active in self._deployed]
        return [
            status.readiness(active.deployment, active.workers, active.services)
            for active in self._deployed
        ]

    def find_reason(self, servable: str, version: int) -> str:
        """Return why a servable version cannot be called yet; "" if it is not loading.

        Version 0 stands for any.
        """
        loading = (row for row in self.readiness() if row.loaded is not None)
        loading = (row for row in loading if row.name == servable)
        return next((row.reason for row in loading if version in (0, row.version)), "")

    def observe(self) -> list[dict[str, Any]]:
        return [
            status.observe(each, self._workers(each.deployment)) | self._traffic(each)
            for each in self._registry
        ]

    def _traffic(self, service: ServableService) -> dict[str, Any]:
        route = self._registry.routes.get(service.name)
        return {} if route is None else route.describe(service.version)

    def history(self) -> Callable[[], dict[str, Any]]:
        return partial(self.past.copy().show, time.monotonic())

    def _workers(self, deployment: Deployment) -> Sequence[WorkerSupervisor]:
        matches = (active for active in self._deployed if active.deployment == deployment)
        return next((active.workers for active in matches), ())

    def describe(self) -> list[dict[str, Any]]:
        return [status.describe(each) | self._traffic(each) for each in self._registry]


def _unready(deployment: Deployment, reason: str) -> ServableReadiness:
    version = deployment.version_number
    return ServableReadiness(deployment.name, version, is_ready=False, reason=reason)
