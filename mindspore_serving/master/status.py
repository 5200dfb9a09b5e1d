"""Current status and load of servables, as plain values for users and pages.  Changes nothing."""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from mindspore_serving.core import signature as signatures
from mindspore_serving.core.default_sampling import describe_sampling
from mindspore_serving.core.deployment import Deployment
from mindspore_serving.core.model_card import ModelCard
from mindspore_serving.core.service import MethodCounts, ServableReadiness
from mindspore_serving.errors import Code
from mindspore_serving.master.answer_cache import NO_CACHE
from mindspore_serving.master.registry import Method, ServableService
from mindspore_serving.master.supervisor import WorkerSupervisor
from mindspore_serving.metrics.series import quantiles

_NOT_READY = {  # by the condition of any worker, the most informative first
    "restarting": "its workers are restarted ({last_exit})",
    "unready": "{unready}",
    "silent": "its workers give no heartbeat",
    "leaving": "its workers are stopping",
}
_HAVE_ENDED = "its workers have ended ({last_exit})"


def describe(service: ServableService) -> dict[str, Any]:
    """Implement `core.service.Control.describe`."""
    return {
        "name": service.name,
        "version": service.version,
        "methods": {
            name: {
                "inputs": report.inputs,
                "outputs": report.outputs,
                "input_specs": signatures.describe_inputs(report.signature.inputs),
                "output_specs": signatures.describe(report.signature.outputs),
                **_batch(report.signature),
            }
            for name, report in service.public.items()
        },
        "num_workers": len(service.workers),
        **({"roles": _roles(service)} if service.deployment.roles else {}),
        **(_described(service.card) if service.card else {}),
    }


def _roles(service: ServableService) -> dict[str, int]:
    """Return the number of workers of each role."""
    counts = dict.fromkeys(service.deployment.roles, 0)
    for link in service.workers:
        counts[link.role] += 1
    return counts


def _batch(signature: signatures.InstanceSignature) -> dict[str, Any]:
    text = signatures.describe_batch(signature)
    row: dict[str, Any] = {"batch": text} if text else {}
    return row | {"has_state": True} if signature.has_state else row


def _described(card: ModelCard) -> dict[str, Any]:
    """Return what clients may know of a language model, and its sampling as a line for people."""
    public = msgspec.structs.replace(card, adapter_paths=(), system_message="")
    return {"model": msgspec.to_builtins(public), "sampling": describe_sampling(card)}


def is_ready(deployment: Deployment, workers: Iterable[WorkerSupervisor]) -> bool:
    """Return whether all workers that should run are ready; autoscaling may want none."""
    conditions = {
        worker.condition for worker in workers if worker.should_run and not worker.is_scaling_up
    }
    return conditions == {"ready"} or (deployment.is_scaled and not conditions)


def readiness(
    deployment: Deployment, workers: Sequence[WorkerSupervisor], services: Iterable[ServableService]
) -> ServableReadiness:
    """Return the readiness of a deployment, by its workers."""
    states = {worker.condition for worker in workers if not worker.is_scaling_up}
    known = (service.version for service in services if service.deployment == deployment)
    version = next(known, deployment.version_number)
    if "ready" in states or (deployment.is_scaled and not states):
        return ServableReadiness(deployment.name, version, is_ready=True)
    if all(state in ("new", "starting") for state in states):
        share = sum(worker.share_loaded for worker in workers) / max(1, len(workers))
        reason = f"still loading, {share:.0%}".replace("%", " %")
        doing = next(filter(None, (worker.loading_text for worker in workers)), "")
        reason += f": {doing}" if doing else ""
        return ServableReadiness(deployment.name, version, False, reason, share)
    text = next((text for state, text in _NOT_READY.items() if state in states), _HAVE_ENDED)
    links = (worker.link for worker in workers if worker.link is not None)
    unready = (link.engine_metrics.unready for link in links)
    reason = text.format(
        last_exit=next((worker.last_exit for worker in workers if worker.last_exit), ""),
        unready=next(filter(None, unready), ""),
    )
    return ServableReadiness(deployment.name, version, is_ready=False, reason=reason)


def worker(supervisor: WorkerSupervisor) -> dict[str, Any]:
    """Describe where a worker runs, or ran last, and its agents and its runtimes' decision if any.

    Before its first start there is only its state.
    """
    link = supervisor.link
    if link is None:
        return {"node": None, "pid": None, "device": None, "state": supervisor.condition}
    decision = link.engine_metrics.decision
    return {
        "node": link.location.node,
        "pid": link.process.pid,
        "device": link.location.device_id,
        "state": supervisor.condition,
        **({"role": link.role} if link.role else {}),
        **({"python": link.python} if link.python else {}),
        **({"runtimes": decision} if decision else {}),
        **(
            {"upstreams": list(map(msgspec.to_builtins, link.engine_metrics.upstreams))}
            if link.engine_metrics.upstreams
            else {}
        ),
        **({"agents": list(map(msgspec.structs.asdict, link.agents))} if link.agents else {}),
    }


def observe(service: ServableService, supervisors: Iterable[WorkerSupervisor]) -> dict[str, Any]:
    """Describe a service like `describe`, with its load.

    That is its workers, requests and latencies of about the last minute in milliseconds, and of a
    language model its card and the sums of its engines' stats.
    """
    methods = service.methods.values()
    p50, p99 = quantiles([method.series for method in methods], (0.5, 0.99))
    row: dict[str, Any] = {
        **describe(service),
        "workers": [worker(supervisor) for supervisor in supervisors],
        "requests": {
            "waiting": num_waiting(service),
            "running": num_running(service),
            "total": sum(method.series.seconds.count for method in methods),
        },
        "p50_ms": p50,
        "p99_ms": p99,
    }
    if service.card is not None:
        row["engine"] = engine(service)
    return row


def counts(method: Method) -> MethodCounts:
    """Return the totals of a method, see `core.service.Control.counts`."""
    series, cache = method.series, method.cache or NO_CACHE
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
        cache.counts.hit + cache.counts.hit_store,
        cache.hit_ns,
        cache.counts.miss + cache.counts.joined,
        cache.miss_ns,
        cache.counts.joined,
    )


def num_waiting(service: ServableService) -> int:
    """Return the number of parts that no worker has yet."""
    return sum(method.num_waiting for method in service.methods.values())


def num_running(service: ServableService) -> int:
    """Return the number of parts that workers have."""
    return sum(len(link.parts) for link in service.workers)


def language_models(services: Iterable[ServableService]) -> list[tuple[str, int, ModelCard]]:
    """Implement `core.service.Control.language_models`."""
    newest = {
        service.name: (service.name, service.version, service.card)
        for service in sorted(services, key=lambda service: service.version)
        if service.card is not None  # also without workers: requests wait, or get the reason
    }
    return list(newest.values())


def engine(service: ServableService) -> dict[str, int]:
    """Return the sums of the workers' engine stats; empty before their first steps."""
    totals: dict[str, int] = {}
    for link in service.workers:
        for name, value in link.engine_metrics.values.items():
            totals[name] = totals.get(name, 0) + value
    return totals
