"""Counts and histograms, read back by Prometheus' own parser; quantiles of the last minute."""

import tracemalloc
from collections import Counter

import pytest
from prometheus_client.parser import text_string_to_metric_families

from mindspore_serving.metrics.catalog import CATALOG
from mindspore_serving.metrics.exposition import Page
from mindspore_serving.metrics.histogram import SECONDS, Histogram
from mindspore_serving.metrics.series import SLOT_SECONDS, Series, quantiles

NOW = 1000.0


def observed(*seconds):
    series = Series("add", 1, "cast")
    for one in seconds:
        series.observe(one, 0, NOW)
    return series


def parsed(page):
    return list(text_string_to_metric_families(page.render().decode()))


def buckets(series):
    page = Page()
    page.add("serving_request_seconds", series.seconds, *series.labels)
    (family,) = parsed(page)
    rows = {sample.labels.get("le", sample.name): sample.value for sample in family.samples}
    assert family.samples[0].labels.items() >= {"servable": "add", "method": "cast"}.items()
    return rows


def test_requests_are_counted_by_result():
    series = Series("add", 1, "cast")
    for code, num_instances in ((0, 3), (0, 2), (9, 7)):
        series.observe(0.25, code, NOW, num_instances)
    assert series.codes == {0: 2, 9: 1}
    assert series.num_instances == 5, "of those that succeeded"
    assert series.failed_seconds == 0.25


def test_buckets_are_cumulative_and_include_their_bound():
    found = buckets(observed(0.001, 0.0011, 0.003))
    assert found["0.0005"] == 0
    assert found["0.001"] == 1
    assert found["0.0025"] == 2
    assert found["0.005"] == 3
    assert found["+Inf"] == 3
    assert len(found) == len(SECONDS) + len(("+Inf", "_count", "_sum"))


def test_buckets_reach_to_five_minutes():
    found = buckets(observed(299.0, 301.0))
    assert found["120.0"] == 0
    assert found["300.0"] == 1
    assert found["+Inf"] == 2


def test_sum_and_count_of_seconds():
    found = buckets(observed(0.25, 0.5))
    assert found["serving_request_seconds_sum"] == 0.75
    assert found["serving_request_seconds_count"] == 2


def test_a_page_has_help_type_and_labels_of_the_catalog():
    page = Page()
    page.add("serving_workers", 2, "add", "1")
    page.add("serving_workers", 3, "sub", "2")
    page.add("serving_requests_in_flight", 7)
    workers, in_flight = parsed(page)
    assert workers.documentation == CATALOG["serving_workers"].help
    assert workers.type == "gauge"
    found = [(sample.labels, sample.value) for sample in workers.samples]
    assert found[1] == ({"servable": "sub", "version": "2"}, 3)
    assert [(sample.labels, sample.value) for sample in in_flight.samples] == [({}, 7)]


def test_a_name_with_quotes_and_newlines_stays_a_single_label():
    page = Page()
    page.add("serving_workers", 2, 'a"b\nc', "1")
    ((sample,),) = (family.samples for family in parsed(page))
    assert sample.labels["servable"] == 'a"b\nc'


def test_histograms_with_the_same_bounds_can_be_added():
    one, other = Histogram((1.0, 2.0)), Histogram((1.0, 2.0))
    one.observe(1.5)
    other.observe(2.0, times=2)
    one.add(other.total, other.counts)
    assert one.cumulative() == [("1.0", 0), ("2.0", 3), ("+Inf", 3)]
    assert one.total == 5.5


def at(seconds, when, series=None):
    series = series or Series("add", 1, "cast")
    for one in seconds:
        series.observe(one, 0, when)
    return series


def test_quantiles_are_a_tenth_too_many_at_most():
    milliseconds = [1 + number / 7 for number in range(2000)]
    series = observed(*[one / 1000 for one in reversed(milliseconds)])
    p50, p99 = quantiles([series], (0.5, 0.99), NOW)
    assert milliseconds[999] <= p50 <= 1.1 * milliseconds[999]
    assert milliseconds[1979] <= p99 <= 1.1 * milliseconds[1979]


def test_quantiles_are_those_of_all_methods_together():
    p50, p99 = quantiles([observed(*[0.002] * 98), observed(2.0, 2.0)], (0.5, 0.99), NOW)
    assert p50 == pytest.approx(2, rel=0.1)
    assert p99 == pytest.approx(2000, rel=0.1)


def test_quantiles_ignore_samples_over_a_minute_old():
    series = at([5.0] * 100, NOW)
    at([0.001], NOW + 45, series)
    assert quantiles([series], (0.5,), NOW + 45) == [pytest.approx(5000, rel=0.1)]
    assert quantiles([series], (0.5,), NOW + 65) == [pytest.approx(1, rel=0.1)]
    assert quantiles([series], (0.5, 0.99), NOW + 125) == [None, None]
    assert series.seconds.count == 101, "the counters of Prometheus forget nothing"


def test_nobody_asked_yet_and_an_answer_after_hours_have_no_quantile():
    assert quantiles([observed()], (0.5,), NOW) == [None]
    assert quantiles([observed(20_000.0)], (0.5,), NOW) == [None]
    assert quantiles([observed(0.0)], (0.5,), NOW) == [pytest.approx(0.1)]


def test_hours_of_requests_take_no_more_memory_than_a_minute_of_them():
    def live(series, begin, seconds):
        for second in range(seconds):
            series.observe(0.01, 0, begin + second)

    series = observed()
    live(series, NOW, int(10 * SLOT_SECONDS))
    tracemalloc.start()
    try:
        live(series, NOW + 10 * SLOT_SECONDS, 3600)
        grown, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert grown < 50_000  # what is new took the place of what was there before


def test_names_follow_the_conventions_of_prometheus():
    units = Counter()
    for one in CATALOG.values():
        assert one.help.endswith("."), one.name
        assert len(one.help.split()) >= 4, one.name
        assert (one.kind == "counter") == one.name.endswith("_total"), one.name
        assert not one.name.endswith(("_count", "_sum", "_bucket", "_ms", "_kb", "_percent"))
        assert bool(one.bounds) == (one.kind == "histogram"), one.name
        assert ("Seconds" in one.help) == ("seconds" in one.name), one.name
        units[one.name.removesuffix("_total").rpartition("_")[2]] += 1
    assert units["seconds"] >= 9
    assert units["bytes"] >= 10
