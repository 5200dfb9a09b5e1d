"""The numbers of a run, from times chosen so that they can be worked out by hand."""

import pytest

from mindspore_serving.cli.bench_load import BenchOutcome, BenchRun, poisson
from mindspore_serving.cli.bench_protocols import BenchAnswer
from mindspore_serving.cli.bench_report import BenchTable
from mindspore_serving.cli.bench_summary import notes, short, summarize


def answered(due: float, sent: float, times: list[float], num_tokens: int) -> BenchOutcome:
    answer = BenchAnswer(times, num_prompt=10, num_cached=4, num_generated=num_tokens)
    return BenchOutcome(due, sent, times[-1] + 0.5, answer)


def two_answers_and_a_failure() -> BenchRun:
    outcomes = [
        answered(0.0, 0.0, [1.0, 1.2, 1.6], 4),
        answered(1.0, 1.5, [4.0, 4.1], 2),
        BenchOutcome(2.0, 2.0, 2.1, None, ("status 429", '{"error": "full"}')),
    ]
    return BenchRun("2 clients", outcomes, seconds=10.0, busy=1.0)


def table(rows: list[dict], *, has_memory: bool = False) -> list[str]:
    is_stream = rows[0]["first_token_ms"] is not None
    made = BenchTable(["2 clients"], is_stream=is_stream, has_memory=has_memory)
    return [*made.heading(), *map(made.line, rows)]


def test_numbers_of_a_run_match_their_names() -> None:
    row = summarize(two_answers_and_a_failure())
    assert (row["requests"], row["answered"], row["errors"]) == (3, 2, {"status 429": 1})
    assert row["requests_per_second"] == pytest.approx(0.2)
    assert row["tokens_per_second"] == pytest.approx(0.6)
    assert row["prompt_tokens_per_second"] == pytest.approx(2.0)
    assert (row["generated_tokens"], row["prompt_tokens"], row["cached_tokens"]) == (6, 20, 8)
    # from when they were due: 1.0 and 4.0 - 1.0 seconds
    assert row["first_token_ms"]["mean"] == pytest.approx(2000)
    assert row["first_token_ms"]["p50"] == pytest.approx(2000)
    assert row["first_token_ms"]["p90"] == pytest.approx(2800)
    assert row["between_pieces_ms"]["mean"] == pytest.approx((200 + 400 + 100) / 3)
    assert row["between_pieces_ms"]["p50"] == pytest.approx(200)
    assert row["per_token_ms"]["mean"] == pytest.approx((600 / 3 + 100 / 1) / 2)
    assert row["whole_ms"]["max"] == pytest.approx(3600)
    assert row["late_ms"]["max"] == pytest.approx(500)
    assert row["client_busy"] == pytest.approx(0.1)


def test_with_no_answer_there_are_no_latencies() -> None:
    failed = BenchOutcome(0.0, 0.0, 0.1, None, ("timeout", "timeout"))
    row = summarize(BenchRun("1 client", [failed], seconds=1.0))
    assert row["whole_ms"] is None
    assert row["first_token_ms"] is None
    assert table([row])[-1].split()[:4] == ["1", "client", "0", "1"]


def test_the_table_is_aligned_and_shows_streams_only_where_there_are_some() -> None:
    lines = table([summarize(two_answers_and_a_failure())])
    assert lines[0].endswith(" whole answer ms")
    heads = ["load", "done", "failed", "req/s", "tok/s"]
    assert lines[1].split() == [*heads, *["p50", "p90", "p99"] * 3]
    assert lines[2].split()[2:6] == ["2", "1", "0.20", "0.60"]
    assert len(lines[1]) == len(lines[2]) == len(lines[0])
    plain = BenchRun(
        "1 client", [BenchOutcome(0.0, 0.0, 0.25, BenchAnswer(is_finished=True))], seconds=1.0
    )
    assert table([summarize(plain)])[1].split()[-3:] == ["p50", "p90", "p99"]
    assert table([summarize(plain)])[2].split() == ["1", "client", "1", "0", "1.00", *["250"] * 3]


def test_failures_a_busy_client_and_late_requests_are_told() -> None:
    run = two_answers_and_a_failure()
    told = notes(summarize(run))
    assert told[0] == '2 clients: 1 x status 429: {"error": "full"}'
    assert "40% of the prompts' tokens were in the server's cache" in told[1]
    assert "sent late" in told[2]
    run.busy = 9.0
    assert any("busy for 90%" in note for note in notes(summarize(run)))


@pytest.mark.parametrize(
    ("value", "text"), [(0.0123, "0.01"), (9.99, "9.99"), (12.34, "12.3"), (123.4, "123")]
)
def test_numbers_have_three_digits(value: float, text: str) -> None:
    assert short(value) == text


def test_arrivals_have_the_rate_and_come_again_with_the_seed() -> None:
    times = poisson(4.0, 10_000, seed=1)
    assert times == poisson(4.0, 10_000, seed=1)
    assert times != poisson(4.0, 10_000, seed=2)
    assert times == sorted(times)
    # 10,000 gaps of mean 0.25 s: the error of their sum is 0.25 * 100 = 25
    assert times[-1] == pytest.approx(2500, abs=100)
    gaps = [b - a for a, b in zip(times, times[1:], strict=False)]
    # exponential: a share of exp(-1) is longer than the mean
    assert sum(gap > 0.25 for gap in gaps) / len(gaps) == pytest.approx(0.368, abs=0.02)


def test_memory_is_a_column_only_if_measured() -> None:
    row = summarize(two_answers_and_a_failure())
    lines = table([{**row, "memory_bytes": 300 << 20}, {**row, "memory_bytes": 0}], has_memory=True)
    heads = ["load", "done", "failed", "req/s", "tok/s", "MiB"]
    assert lines[1].split() == [*heads, *["p50", "p90", "p99"] * 3]
    assert [line.split()[6] for line in lines[2:]] == ["300", "-"]
