"""Table of usage: its rows, and that names of tenants do not fill metrics."""

from mindspore_serving.frontends.tenants import usage
from mindspore_serving.frontends.tenants.usage import UsageCounts, UsageKey, UsageTable
from mindspore_serving.metrics.exposition import Page

ANNA = UsageKey("a" * 64, "anna", "big")


def lines_of(table, refusals=()):
    page = Page()
    table.add_metrics(page, refusals)
    text = page.render(has_process=False).decode()
    return [line for line in text.splitlines() if not line.startswith("#")]


def test_usage_adds_up_by_tenant_and_servable():
    table = UsageTable()
    table.add(ANNA, UsageCounts(1, 0, 10, 5, 0))
    table.add(ANNA, UsageCounts(1, 1, 10, 0, 0))
    table.add(ANNA._replace(owner="b" * 64, name="bert"), UsageCounts(1, 0, 1, 1, 0))
    assert list(table.rows(ANNA.owner)) == [(ANNA, UsageCounts(2, 1, 20, 5, 0))]
    shown = lines_of(table, [("anna", {"tokens_per_day": 3})])
    assert 'serving_key_tokens_total{key="anna",kind="prompt",servable="big"} 20.0' in shown
    assert 'serving_key_requests_total{key="anna",result="failed",servable="big"} 1.0' in shown
    assert 'serving_key_refusals_total{key="anna",limit="tokens_per_day"} 3.0' in shown


def test_keys_with_a_name_are_counted_together_in_metrics():
    table = UsageTable()
    table.add(ANNA, UsageCounts(1))
    table.add(ANNA._replace(owner="b" * 64), UsageCounts(1))
    assert 'serving_key_requests_total{key="anna",result="ok",servable="big"} 2.0' in lines_of(
        table
    )


def test_names_beyond_the_limit_share_rows(monkeypatch):
    monkeypatch.setattr(usage, "MAX_ROWS", 3)
    monkeypatch.setattr(usage, "MAX_NAMES", 2)
    table = UsageTable()
    for number in range(10):
        table.add(UsageKey(str(number), f"name{number}", "big"), UsageCounts(1))
    rows = dict(table.rows())
    assert len(rows) == 4
    assert rows[UsageKey("", "(other)", "(other)")] == UsageCounts(7)
    names = {line.partition('key="')[2].partition('"')[0] for line in lines_of(table)}
    assert names == {"name0", "name1", "(other)"}


def test_unwritten_usage_is_taken_once_and_can_be_put_back():
    table = UsageTable()
    table.add(ANNA, UsageCounts(1, 0, 3))
    rows = table.take_unwritten()
    assert (rows, table.take_unwritten()) == ([(ANNA, UsageCounts(1, 0, 3))], [])
    table.add(ANNA, UsageCounts(1, 0, 4))
    table.put_back(rows)
    assert table.take_unwritten() == [(ANNA, UsageCounts(2, 0, 7))]
