"""Search plan of `tune`: which settings are measured, when it stops, and what is decided."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from mindspore_serving.cli.tune_goals import Goal, parse, to_goal
from mindspore_serving.cli.tune_knobs import Knob, Subject
from mindspore_serving.cli.tune_results import Trial
from mindspore_serving.cli.tune_search import (
    MAX_ROUNDS,
    SEARCH_ROUNDS,
    Decision,
    SettingsSearch,
    TimePlan,
    decide,
    finalists,
    is_hopeless,
    is_settled,
    merit,
    run_seconds,
)
from tests.cli.test_tune_results import FASTEST, at_rate

SUBJECT = Subject("onnx", is_language=False, cores=range(4), clients=16)
KNOBS = [
    Knob("a", ("a",), lambda subject, settings: [{"a": 1}, {"a": 2}]),
    Knob("b", ("b",), lambda subject, settings: [{"b": 1}] if settings.get("a") == 2 else []),
]
Rates = Callable[[Mapping[str, Any]], float]


def a_trial(changes: Mapping[str, Any], rates: Rates, rounds: int = SEARCH_ROUNDS) -> Trial:
    """Rounds whose rates differ a little, so that intervals are not empty."""
    return Trial(
        changes,
        [
            ({1: at_rate(100)}, {1: at_rate(rates(changes) * (1 + 0.001 * (-1) ** n))})
            for n in range(rounds)
        ],
    )


def search(rates: Rates, goal: Goal = FASTEST, knobs: list[Knob] = KNOBS) -> SettingsSearch:
    """A search to its end."""
    plan = SettingsSearch(SUBJECT, knobs, goal)
    for changes in plan:
        plan.report(a_trial(changes, rates))
    return plan


def rate_of(changes: Mapping[str, Any]) -> float:
    return 100.0 + 50 * (changes.get("a") == 2) + 30 * (changes.get("b") == 1)


def test_the_defaults_are_measured_first_and_a_knob_goes_on_from_the_best() -> None:
    plan = search(rate_of)
    assert [trial.changes for trial in plan.trials] == [
        {},
        {"a": 1},
        {"a": 2},
        {"a": 2, "b": 1},
        {"a": 1, "b": 1},
    ]
    assert plan.is_complete


def test_a_further_pass_begins_only_if_a_setting_helped() -> None:
    plan = search(lambda changes: 100.0)
    assert [trial.changes for trial in plan.trials] == [{}, {"a": 1}, {"a": 2}]
    assert plan.is_complete


def test_no_settings_are_measured_twice() -> None:
    plan = search(rate_of)
    shown = [str(trial.changes) for trial in plan.trials]
    assert len(set(shown)) == len(shown)


def test_a_small_gain_is_no_better_base() -> None:
    plan = search(lambda changes: 101.0 if changes.get("a") == 2 else 100.0)
    assert {"a": 2, "b": 1} not in [trial.changes for trial in plan.trials]


def test_a_search_that_is_ended_is_not_complete() -> None:
    plan = SettingsSearch(SUBJECT, KNOBS, FASTEST)
    for changes in plan:
        plan.report(a_trial(changes, rate_of))
        if changes:
            break
    assert not plan.is_complete


def test_failed_settings_are_left_out_of_the_search_and_of_the_finalists() -> None:
    plan = SettingsSearch(SUBJECT, KNOBS, FASTEST)
    for changes in plan:
        failed = changes.get("a") == 2
        plan.report(Trial(changes, failure="no") if failed else a_trial(changes, lambda _: 200.0))
    assert finalists(plan.trials, FASTEST) == [{"a": 1}]


def test_settings_that_keep_the_goal_win_over_faster_settings() -> None:
    goal = to_goal(parse("p99<15ms"), is_language=False)
    slow = Trial({"a": 1}, [({1: at_rate(100)}, {1: at_rate(50, latency=0.01)})])
    fast = Trial({"a": 2}, [({1: at_rate(100)}, {1: at_rate(500, latency=0.02)})])
    assert merit(slow, goal) > merit(fast, goal)
    assert merit(fast, FASTEST) > merit(slow, FASTEST)


def test_an_unreached_goal_leads_the_search_to_smaller_misses() -> None:
    goal = to_goal(parse("rate>1000"), is_language=False)
    plan = search(rate_of, goal)
    assert {"a": 2, "b": 1} in [trial.changes for trial in plan.trials]
    assert merit(Trial({}), goal) == (0, 0.0)


def test_finalists_are_the_best_and_never_the_defaults() -> None:
    plan = search(lambda changes: 100.0 - 10 * bool(changes))
    assert {} not in finalists(plan.trials, FASTEST)
    assert finalists(search(rate_of).trials, FASTEST)[0] == {"a": 2, "b": 1}


def test_settings_that_are_far_worse_in_two_rounds_need_no_third() -> None:
    changes = {"a": 1}
    assert is_hopeless(a_trial(changes, lambda _: 50.0, rounds=2), FASTEST)
    assert not is_hopeless(a_trial({}, lambda _: 50.0, rounds=2), FASTEST)
    assert not is_hopeless(a_trial(changes, lambda _: 50.0, rounds=1), FASTEST)
    assert not is_hopeless(a_trial(changes, lambda _: 90.0, rounds=2), FASTEST)
    impossible = to_goal(parse("rate>1000"), is_language=False)
    assert not is_hopeless(a_trial(changes, lambda _: 50.0, rounds=2), impossible)


# --- time ---------------------------------------------------------------------------------------


def test_settings_with_a_failed_request_need_no_further_round() -> None:
    failed = ({1: at_rate(100)}, {1: at_rate(900, failed=1)})
    assert is_hopeless(Trial({"a": 1}, [failed]), FASTEST)
    assert not is_hopeless(Trial({"a": 1}, [({1: at_rate(100)}, {1: at_rate(90)})]), FASTEST)


def test_candidates_leave_time_for_finalists() -> None:
    plan = TimePlan(total=100.0, start=4.0, round=2.0)
    assert plan.candidate == 4 + 2 * (SEARCH_ROUNDS + 1)
    assert plan.fits_candidate(60 - plan.candidate, 2)
    assert not plan.fits_candidate(61 - plan.candidate, 2)


def test_a_candidate_is_measured_whatever_the_time() -> None:
    plan = TimePlan(total=10.0, start=4.0, round=2.0)
    assert plan.fits_candidate(11.0, 1)
    assert not plan.fits_candidate(1.0, 2)


def test_finalists_get_rounds_until_the_time_ends_and_a_few_in_any_case() -> None:
    plan = TimePlan(total=100.0, start=4.0, round=2.0)
    assert plan.needs_round(97.0, 20)
    assert not plan.needs_round(97.1, 20)
    assert plan.needs_round(200.0, SEARCH_ROUNDS - 1)
    assert not plan.needs_round(200.0, SEARCH_ROUNDS)
    assert not plan.needs_round(0.0, MAX_ROUNDS)


def test_runs_are_longer_if_there_is_more_time() -> None:
    assert run_seconds(10) < run_seconds(300) < run_seconds(700)
    assert run_seconds(1e6) == run_seconds(1e7)


def test_the_warm_up_goes_on_while_runs_get_faster() -> None:
    assert not is_settled([])
    assert not is_settled([100.0])
    assert not is_settled([100.0, 120.0])
    assert is_settled([100.0, 120.0, 125.0])
    assert is_settled([100.0, 90.0])
    assert is_settled([1.0, 2.0, 4.0, 8.0, 16.0, 32.0])


# --- the decision -------------------------------------------------------------------------------


def decision(rates: Rates, goal: Goal = FASTEST, rounds: int = 6) -> Decision:
    trials = search(rates, goal).trials
    again = [a_trial(changes, rates, rounds) for changes in finalists(trials, goal)]
    return decide(again, trials, goal)


def test_better_settings_are_chosen_with_their_interval() -> None:
    made = decision(rate_of)
    assert made.changes == {"a": 2, "b": 1}
    assert made.text.startswith("Best: a 2, b 1: rate: 1.80 (1.80 to 1.80) times as good")
    assert "6 rounds" in made.text


def test_equal_settings_leave_the_defaults() -> None:
    made = decision(lambda changes: 100.0)
    assert made.changes == {}
    assert "the defaults are best, within the error" in made.text


def test_worse_settings_leave_the_defaults() -> None:
    made = decision(lambda changes: 100.0 if not changes else 80.0)
    assert made.changes == {}
    assert "all other settings that were measured again are worse" in made.text


def test_few_rounds_decide_nothing() -> None:
    made = decision(rate_of, rounds=2)
    assert made.changes == {}
    assert "too few rounds to tell (2)" in made.text


def test_the_luck_of_the_search_does_not_decide() -> None:
    trials = search(rate_of).trials
    made = decide([a_trial({"a": 2, "b": 1}, lambda _: 100.0, 6)], trials, FASTEST)
    assert made.changes == {}


def test_an_interrupted_search_chooses_nothing_but_shows_its_best() -> None:
    made = decide([], search(rate_of).trials, FASTEST)
    assert made.changes is None
    assert made.text.startswith("Not decided: nothing was measured again; best in the search, by ")
    assert made.text.endswith(": a 2, b 1")


def test_settings_that_alone_keep_the_goal_are_chosen() -> None:
    made = decision(rate_of, to_goal(parse("rate>150"), is_language=False))
    assert made.changes == {"a": 2, "b": 1}
    assert "which the defaults miss" in made.text


def test_an_impossible_goal_has_no_settings_but_the_nearest() -> None:
    goal = to_goal(parse("rate>1000"), is_language=False)
    made = decision(rate_of, goal)
    assert made.changes is None
    assert made.text.startswith("Impossible: no settings that were measured keep the goal")
    assert made.trial is not None
    assert made.trial.changes == {"a": 2, "b": 1}
    assert math.isclose(goal.excess(made.trial.rows[1]), 1000 / 180, rel_tol=0.01)


def test_without_other_settings_nothing_is_decided() -> None:
    made = decide([], [a_trial({}, lambda _: 100.0)], FASTEST)
    assert made.changes is None
    assert made.text.startswith("Not tuned: no settings but the defaults were measured")


@pytest.mark.parametrize("goal", ["", "rate>1000"])
def test_settings_whose_requests_fail_are_never_chosen(goal: str) -> None:
    limits = to_goal(parse(goal), is_language=False)
    failed = Trial({"a": 1}, [({1: at_rate(100)}, {1: at_rate(900, failed=1)})] * 6)
    assert decide([failed], [a_trial({}, lambda _: 100.0), failed], limits).changes in ({}, None)
    assert finalists([failed], limits) == []
