"""Metrics in Prometheus' text format.  What is shown is the library's."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from mindspore_serving.metrics.catalog import CATALOG, Metric
from mindspore_serving.metrics.histogram import Histogram

if TYPE_CHECKING:
    from prometheus_client.core import Metric as Family
    from prometheus_client.registry import Collector


class Page:
    """Gathers samples of the metrics of the catalog, or of other ones."""

    def __init__(self) -> None:
        self._families: dict[str, Any] = {}

    def add(self, metric: str | Metric, value: "float | Histogram", *labels: str) -> None:
        """A sample of `metric`, or of the one in the catalog that has this name."""
        described = CATALOG[metric] if isinstance(metric, str) else metric
        family = self._families.get(described.name)
        if family is None:
            family = self._families[described.name] = _family(described)
        if isinstance(value, Histogram):
            family.add_metric(labels, value.cumulative(described.bounds), value.total)
        else:
            family.add_metric(labels, value)

    def add_process(self) -> None:
        """What this process uses, under the names of Prometheus' clients."""
        from prometheus_client import ProcessCollector

        own = ProcessCollector(registry=None).collect()
        self._families.update((one.name, one) for one in own)

    def render(self) -> bytes:
        return expose(list(self._families.values()))


def _family(metric: Metric) -> Any:
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
    return kinds[metric.kind](metric.name, metric.help, labels=metric.labels)


def expose(families: "Sequence[Family]") -> bytes:
    """`families` in Prometheus' text format."""
    from prometheus_client import CollectorRegistry, generate_latest

    class Found:
        def collect(self) -> "Sequence[Family]":
            return families

    registry = CollectorRegistry()
    registry.register(cast("Collector", Found()))
    return generate_latest(registry)
