"""Every number we expose, counted with plain integers on one thread and shown on request.

A `Series` takes 0.7 µs per request; a counter and a histogram of prometheus_client would take
1.8 µs, and know no recent quantiles.  What is shown is the library's.  Knows nothing of HTTP.
"""

import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from prometheus_client.core import Metric
    from prometheus_client.registry import Collector

BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
WAITS = (*BUCKETS, 30.0, 60.0, 120.0)  # for queues, where more is common
_LABELS = ("servable", "version", "method")

SLOT_SECONDS = 10.0
_NUM_SLOTS = 6
_FINE = tuple(0.0001 * 1.1**power for power in range(184))  # seconds, to over an hour


class Histogram:
    """How many of the numbers observed are at most each of `bounds`, and the sum of all."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    @property
    def count(self) -> int:
        return sum(self.counts)

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def cumulative(self) -> list[tuple[str, int]]:
        """Bounds, the last being "+Inf", each with how many are at most that."""
        return list(zip([*map(str, self.bounds), "+Inf"], accumulate(self.counts), strict=True))


class Recent:
    """The seconds that the requests of the last minute took, in steps of a tenth.

    A few counts, each of at least ten seconds; the oldest gives way.
    """

    __slots__ = ("_counts", "_ends", "_slots")

    def __init__(self) -> None:
        self._slots: deque[tuple[float, list[int]]] = deque(maxlen=_NUM_SLOTS)  # began, counts
        self._counts: list[int] = []  # of the newest
        self._ends = float("-inf")

    def observe(self, seconds: float, now: float) -> None:
        if now >= self._ends:
            self._ends = now + SLOT_SECONDS
            self._counts = [0] * (len(_FINE) + 1)
            self._slots.append((now, self._counts))
        self._counts[bisect_left(_FINE, seconds)] += 1

    def counts(self, now: float) -> list[list[int]]:
        """Those that began in the last minute."""
        first = now - SLOT_SECONDS * _NUM_SLOTS
        return [counts for began, counts in self._slots if began > first]


class Series:
    """What became of the requests to one method: counts by code, and seconds, of all and of late.

    `now` is a clock in seconds.
    """

    __slots__ = (
        "_last",
        "_now",
        "codes",
        "failed_seconds",
        "labels",
        "num_instances",
        "recent",
        "seconds",
    )

    def __init__(
        self, servable: str, version: int, method: str, now: Callable[[], float] = time.monotonic
    ) -> None:
        self.labels = (servable, str(version), method)
        self.codes: dict[int, int] = {}
        self.seconds = Histogram(BUCKETS)
        self.recent = Recent()
        self.failed_seconds = 0.0  # the part of `seconds` of those with another code than 0
        self.num_instances = 0  # of those with code 0
        self._now = now
        self._last: float | None = None

    def observe(self, seconds: float, code: int, num_instances: int = 0) -> None:
        self.seconds.observe(seconds)
        self._last = self._now()
        self.recent.observe(seconds, self._last)
        self.codes[code] = self.codes.get(code, 0) + 1
        if code:
            self.failed_seconds += seconds
        else:
            self.num_instances += num_instances

    @property
    def last_answer(self) -> float:
        """When the last request was answered, by the clock; 0 if none was."""
        return self._last or 0.0

    def last_seen(self) -> float:
        """Seconds since 1970, when the last request was answered; 0 if none was."""
        return 0.0 if self._last is None else time.time() - (self._now() - self._last)


def quantiles(
    series: Iterable[Series], shares: Sequence[float], now: float | None = None
) -> list[float | None]:
    """Milliseconds within which each of `shares` of the requests of about the last minute was
    answered, a tenth too many at most; None without requests, or beyond an hour."""
    now = time.monotonic() if now is None else now
    slots = [counts for one in series for counts in one.recent.counts(now)]
    totals = list(accumulate(map(sum, zip(*slots, strict=True))))
    if not totals:
        return [None for _ in shares]
    places = [bisect_left(totals, share * totals[-1]) for share in shares]
    return [_FINE[place] * 1000 if place < len(_FINE) else None for place in places]


def render(
    series: Callable[[], Iterable[Series]],
    gauges: Callable[[], dict[str, dict[tuple[str, str], float]]],
    code_name: Callable[[int], str],
    counters: Callable[[], dict[str, dict[tuple[str, str], float]]] = dict,
) -> bytes:
    """All numbers in Prometheus' text format.

    `gauges` gives present values by name and (servable, version), `counters` values that only grow.
    """
    from prometheus_client.core import (
        CounterMetricFamily,
        GaugeMetricFamily,
        HistogramMetricFamily,
    )

    counts = CounterMetricFamily(
        "serving_requests", "Requests answered, by result", labels=(*_LABELS, "code")
    )
    seconds = HistogramMetricFamily(
        "serving_request_seconds", "From submission to reply", labels=_LABELS
    )
    for one in series():
        for code, count in one.codes.items():
            counts.add_metric((*one.labels, code_name(code)), count)
        seconds.add_metric(one.labels, one.seconds.cumulative(), one.seconds.total)
    families: list[Metric] = [counts, seconds]
    for kind, found in ((GaugeMetricFamily, gauges()), (CounterMetricFamily, counters())):
        for name, values in found.items():
            family = kind(f"serving_{name}", name.replace("_", " "), labels=_LABELS[:2])
            for labels, value in values.items():
                family.add_metric(labels, value)
            families.append(family)
    return expose(families)


def render_waits(name: str, text: str, waits: Mapping[tuple[str, str], Histogram]) -> bytes:
    """Histograms by (servable, version) in Prometheus' text format; `text` says what of."""
    from prometheus_client.core import HistogramMetricFamily

    family = HistogramMetricFamily(f"serving_{name}", text, labels=_LABELS[:2])
    for labels, histogram in waits.items():
        family.add_metric(labels, histogram.cumulative(), histogram.total)
    return expose([family])


def expose(families: "list[Metric]") -> bytes:
    """`families` in Prometheus' text format."""
    from prometheus_client import CollectorRegistry, generate_latest

    class Found:
        def collect(self) -> "list[Metric]":
            return families

    registry = CollectorRegistry()
    registry.register(cast("Collector", Found()))
    return generate_latest(registry)
