"""How busy a service is now, as plain numbers for people and pages.  Changes nothing."""

from typing import Any

import msgspec

from mindspore_serving.dispatch.registry import Service
from mindspore_serving.metrics import Series


def of(service: Service) -> dict[str, Any]:
    """Requests, latencies in milliseconds, and of a language model its card and engine's totals
    over all workers."""
    lines = service.lines.values()
    total = Series.sum(line.series for line in lines)
    found: dict[str, Any] = {
        "requests": {
            "waiting": sum(len(line.batcher) for line in lines),
            "running": sum(len(link.parts) for link in service.workers),
            "total": total.count,
        },
        "p50_ms": total.quantile(0.5),
        "p99_ms": total.quantile(0.99),
    }
    if service.card is not None:
        found["model"] = msgspec.to_builtins(service.card)
        found["engine"] = engine(service)
    return found


def engine(service: Service) -> dict[str, int]:
    """The sums of what the engines of its workers count; empty before their first steps."""
    totals: dict[str, int] = {}
    for link in service.workers:
        for name, value in link.numbers.items():
            totals[name] = totals.get(name, 0) + value
    return totals
