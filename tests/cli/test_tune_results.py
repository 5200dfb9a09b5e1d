"""Rounds of `tune`: ratios with intervals, the best load, and the frontier."""

import math

import pytest
from scipy import stats

from mindspore_serving.cli.bench_load import BenchOutcome, BenchRun
from mindspore_serving.cli.bench_protocols import BenchAnswer
from mindspore_serving.cli.tune_goals import parse, to_goal
from mindspore_serving.cli.tune_results import (
    Gain,
    Point,
    Trial,
    Verdict,
    best_load,
    defaults_of,
    frontier,
    nearest,
    points,
    ratio,
    rows_of,
    score,
)

FASTEST = to_goal((), is_language=False)


def a_run(latencies: list[float], seconds: float, failed: int = 0) -> BenchRun:
    """A run with answers of these latencies in seconds."""
    answer = BenchAnswer(is_finished=True)
    outcomes = [BenchOutcome(0.0, 0.0, latency, answer) for latency in latencies]
    outcomes += [BenchOutcome(0.0, 0.0, 1.0, None, ("timeout", "late"))] * failed
    return BenchRun("", outcomes, seconds, 0.0)


def at_rate(rate: float, latency: float = 0.01, failed: int = 0) -> BenchRun:
    return a_run([latency] * 10, 10 / rate, failed)


def a_trial(rates: list[tuple[float, float]], latency: float = 0.01) -> Trial:
    """Rounds at one client with the rates of the defaults and of the settings."""
    rounds = [({1: at_rate(a)}, {1: at_rate(b, latency)}) for a, b in rates]
    return Trial({"backend": "openvino"}, rounds)


def test_the_interval_is_that_of_students_t() -> None:
    ratios = [1.1, 1.3, 1.2, 1.6, 1.4]
    gain = ratio(ratios)
    assert gain is not None
    logs = [math.log(each) for each in ratios]
    mean, error = sum(logs) / 5, stats.sem(logs)
    low, high = stats.t.interval(0.95, 4, mean, error)
    assert gain.value == pytest.approx(math.exp(mean))
    assert (gain.low, gain.high) == pytest.approx((math.exp(low), math.exp(high)), rel=1e-3)


@pytest.mark.parametrize("count", [2, 3, 6, 11])
def test_the_quantiles_are_those_of_the_distribution(count: int) -> None:
    ratios = [math.exp((-1) ** n) for n in range(count)]
    gain = ratio(ratios)
    assert gain is not None
    logs = [math.log(each) for each in ratios]
    half = stats.t.ppf(0.975, count - 1) * stats.sem(logs)
    assert math.log(gain.high / gain.low) / 2 == pytest.approx(half, rel=1e-3)


def test_beyond_eleven_rounds_the_interval_is_rather_too_wide() -> None:
    ratios = [math.exp((-1) ** n) for n in range(30)]
    gain = ratio(ratios)
    assert gain is not None
    half = stats.t.ppf(0.975, 29) * stats.sem([math.log(each) for each in ratios])
    assert half < math.log(gain.high / gain.low) / 2 < 1.1 * half


@pytest.mark.parametrize(
    ("gain", "verdict"),
    [
        (Gain(1.2, 1.1, 1.3, 5), Verdict.BETTER),
        (Gain(0.8, 0.7, 0.9, 5), Verdict.WORSE),
        (Gain(1.2, 0.9, 1.6, 5), Verdict.EQUAL),
        (Gain(1.2, 1.1, 1.3, 2), Verdict.UNKNOWN),
        (Gain(math.inf, math.inf, math.inf, 4), Verdict.BETTER),
    ],
)
def test_a_difference_is_shown_if_the_interval_leaves_out_1(gain: Gain, verdict: Verdict) -> None:
    assert gain.verdict is verdict


def test_no_round_has_no_ratio_and_a_single_round_no_interval() -> None:
    assert ratio([]) is None
    gain = ratio([2.0])
    assert gain is not None
    assert (gain.value, gain.low, gain.high) == (pytest.approx(2.0), 0.0, math.inf)
    assert str(gain) == "2.00"


