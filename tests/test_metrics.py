"""Counts and histograms, read back by Prometheus' own parser."""

from prometheus_client.parser import text_string_to_metric_families

from mindspore_serving.errors import Code
from mindspore_serving.metrics import BUCKETS, Series, render

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
