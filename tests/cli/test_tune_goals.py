"""Goals of `tune`: what is accepted, what is refused, and what a run is worth."""

import math

import pytest

from mindspore_serving.cli.tune_goals import Goal, Limit, measure, parse, show, to_goal
from mindspore_serving.errors import InvalidInputs


def row(p99: float = 40.0, rate: float = 100.0, errors: int = 0, first: float = 0.0) -> dict:
    """Numbers of a run with as many failures as `errors`."""
    whole = {"mean": p99 / 4, "p50": p99 / 4, "p90": p99 / 2, "p99": p99}
    return {
        "answered": 200,
        "errors": {"timeout": errors} if errors else {},
        "whole_ms": whole,
        "first_token_ms": {**whole, "p90": first} if first else None,
        "per_token_ms": None,
        "requests_per_second": rate,
        "tokens_per_second": 10 * rate,
    }


@pytest.mark.parametrize(
    ("text", "limits"),
    [
        ("", ()),
        ("p99<50ms", (Limit("p99", 50.0),)),
        (" p90 <= 0.3 s ", (Limit("p90", 300.0),)),
        ("rate>=200", (Limit("rate", 200.0),)),
        ("first_p50<1e2ms,tokens>5.5", (Limit("first_p50", 100.0), Limit("tokens", 5.5))),
        ("token_mean<9ms", (Limit("token_mean", 9.0),)),
    ],
)
def test_goals_are_limits_of_latencies_and_rates(text: str, limits: tuple[Limit, ...]) -> None:
    assert parse(text) == limits


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("fast", "--goal is 'fast', expected limits as p99<50ms, rate>200 or first_p90<0.3s"),
        ("p99<50ms,", "--goal is 'p99<50ms,', expected limits as"),
        ("p99=50ms", "expected limits as"),
        ("p98<50ms", "'p98', which is not measured; did you mean 'p99'"),
        ("latency<50ms", "measures are p50, p90, p99, mean, first_p50"),
        ("p99>50ms", "'p99>50ms': the limit of a latency is p99<"),
        ("rate<50", "'rate<50': the limit of a rate is rate>"),
        ("p99<50", "'p99<50': a limit of p99 needs ms or s, as p99<50ms"),
        ("rate>50ms", "'rate>50ms': a limit of rate has no ms: rate>200"),
        ("p99<0ms", "'p99<0ms': 0 is no number over 0"),
        ("p99<1e999ms", "1e999 is no number over 0"),
        ("p99<-5ms", "-5 is no number over 0"),
        ("p99<1.2.3ms", "1.2.3 is no number over 0"),
    ],
)
def test_a_malformed_goal_is_refused_with_the_accepted_forms(text: str, said: str) -> None:
    with pytest.raises(InvalidInputs) as error:
        parse(text)
    assert said in str(error.value)


def test_the_objective_is_a_rate_unless_a_rate_is_the_limit() -> None:
    assert to_goal((), is_language=False).objective == "rate"
    assert to_goal((), is_language=True).objective == "tokens"
    assert to_goal(parse("p99<50ms"), is_language=False).objective == "rate"
    assert to_goal(parse("rate>50"), is_language=False).objective == "p99"
    assert to_goal(parse("rate>50,p99<1s"), is_language=False).objective == "rate"


@pytest.mark.parametrize("text", ["tokens>5", "first_p90<1s", "token_p50<1s"])
def test_a_measure_of_language_models_is_refused_elsewhere(text: str) -> None:
    with pytest.raises(InvalidInputs, match="here are p50, p90, p99, mean, rate"):
        to_goal(parse(text), is_language=False)
    assert to_goal(parse(text), is_language=True).limits


def test_the_excess_is_the_factor_by_which_the_worst_limit_is_missed() -> None:
    goal = to_goal(parse("p99<50ms,rate>200"), is_language=False)
    assert goal.excess(row(p99=40, rate=400)) == 0.8
    assert goal.excess(row(p99=40, rate=100)) == 2.0
    assert goal.excess(row(p99=150, rate=100)) == 3.0
    assert goal.excess(row(rate=0)) == math.inf
    assert Goal((), "rate").excess(row()) == 0.0


def test_a_run_with_a_failed_request_keeps_no_goal() -> None:
    assert Goal((), "rate").excess(row(errors=1)) == math.inf
    assert Goal((), "rate").excess({**row(), "answered": 0}) == math.inf


def test_a_latency_that_a_run_has_not_is_missed() -> None:
    goal = to_goal(parse("first_p90<1s"), is_language=True)
    assert goal.excess(row()) == math.inf
    assert goal.excess(row(first=500.0)) == 0.5


def test_a_larger_value_is_better_for_rates_and_latencies() -> None:
    rate, latency = Goal((), "rate"), Goal((), "p99")
    assert rate.value(row(rate=2)) > rate.value(row(rate=1))
    assert latency.value(row(p99=1)) > latency.value(row(p99=2))


def test_goals_are_shown_with_units() -> None:
    assert str(to_goal(parse("p99<0.05s"), is_language=False)) == "highest rate with p99<50ms"
    assert str(to_goal((), is_language=True)) == "highest tokens"
    assert str(to_goal(parse("rate>9"), is_language=False)) == "lowest p99 with rate>9"
    assert show("rate", 1234.5) == "1234/s"
    assert measure("tokens", row(rate=3)) == 30.0