def test_a_ratio_is_over_1_if_the_objective_is_better() -> None:
    faster = a_trial([(100, 200), (50, 100), (70, 140)])
    gain = score(faster, FASTEST)
    assert gain is not None
    assert (gain.value, gain.num_rounds) == (pytest.approx(2.0), 3)
    latency = to_goal(parse("rate>1"), is_language=False)
    slower = score(a_trial([(100, 100)] * 3, latency=0.04), latency)
    assert slower is not None
    assert slower.value == pytest.approx(0.25)


def test_each_round_is_compared_with_the_defaults_of_the_same_round() -> None:
    """Other work on the machine, which slows both sides of a round, does not count."""
    gain = score(a_trial([(100, 110), (20, 22), (400, 440)]), FASTEST)
    assert gain is not None
    assert (gain.low, gain.high) == pytest.approx((1.1, 1.1))


def test_the_best_load_keeps_the_goal() -> None:
    rows = rows_of([{1: at_rate(10, 0.01), 4: at_rate(30, 0.04), 16: at_rate(40, 0.2)}])
    assert best_load(rows, FASTEST) == 16
    assert best_load(rows, to_goal(parse("p99<50ms"), is_language=False)) == 4
    assert best_load(rows, to_goal(parse("p99<5ms"), is_language=False)) is None
    assert best_load(rows, to_goal(parse("rate>20"), is_language=False)) == 4


def test_a_load_with_failures_is_never_the_best() -> None:
    rows = rows_of([{1: at_rate(10), 4: at_rate(100, failed=1)}])
    assert best_load(rows, FASTEST) == 1


def test_keeping_a_goal_that_the_defaults_miss_is_an_infinite_ratio() -> None:
    goal = to_goal(parse("rate>150"), is_language=False)
    gain = score(a_trial([(100, 200)] * 3), goal)
    assert gain is not None
    assert gain.value == math.inf
    assert score(a_trial([(200, 100)] * 3), goal) is None


def test_rounds_are_joined_for_quantiles() -> None:
    rows = rows_of([{2: a_run([0.01] * 50, 1.0)}, {2: a_run([0.03] * 50, 3.0)}])
    assert rows[2]["answered"] == 100
    assert rows[2]["requests_per_second"] == 25.0
    assert rows[2]["whole_ms"]["p50"] == pytest.approx(20.0)
    assert rows[2]["whole_ms"]["p99"] == pytest.approx(30.0)


def test_the_defaults_have_the_rounds_of_all_trials() -> None:
    defaults = defaults_of([a_trial([(10, 1)]), a_trial([(30, 1), (20, 1)])])
    assert defaults.changes == {}
    assert defaults.rows[1]["answered"] == 30


def a_point(latency: float, rate: float) -> Point:
    return Point({}, 1, latency, rate, {})


def test_the_frontier_has_points_that_no_other_beats_in_both() -> None:
    best = [a_point(1, 10), a_point(2, 30), a_point(5, 31)]
    beaten = [a_point(2, 20), a_point(3, 30), a_point(9, 5), a_point(1, 9)]
    assert frontier([*beaten, *best]) == best
    assert frontier([]) == []


def test_the_frontier_has_no_two_equal_points() -> None:
    assert len(frontier([a_point(1, 10), a_point(1, 10)])) == 1


def test_points_leave_out_loads_with_failures() -> None:
    rounds = [({1: at_rate(1)}, {1: at_rate(10), 4: at_rate(20, failed=1)})]
    every = points([Trial({"cores": "0"}, rounds)], "rate")
    assert [(point.clients, point.rate) for point in every] == [(1, pytest.approx(10))]


def test_the_nearest_settings_miss_an_impossible_goal_by_the_least() -> None:
    goal = to_goal(parse("p99<1ms"), is_language=False)
    near, far = a_trial([(1, 1)], latency=0.002), a_trial([(1, 1)], latency=0.02)
    assert nearest([far, near], goal) == (near, 1)
    failed = Trial({}, [({1: at_rate(1)}, {1: at_rate(1, failed=1)})])
    assert nearest([failed], goal) is None
    assert nearest([], goal) is None
