"""The `Control` of the master: what runs, how busy it is, and whether it takes requests."""

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
from mindspore_serving.master.deployed import Deployed
from mindspore_serving.master.history import History
from mindspore_serving.master.registry import Registry
from mindspore_serving.master.supervisor import WorkerSupervisor


class Overview:
    """See `core.service.Control`.  `deployed` are the deployments with the workers of each, which
    the master changes.
    """

    def __init__(self, registry: Registry, deployed: Sequence[Deployed]) -> None:
        self.is_starting = True  # until what is deployed first runs
        self.is_ending = False  # the server stops, or is about to
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
            return status.counts(self._registry.find(servable, version, method).series)
        except ServingError:
            return MethodCounts()

    @property
    def is_ready(self) -> bool:
        settled = [one for one in self._deployed if self.is_starting or not one.is_starting]
        return bool(settled) and all(status.is_ready(o.deployment, o.workers) for o in settled)

    def readiness(self) -> Sequence[ServableReadiness]:
        if self.is_ending:
            text = "the server is stopping"
            return [_unready(one.deployment, text) for one in self._deployed]
        return [
            status.readiness(one.deployment, one.workers, one.services) for one in self._deployed
        ]

    def find_reason(self, servable: str, version: int) -> str:
        """Why a version of a servable, 0 for any, cannot be called yet; "" if it is not loading."""
        rows = (one for one in self.readiness() if one.loaded is not None)
        found = (r.reason for r in rows if r.name == servable and version in (0, r.version))
        return next(found, "")

    def observe(self) -> list[dict[str, Any]]:
        return [status.observe(one, self._workers(one.deployment)) for one in self._registry]

    def history(self) -> Callable[[], dict[str, Any]]:
        return partial(self.past.copy().show, time.monotonic())

    def _workers(self, deployment: Deployment) -> Sequence[WorkerSupervisor]:
        found = (one.workers for one in self._deployed if one.deployment == deployment)
        return next(found, ())

    def describe(self) -> list[dict[str, Any]]:
        return [status.describe(service) for service in self._registry]


def _unready(deployment: Deployment, reason: str) -> ServableReadiness:
    version = deployment.version_number
    return ServableReadiness(deployment.name, version, is_ready=False, reason=reason)
