"""Counts and latencies of the requests to one method, in total and over the last minute."""

import time
from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from itertools import accumulate

from mindspore_serving.metrics.histogram import SECONDS, Histogram

SLOT_SECONDS = 10.0
_NUM_SLOTS = 6
# Steps of 10 % up to over an hour, including the bounds that Prometheus sees.
_FINE = tuple(sorted({*SECONDS, *(0.0001 * 1.1**power for power in range(184))}))


class Series:
    """Counts by code, and latencies; `now` of its methods is `time.monotonic`.

    `waits` are queue times in seconds; `worker_seconds` is the sum of times in workers, of requests
    with code 0.
    """

    __slots__ = (
        "_ends",
        "_fine",
        "_slots",
        "codes",
        "failed_seconds",
        "labels",
        "last_answer",
        "num_instances",
        "seconds",
        "waits",
        "worker_seconds",
    )

    def __init__(self, servable: str, version: int, method: str) -> None:
        self.labels = (servable, str(version), method)
        self.codes: defaultdict[int, int] = defaultdict(int)
        self.seconds = Histogram(_FINE)
        self.waits = Histogram(SECONDS)
        self.worker_seconds = 0.0
        self.failed_seconds = 0.0  # the part of `seconds` with a code other than 0
        self.num_instances = 0  # of requests with code 0
        self.last_answer = 0.0  # when the last request was answered; 0 if none was
        self._fine = self.seconds.counts
        # Start of each of the last slots, and the counts at that time; the oldest is dropped.
        self._slots: deque[tuple[float, list[int]]] = deque(maxlen=_NUM_SLOTS)
        self._ends = float("-inf")

    def observe(
        self, seconds: float, code: int, now: float, num_instances: int = 0, waited: float = -1.0
    ) -> None:
        """Count a request that took `seconds`; `waited` is its queue time, < 0 without a worker."""
        if now >= self._ends:
            self._ends = now + SLOT_SECONDS
            self._slots.append((now, self._fine[:]))
        self._fine[bisect_left(_FINE, seconds)] += 1
        self.seconds.total += seconds
        self.last_answer = now
        self.codes[code] += 1
        if code:
            self.failed_seconds += seconds
        else:
            self.num_instances += num_instances
        if waited >= 0:
            self.waits.observe(waited)
            if not code:
                self.worker_seconds += seconds - waited

    def recent(self, now: float) -> list[int]:
        """Return the counts since the oldest slot that began in the last minute."""
        first = now - SLOT_SECONDS * _NUM_SLOTS
        before = next((counts for began, counts in self._slots if began > first), self._fine)
        return [count - old for count, old in zip(self._fine, before, strict=True)]

    def last_seen(self) -> float:
        """Return when the last request was answered, in seconds since 1970; 0 if none was."""
        ago = time.monotonic() - self.last_answer
        return time.time() - ago if self.last_answer else 0.0


def quantiles(
    series: Iterable[Series], shares: Sequence[float], now: float | None = None
) -> list[float | None]:
    """Return the quantiles of latency over about the last minute, in milliseconds.

    They are at most 10 % too large. None without requests, or beyond an hour.
    """
    now = time.monotonic() if now is None else now
    counts = [method.recent(now) for method in series]
    totals = list(accumulate(map(sum, zip(*counts, strict=True))))
    if not totals or not totals[-1]:
        return [None for _ in shares]
    indices = [bisect_left(totals, share * totals[-1]) for share in shares]
    return [_FINE[index] * 1000 if index < len(_FINE) else None for index in indices]
