"""What the workers of a service have counted, also those that have ended: it only grows."""

from collections import Counter
from copy import deepcopy

from mindspore_serving.ipc import status
from mindspore_serving.master.link import Link
from mindspore_serving.metrics.catalog import CATALOG, Metric
from mindspore_serving.metrics.histogram import SIZES, Histogram


class WorkerCounts:
    """`numbers` are the fields of the engines' stats, of which only the sums mean something here;
    `answers` are by finish reason, `histograms` by the names of their metrics.
    """

    def __init__(self) -> None:
        self.numbers: Counter[str] = Counter()
        self.answers: Counter[str] = Counter()
        self.batch_sizes = Histogram(SIZES)
        self.histograms: dict[str, Histogram] = {}

    def add(self, link: Link) -> None:
        """What the worker of `link` has counted so far."""
        self.numbers.update(link.numbers.values)
        self.answers.update(link.numbers.answers)
        sizes = status.batch_sizes(link.status)
        self.batch_sizes.add(sizes.total, sizes.counts)
        for name, (total, counts) in link.numbers.histograms.items():
            known = CATALOG.get(name)  # a worker of another machine may be of another version
            if known is not None and len(counts) == len(known.bounds) + 1:
                self.histograms.setdefault(name, Histogram(known.bounds)).add(total, counts)

    def histogram(self, metric: Metric) -> Histogram:
        """Of `metric`; an empty one if nothing was counted."""
        return self.histograms.get(metric.name) or Histogram(metric.bounds)


class ServiceTotals:
    """Of one service."""

    def __init__(self) -> None:
        self._links: list[Link] = []  # what they count may still grow
        self._ended = WorkerCounts()

    def add(self, link: Link) -> None:
        """A worker begins to count."""
        self._links.append(link)

    def counted(self) -> WorkerCounts:
        """Of all workers."""
        self.fold()
        found = deepcopy(self._ended)
        for link in self._links:
            found.add(link)
        return found

    def fold(self) -> None:
        """Keep the sums of workers that have ended in place of their links."""
        for link in self._links:
            if link.closed.done():
                self._ended.add(link)
        self._links = [link for link in self._links if not link.closed.done()]
