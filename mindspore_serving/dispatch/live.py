"""How busy a service is now, as plain numbers for people and pages.  Changes nothing."""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from mindspore_serving.dispatch.registry import Service
from mindspore_serving.metrics import quantiles


def of(service: Service) -> dict[str, Any]:
    """Requests, latencies of about the last minute in milliseconds, and of a language model its
    card and engine's totals over all workers."""
    lines = service.lines.values()
    p50, p99 = quantiles([line.series for line in lines], (0.5, 0.99))
    found: dict[str, Any] = {
        "requests": {
            "waiting": sum(len(line.batcher) for line in lines),
            "running": sum(len(link.parts) for link in service.workers),
            "total": sum(line.series.seconds.count for line in lines),
        },
        "p50_ms": p50,
        "p99_ms": p99,
    }
    if service.card is not None:
        found["model"] = msgspec.to_builtins(service.card)
        found["engine"] = engine(service)
    return found


GAUGES = {  # metric -> number of an engine
    "llm_requests_running": "num_running",
    "llm_requests_waiting": "num_waiting",
    "llm_cache_blocks": "num_blocks",
    "llm_cache_blocks_free": "num_free_blocks",
}
COUNTERS = {
    "llm_steps": "num_steps",
    "llm_prompt_tokens": "num_prompt_tokens",
    "llm_generated_tokens": "num_generated_tokens",
    "llm_prefix_cache_queries": "num_cache_queries",
    "llm_prefix_cache_hits": "num_cache_hits",
    "llm_preemptions": "num_preemptions",
}


def engine_metrics(
    services: Iterable[Service], names: Mapping[str, str]
) -> dict[str, dict[tuple[str, str], float]]:
    """The numbers of all engines by metric of `names` and by (servable, version)."""
    found: dict[str, dict[tuple[str, str], float]] = {}
    for service in services:
        numbers = engine(service) if service.card is not None else {}
        for metric, name in names.items():
            if name in numbers:
                labels = (service.name, str(service.version))
                found.setdefault(metric, {})[labels] = float(numbers[name])
    return found


def engine(service: Service) -> dict[str, int]:
    """The sums of what the engines of its workers count; empty before their first steps."""
    totals: dict[str, int] = {}
    for link in service.workers:
        for name, value in link.numbers.items():
            totals[name] = totals.get(name, 0) + value
    return totals
