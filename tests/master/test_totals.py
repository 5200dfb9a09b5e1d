"""What workers have counted is never less than it was."""

from types import SimpleNamespace

import pytest

from mindspore_serving.ipc import status
from mindspore_serving.ipc.messages import EngineMetrics
from mindspore_serving.master.totals import ServiceTotals

QUEUE = "serving_llm_queue_seconds"


class Link:
    """To a worker that has counted `steps`, and ends when the test says so."""

    def __init__(self, steps, counts=None):
        self.status = memoryview(bytearray(status.SIZE))
        self.engine_metrics = EngineMetrics({"num_steps": steps}, {"stop": steps}, counts or {})
        self.has_ended = False
        self.closed = SimpleNamespace(done=lambda: self.has_ended)


def test_the_counts_of_a_worker_remain_after_its_end():
    totals, first, second = ServiceTotals(), Link(5), Link(7)
    for link in (first, second):
        totals.add(link)
        status.BatchSizes(link.status).observe(3)
    assert totals.counts().engine["num_steps"] == 12
    first.has_ended = True
    for _ in range(2):
        counted = totals.counts()
        assert counted.engine["num_steps"] == 12
        assert counted.answers["stop"] == 12
        assert (counted.batch_sizes.count, counted.batch_sizes.total) == (2, 6)
    totals.add(Link(1))
    assert totals.counts().engine["num_steps"] == 13


def test_histograms_of_workers_are_added():
    counts = [0] * 19
    counts[3] = 2
    totals = ServiceTotals()
    for _ in range(2):
        totals.add(Link(1, {QUEUE: (0.01, counts)}))
    found = totals.counts().histograms[QUEUE]
    assert (found.counts[3], found.total) == (4, 0.02)


@pytest.mark.parametrize("histograms", [{"unknown": (1.0, [1])}, {QUEUE: (1.0, [1, 2])}])
def test_a_histogram_of_another_version_is_left_out(histograms):
    totals = ServiceTotals()
    totals.add(Link(1, histograms))
    assert totals.counts().histograms == {}
