"""Counts and histograms, read back by Prometheus' own parser; quantiles of the last minute."""

import tracemalloc

import pytest
from prometheus_client.parser import text_string_to_metric_families

from mindspore_serving.errors import Code
from mindspore_serving.metrics import (
    BUCKETS,
    SLOT_SECONDS,
    Histogram,
    Series,
    quantiles,
    render,
    render_waits,
)

LABELS = {"servable": "add", "version": "1", "method": "cast"}


def observed(*seconds_and_codes):
    series = Series("add", 1, "cast")
    for seconds, code in seconds_and_codes:
        series.observe(seconds, code)
    return series


def parse(series=(), gauges=None):
    text = render(lambda: series, lambda: gauges or {}, lambda code: Code(code).name).decode()
    families = list(text_string_to_metric_families(text))
    return {sample.name: family for family in families for sample in family.samples}


def buckets(families):
    samples = families["serving_request_seconds_bucket"].samples
    rows = [sample for sample in samples if sample.name.endswith("_bucket")]
    return {sample.labels["le"]: sample.value for sample in rows}


def value(families, name):
    (sample,) = [sample for sample in families[name].samples if sample.name == name]
    return sample.value


def test_requests_are_counted_by_result():
    families = parse([observed((0.1, 0), (0.1, 0), (0.1, 9))])
    samples = families["serving_requests_total"].samples
    counts = {sample.labels["code"]: sample.value for sample in samples}
    assert counts == {"OK": 2, "DEADLINE_EXCEEDED": 1}
    assert {key: samples[0].labels[key] for key in LABELS} == LABELS


def test_buckets_are_cumulative_and_include_their_bound():
    found = buckets(parse([observed((0.001, 0), (0.0011, 0), (0.003, 0))]))
    assert found["0.0005"] == 0
    assert found["0.001"] == 1
    assert found["0.0025"] == 2
    assert found["0.005"] == 3
    assert found["+Inf"] == 3
    assert len(found) == len(BUCKETS) + 1


def test_a_request_slower_than_every_bucket_is_counted_at_the_end():
    found = buckets(parse([observed((60.0, 0))]))
    assert found["10.0"] == 0
    assert found["+Inf"] == 1


def test_sum_and_count_of_seconds():
    families = parse([observed((0.25, 0), (0.5, 3))])
    assert value(families, "serving_request_seconds_sum") == 0.75
    assert value(families, "serving_request_seconds_count") == 2


def test_each_series_has_its_own_labels():
    other = Series("sub", 2, "m")
    other.observe(0.1, 0)
    samples = parse([observed((0.1, 0)), other])["serving_requests_total"].samples
    assert [(s.labels["servable"], s.labels["version"], s.value) for s in samples] == [
        ("add", "1", 1),
        ("sub", "2", 1),
    ]


def test_gauges_are_present_values():
    families = parse(gauges={"queue_length": {("add", "1"): 7.0}, "workers": {("add", "1"): 2.0}})
    assert value(families, "serving_queue_length") == 7
    (sample,) = families["serving_workers"].samples
    assert sample.labels == {"servable": "add", "version": "1"}


def test_a_name_with_quotes_and_newlines_stays_one_label():
    series = Series('a"b\nc', 1, "m")
    series.observe(0.1, 0)
    (sample,) = parse([series])["serving_requests_total"].samples
    assert sample.labels["servable"] == 'a"b\nc'


def test_nothing_served_yet_is_still_a_page():
    assert parse() == {}


class Clock:
    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


def timed(clock, *seconds):
    series = Series("add", 1, "cast", clock)
    for one in seconds:
        series.observe(one, 0)
    return series


def test_quantiles_are_a_tenth_too_many_at_most():
    clock = Clock()
    milliseconds = [1 + number / 7 for number in range(2000)]
    series = timed(clock, *[one / 1000 for one in reversed(milliseconds)])
    p50, p99 = quantiles([series], (0.5, 0.99), clock.now)
    assert milliseconds[999] <= p50 <= 1.1 * milliseconds[999]
    assert milliseconds[1979] <= p99 <= 1.1 * milliseconds[1979]


def test_quantiles_are_those_of_all_methods_together():
    clock = Clock()
    fast, slow = timed(clock, *[0.002] * 98), timed(clock, 2.0, 2.0)
    p50, p99 = quantiles([fast, slow], (0.5, 0.99), clock.now)
    assert p50 == pytest.approx(2, rel=0.1)
    assert p99 == pytest.approx(2000, rel=0.1)


def test_quantiles_forget_what_is_over_a_minute_old():
    clock = Clock()
    series = timed(clock, *[5.0] * 100)
    clock.now += 45
    series.observe(0.001, 0)
    assert quantiles([series], (0.5,), clock.now) == [pytest.approx(5000, rel=0.1)]
    clock.now += 20
    assert quantiles([series], (0.5,), clock.now) == [pytest.approx(1, rel=0.1)]
    clock.now += 60
    assert quantiles([series], (0.5, 0.99), clock.now) == [None, None]
    assert series.seconds.count == 101, "the counters of Prometheus forget nothing"


def test_nobody_asked_yet_and_an_answer_after_hours_have_no_quantile():
    clock = Clock()
    assert quantiles([timed(clock)], (0.5,), clock.now) == [None]
    assert quantiles([timed(clock, 20_000.0)], (0.5,), clock.now) == [None]
    assert quantiles([timed(clock, 0.0)], (0.5,), clock.now) == [pytest.approx(0.1)]


def test_hours_of_requests_take_no_more_memory_than_a_minute_of_them():
    clock = Clock()

    def live(series, seconds):
        for _ in range(seconds):
            clock.now += 1
            series.observe(0.01, 0)

    series = timed(clock)
    live(series, int(10 * SLOT_SECONDS))
    tracemalloc.start()
    try:
        live(series, 3600)
        grown, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert grown < 50_000  # what is new took the place of what was there before


def test_waits_are_histograms_by_servable_and_version():
    waits = Histogram((0.1, 1.0))
    for seconds in (0.1, 0.5, 3.0):
        waits.observe(seconds)
    text = render_waits("llm_queue_seconds", "Waited", {("tiny", "2"): waits}).decode()
    (family,) = text_string_to_metric_families(text)
    assert (family.name, family.type) == ("serving_llm_queue_seconds", "histogram")
    found = {sample.labels.get("le", sample.name[-3:]): sample.value for sample in family.samples}
    assert found == {"0.1": 1, "1.0": 2, "+Inf": 3, "unt": 3, "sum": 3.6}
    assert family.samples[0].labels["servable"] == "tiny"
    assert family.samples[0].labels["version"] == "2"
