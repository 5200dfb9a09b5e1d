"""What runs and how busy it is now, as plain numbers for people and pages.  Changes nothing."""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from mindspore_serving.core import signature as signatures
from mindspore_serving.core.deployment import Deployment
from mindspore_serving.core.model_card import ModelCard
from mindspore_serving.core.service import MethodCounts, ServableReadiness
from mindspore_serving.errors import Code
from mindspore_serving.master.registry import ServableService
from mindspore_serving.master.supervisor import WorkerSupervisor
from mindspore_serving.metrics.series import Series, quantiles

_WHY_NOT_READY = {  # by the condition of any worker, the most telling first
    "restarting": "its workers are restarted ({last_exit})",
    "unready": "{unready}",
    "silent": "its workers give no heartbeat",
    "leaving": "its workers are stopping",
}
_HAVE_ENDED = "its workers have ended ({last_exit})"


def describe(service: ServableService) -> dict[str, Any]:
    """See `core.service.Control.describe`."""
    return {
        "name": service.name,
        "version": service.version,
        "methods": {
            name: {
                "inputs": report.inputs,
                "outputs": report.outputs,
                "input_specs": signatures.describe(report.signature.inputs),
                "output_specs": signatures.describe(report.signature.outputs),
            }
            for name, report in service.public.items()
        },
        "num_workers": len(service.workers),
        **({"summary": service.card.summary} if service.card else {}),
    }


def is_ready(deployment: Deployment, own: Iterable[WorkerSupervisor]) -> bool:
    """Whether all workers run that a deployment is to have; autoscaling may want none."""
    conditions = {one.condition for one in own if one.should_run and not one.is_coming}
    return conditions == {"ready"} or (deployment.is_scaled and not conditions)


def readiness(
    deployment: Deployment, own: Sequence[WorkerSupervisor], services: Iterable[ServableService]
) -> ServableReadiness:
    """Of a deployment, by its workers."""
    states = {one.condition for one in own if not one.is_coming}
    known = (s.version for s in services if s.deployment == deployment)
    version = next(known, deployment.version_number)
    if "ready" in states or (deployment.is_scaled and not states):
        return ServableReadiness(deployment.name, version, is_ready=True)
    if all(state in ("new", "starting") for state in states):
        share = sum(one.share_loaded for one in own) / max(1, len(own))
        reason = f"still loading, {share:.0%}".replace("%", " %")
        return ServableReadiness(deployment.name, version, False, reason, share)
    text = next((text for state, text in _WHY_NOT_READY.items() if state in states), _HAVE_ENDED)
    links = (one.link for one in own if one.link is not None)
    reason = text.format(
        last_exit=next((one.last_exit for one in own if one.last_exit), ""),
        unready=next((link.numbers.unready for link in links if link.numbers.unready), ""),
    )
    return ServableReadiness(deployment.name, version, is_ready=False, reason=reason)


def worker(supervisor: WorkerSupervisor) -> dict[str, Any]:
    """Where a worker runs, or ran last, and its agents if it has any; nothing but its state before
    its first start.
    """
    link = supervisor.link
    if link is None:
        return {"node": None, "pid": None, "device": None, "state": supervisor.condition}
    return {
        "node": link.place.node,
        "pid": link.process.pid,
        "device": link.place.device_id,
        "state": supervisor.condition,
        **({"python": link.python} if link.python else {}),
        **({"agents": [msgspec.structs.asdict(one) for one in link.agents]} if link.agents else {}),
    }


def observe(service: ServableService, supervisors: Iterable[WorkerSupervisor]) -> dict[str, Any]:
    """As `describe`, and its workers, requests, latencies of about the last minute in milliseconds,
    and of a language model its card and its engines' totals over all workers.
    """
    methods = service.methods.values()
    p50, p99 = quantiles([method.series for method in methods], (0.5, 0.99))
    found: dict[str, Any] = {
        **describe(service),
        "workers": [worker(one) for one in supervisors],
        "requests": {
            "waiting": num_waiting(service),
            "running": num_running(service),
            "total": sum(method.series.seconds.count for method in methods),
        },
        "p50_ms": p50,
        "p99_ms": p99,
    }
    if service.card is not None:
        found["model"] = msgspec.to_builtins(service.card)
        found["engine"] = engine(service)
    return found


def counts(series: Series) -> MethodCounts:
    """See `core.service.Control.counts`."""
    num_succeeded = series.codes.get(Code.OK, 0)
    return MethodCounts(
        num_succeeded,
        int((series.seconds.total - series.failed_seconds) * 1e9),
        series.seconds.count - num_succeeded,
        int(series.failed_seconds * 1e9),
        series.num_instances,
        int(series.last_seen() * 1000),
        series.waits.count,
        int(series.waits.total * 1e9),
        int(series.worker_seconds * 1e9),
    )


def num_waiting(service: ServableService) -> int:
    """Parts of requests that no worker has yet."""
    return sum(method.num_waiting for method in service.methods.values())


def num_running(service: ServableService) -> int:
    """Parts of requests that workers have."""
    return sum(len(link.parts) for link in service.workers)


def language_models(services: Iterable[ServableService]) -> list[tuple[str, int, ModelCard]]:
    """See `core.service.Control.language_models`."""
    newest = {
        service.name: (service.name, service.version, service.card)
        for service in sorted(services, key=lambda service: service.version)
        if service.card is not None  # also while it has no worker: requests wait, or are told why
    }
    return list(newest.values())


def engine(service: ServableService) -> dict[str, int]:
    """The sums of what the engines of its workers count; empty before their first steps."""
    totals: dict[str, int] = {}
    for link in service.workers:
        for name, value in link.numbers.values.items():
            totals[name] = totals.get(name, 0) + value
    return totals
