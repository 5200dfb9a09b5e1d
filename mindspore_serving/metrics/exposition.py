"""Metrics in Prometheus' text format.  What is shown is the library's."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from mindspore_serving.metrics.catalog import CATALOG, Metric
from mindspore_serving.metrics.histogram import Histogram

if TYPE_CHECKING:
    from prometheus_client.core import Metric as Family
    from prometheus_client.registry import Collector

Buckets: TypeAlias = tuple[list[tuple[str, int]], float]  # and the sum
Sample: TypeAlias = tuple[tuple[str, ...], "float | Buckets"]


class Page:
    """Gathers samples of the metrics of the catalog, or of other ones.

    To add a sample takes a microsecond, to render one twenty: on the thread of whoever asks.
    """

    def __init__(self) -> None:
        self._samples: dict[Metric, list[Sample]] = {}

    def add(self, metric: str | Metric, value: "float | Histogram", *labels: str) -> None:
        """A sample of `metric`, or of the one in the catalog that has this name, as it is now."""
        described = CATALOG[metric] if isinstance(metric, str) else metric
        found: float | Buckets
        if isinstance(value, Histogram):
            found = value.cumulative(described.bounds), value.total
        else:
            found = value
        self._samples.setdefault(described, []).append((labels, found))

    def render(self, *, has_process: bool = False) -> bytes:
        """All that was added; with `has_process`, also what this process uses, under the names of
        Prometheus' clients.
        """
        families = [_family(metric, samples) for metric, samples in self._samples.items()]
        if has_process:
            from prometheus_client import ProcessCollector

            families += ProcessCollector(registry=None).collect()
        return _expose(families)


def _family(metric: Metric, samples: Sequence[Sample]) -> "Family":
    from prometheus_client.core import (
        CounterMetricFamily,
        GaugeMetricFamily,
        HistogramMetricFamily,
    )

    kinds: dict[str, Any] = {
        "counter": CounterMetricFamily,
        "gauge": GaugeMetricFamily,
        "histogram": HistogramMetricFamily,
    }
    if metric.kind == "counter" and not metric.name.endswith("_total"):
        return _of_unknown_kind(metric, samples)
    family = kinds[metric.kind](metric.name, metric.help, labels=metric.labels)
    for labels, value in samples:
        family.add_metric(labels, *(value if isinstance(value, tuple) else (value,)))
    return cast("Family", family)


def _of_unknown_kind(metric: Metric, samples: Sequence[Sample]) -> "Family":
    """A counter that others have named: the library would add _total."""
    from prometheus_client.core import Metric as Family

    family = Family(metric.name, metric.help, "unknown")
    for labels, value in samples:
        if not isinstance(value, tuple):
            family.add_sample(metric.name, dict(zip(metric.labels, labels, strict=True)), value)
    return family


def _expose(families: "Sequence[Family]") -> bytes:
    from prometheus_client import CollectorRegistry, generate_latest

    class Found:
        def collect(self) -> "Sequence[Family]":
            return families

    registry = CollectorRegistry()
    registry.register(cast("Collector", Found()))
    return generate_latest(registry)
