"""Totals of a service's workers, including workers that have ended: they only grow."""

from collections import Counter
from copy import deepcopy

from mindspore_serving.ipc import status
from mindspore_serving.master.link import Link
from mindspore_serving.metrics.catalog import CATALOG, Metric
from mindspore_serving.metrics.histogram import SIZES, Histogram


class WorkerCounts:
    """Counts of one or more workers.

    `engine` has the fields of the engines' stats, of which only the sums have a meaning here;
    `answers` are by finish reason, `histograms` by the names of their metrics.
    """

    def __init__(self) -> None:
        self.engine: Counter[str] = Counter()
        self.answers: Counter[str] = Counter()
        self.batch_sizes = Histogram(SIZES)
        self.histograms: dict[str, Histogram] = {}

    def add(self, link: Link) -> None:
        """Add the counts of the worker of `link`."""
        self.engine.update(link.engine_metrics.values)
        self.answers.update(link.engine_metrics.answers)
        sizes = status.batch_sizes(link.status)
        self.batch_sizes.add(sizes.total, sizes.counts)
        for name, (total, counts) in link.engine_metrics.histograms.items():
            known = CATALOG.get(name)  # a worker of another machine may be of another version
            if known is not None and len(counts) == len(known.bounds) + 1:
                self.histograms.setdefault(name, Histogram(known.bounds)).add(total, counts)

    def histogram(self, metric: Metric) -> Histogram:
        """Return the histogram of `metric`, which may be empty."""
        return self.histograms.get(metric.name) or Histogram(metric.bounds)


class ServiceTotals:
    """Totals of one service."""

    def __init__(self) -> None:
        self._links: list[Link] = []  # whose counts can still grow
        self._ended = WorkerCounts()

    def add(self, link: Link) -> None:
        """Add a worker that has no counts yet."""
        self._links.append(link)

    def counts(self) -> WorkerCounts:
        """Return the counts of all workers."""
        self.fold()
        counts = deepcopy(self._ended)
        for link in self._links:
            counts.add(link)
        return counts

    def fold(self) -> None:
        """Replace the links of workers that have ended by the sums of their counts."""
        for link in self._links:
            if link.closed.done():
                self._ended.add(link)
        self._links = [link for link in self._links if not link.closed.done()]
