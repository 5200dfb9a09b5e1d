"""Every number we expose, counted with plain integers on one thread and shown on request.

A `Series` costs a fraction of a microsecond per request; `collect` turns them into Prometheus
families when somebody asks.  Knows nothing of HTTP.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator

BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_LABELS = ("servable", "version", "method")


class Series:
    """What became of the requests to one method: counts by code, and a histogram of seconds."""

    __slots__ = ("buckets", "codes", "labels", "total_seconds")

    def __init__(self, servable: str, version: int, method: str) -> None:
        self.labels = (servable, str(version), method)
        self.codes: dict[int, int] = {}
        self.buckets = [0] * (len(BUCKETS) + 1)
        self.total_seconds = 0.0

    @property
    def count(self) -> int:
        """Requests answered."""
        return sum(self.buckets)

    def quantile(self, share: float) -> float | None:
        """Milliseconds within which so large a `share` of requests was answered: the bound of the
        bucket it falls into, None without requests or beyond the last bound."""
        wanted, seen = share * self.count, 0
        for bound, number in zip(BUCKETS, self.buckets, strict=False):
            seen += number
            if number and seen >= wanted:
                return bound * 1000
        return None

    @classmethod
    def sum(cls, series: "Iterable[Series]") -> "Series":
        """All of `series` as one."""
        total = cls("", 0, "")
        for one in series:
            total.buckets = [a + b for a, b in zip(total.buckets, one.buckets, strict=True)]
            total.total_seconds += one.total_seconds
        return total

    def observe(self, seconds: float, code: int) -> None:
        self.buckets[bisect_left(BUCKETS, seconds)] += 1
        self.total_seconds += seconds
        self.codes[code] = self.codes.get(code, 0) + 1


def render(
    series: Callable[[], Iterable[Series]],
    gauges: Callable[[], dict[str, dict[tuple[str, str], float]]],
    code_name: Callable[[int], str],
    counters: Callable[[], dict[str, dict[tuple[str, str], float]]] = dict,
) -> bytes:
    """All numbers in Prometheus' text format.

    `gauges` gives present values by name and by (servable, version) labels, `counters` values that
    only grow.
    """
    from prometheus_client import CollectorRegistry, generate_latest
    from prometheus_client.core import (
        CounterMetricFamily,
        GaugeMetricFamily,
        HistogramMetricFamily,
        Metric,
    )

    class Collector:
        def collect(self) -> Iterator[Metric]:
            counts = CounterMetricFamily(
                "serving_requests", "Requests answered, by result", labels=(*_LABELS, "code")
            )
            seconds = HistogramMetricFamily(
                "serving_request_seconds", "From submission to reply", labels=_LABELS
            )
            for one in series():
                for code, count in one.codes.items():
                    counts.add_metric((*one.labels, code_name(code)), count)
                seconds.add_metric(one.labels, _cumulative(one.buckets), one.total_seconds)
            yield counts
            yield seconds
            for name, values in gauges().items():
                family = GaugeMetricFamily(
                    f"serving_{name}", name.replace("_", " "), labels=_LABELS[:2]
                )
                for labels, value in values.items():
                    family.add_metric(labels, value)
                yield family
            for name, values in counters().items():
                counter = CounterMetricFamily(
                    f"serving_{name}", name.replace("_", " "), labels=_LABELS[:2]
                )
                for labels, value in values.items():
                    counter.add_metric(labels, value)
                yield counter

    registry = CollectorRegistry()
    registry.register(Collector())
    return generate_latest(registry)


def _cumulative(buckets: list[int]) -> list[tuple[str, float]]:
    total, rows = 0, []
    for bound, count in zip([*map(str, BUCKETS), "+Inf"], buckets, strict=True):
        total += count
        rows.append((bound, float(total)))
    return rows
