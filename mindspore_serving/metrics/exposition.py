"""Metrics in Prometheus' text format, written by prometheus_client."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from mindspore_serving.metrics.catalog import CATALOG, Metric
from mindspore_serving.metrics.histogram import Histogram

if TYPE_CHECKING:
    from prometheus_client.core import Metric as Family
    from prometheus_client.registry import Collector

Buckets: TypeAlias = tuple[list[tuple[str, int]], float]  # counts by bound, and the sum
Sample: TypeAlias = tuple[tuple[str, ...], "float | Buckets"]


class Page:
    """Samples of metrics of the catalog, or of other metrics.

    Adding a sample takes a microsecond; rendering one takes twenty, on the thread of the caller.
    """

    def __init__(self) -> None:
        self._samples: dict[Metric, list[Sample]] = {}

    def add(self, metric: str | Metric, value: "float | Histogram", *labels: str) -> None:
        """Add the current value of `metric`, or of the metric in the catalog with this name."""
        described = CATALOG[metric] if isinstance(metric, str) else metric
        sample: float | Buckets
        if isinstance(value, Histogram):
            sample = value.cumulative(described.bounds), value.total
        else:
            sample = value
        self._samples.setdefault(described, []).append((labels, sample))

    def render(self, *, has_process: bool = False) -> bytes:
        """Render all samples; with `has_process` also the process metrics of prometheus_client."""
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

    family_types: dict[str, Any] = {
        "counter": CounterMetricFamily,
        "gauge": GaugeMetricFamily,
        "histogram": HistogramMetricFamily,
    }
    if metric.kind == "counter" and not metric.name.endswith("_total"):
        return _of_unknown_kind(metric, samples)
    family = family_types[metric.kind](metric.name, metric.help, labels=metric.labels)
    for labels, value in samples:
        family.add_metric(labels, *(value if isinstance(value, tuple) else (value,)))
    return cast("Family", family)


def _of_unknown_kind(metric: Metric, samples: Sequence[Sample]) -> "Family":
    """Return a counter with another project's name, to which the library would add _total."""
    from prometheus_client.core import Metric as Family

    family = Family(metric.name, metric.help, "unknown")
    for labels, value in samples:
        if not isinstance(value, tuple):
            family.add_sample(metric.name, dict(zip(metric.labels, labels, strict=True)), value)
    return family


def _expose(families: "Sequence[Family]") -> bytes:
    from prometheus_client import CollectorRegistry, generate_latest

    class Families:
        def collect(self) -> "Sequence[Family]":
            return families

    registry = CollectorRegistry()
    registry.register(cast("Collector", Families()))
    return generate_latest(registry)
