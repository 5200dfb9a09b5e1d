"""Texts of `tune`: progress, the frontier as table and chart, the decision.  Pure."""

from collections.abc import Sequence
from typing import Any

import yaml

from mindspore_serving.cli import tune_chart
from mindspore_serving.cli.bench_summary import short
from mindspore_serving.cli.doctor import table
from mindspore_serving.cli.tune_chart import Dot, FrontierChart
from mindspore_serving.cli.tune_goals import Goal, measure, show
from mindspore_serving.cli.tune_knobs import describe
from mindspore_serving.cli.tune_results import (
    Point,
    Trial,
    Verdict,
    defaults_of,
    frontier,
    points,
    rows_of,
    score,
)
from mindspore_serving.cli.tune_search import Decision, is_hopeless

_FAR_WORSE = "far worse, and so not measured further"
_ENOUGH = 100  # answers from which a p99 has a meaning


def progress(trial: Trial, goal: Goal, elapsed: float) -> str:
    """Return the line about settings that were measured."""
    name = describe(trial.changes) if trial.changes else "defaults, against themselves"
    return f"{elapsed:6.0f} s  {name}: {_outcome(trial, goal)}"


def _outcome(trial: Trial, goal: Goal) -> str:
    if not trial.rounds:
        return f"not measured: {trial.failure}"
    value = score(trial, goal)
    if value is not None:
        verdict = _FAR_WORSE if is_hopeless(trial, goal) else value.verdict.value
        text = f"{goal.objective} {value} of the defaults, {verdict}"
        return text if value.value < float("inf") else "keeps the goal, which the defaults miss"
    rows = trial.rows.values()
    failed = sum(row["requests"] - row["answered"] for row in rows)
    if failed:
        errors = next(row["error_examples"] for row in rows if row["error_examples"])
        return f"{failed} requests failed: {next(iter(errors.values()))}"
    return f"misses the goal by a factor of {min(goal.excess(row) for row in rows):.2f}"


def all_points(trials: Sequence[Trial], goal: Goal, *, is_language: bool) -> list[Point]:
    """Return the points of all settings, with the defaults over the rounds of all."""
    changed = [trial for trial in trials if trial.changes and trial.rounds]
    newest = {describe(trial.changes): trial for trial in changed}  # those measured again are last
    rate = "tokens" if is_language else "rate"
    latency = next((limit.name for limit in goal.limits if limit.is_latency), "p99")
    return points([defaults_of(trials), *newest.values()], rate, latency)


def frontier_table(every: Sequence[Point], goal: Goal, *, is_language: bool) -> list[str]:
    """Return the table of the frontier, with the letters of the chart."""
    steps = frontier(every)
    first = ["first p50 ms", "first p99 ms"] * is_language
    rate = "tokens/s" if is_language else "requests/s"
    rows = [["", "clients", rate, *first, "p50 ms", "p99 ms", "answers", "goal", "settings"]]
    for letter, point in zip(tune_chart.letters(len(steps)), steps, strict=True):
        row = point.row
        times = [row["first_token_ms"], row["whole_ms"]] if is_language else [row["whole_ms"]]
        cells = [short(each[name]) if each else "-" for each in times for name in ("p50", "p99")]
        is_kept = "" if not goal.limits else "kept" if goal.excess(row) <= 1 else "missed"
        count = f"{row['answered']}{'' if row['answered'] >= _ENOUGH else ' (few)'}"
        rows.append(
            [letter, str(point.clients), short(point.rate), *cells, count, is_kept]
            + [describe(point.changes)]
        )
    return list(table(rows))


def chart(every: Sequence[Point], goal: Goal, *, is_language: bool) -> FrontierChart:
    """Return the chart of all points."""
    steps = frontier(every)
    letters = dict(zip(map(id, steps), tune_chart.letters(len(steps)), strict=True))
    latency = next((limit.name for limit in goal.limits if limit.is_latency), "p99")
    dots = [
        Dot(
            point.latency,
            point.rate,
            letters.get(id(point), ""),
            f"{describe(point.changes)}, {point.clients} clients: {short(point.rate)}/s, "
            f"{short(point.latency)} ms",
        )
        for point in every
    ]
    name = "tokens per second" if is_language else "requests per second"
    return FrontierChart(dots, f"{latency}, ms", name)


def error_line(trials: Sequence[Trial], goal: Goal) -> list[str]:
    """Return the line about the defaults against themselves, if they keep the goal."""
    value = score(trials[0], goal)
    if value is None or value.value == float("inf"):
        return []
    text = f"The defaults against themselves, which shows the error: {value}"
    if value.verdict in (Verdict.BETTER, Verdict.WORSE):
        text += "; differences of this size are none here, give more --time"
    return [text]


def failures(trials: Sequence[Trial]) -> list[str]:
    """Return a line for each of the settings that could not be measured."""
    return [
        f"not measured: {describe(trial.changes)}: {trial.failure}"
        for trial in trials
        if not trial.rounds and trial.failure
    ]


def best_reached(decision: Decision, goal: Goal) -> list[str]:
    """Return what comes nearest to an impossible goal."""
    trial = decision.trial
    if trial is None:
        return []
    rows = trial.rows
    clients = min(rows, key=lambda clients: goal.excess(rows[clients]))
    limits = [
        f"{limit.name} {show(limit.name, value)} (goal {limit})"
        for limit in goal.limits
        if (value := measure(limit.name, rows[clients])) is not None
    ]
    return [f"Best reached, {describe(trial.changes)}, {clients} clients: {', '.join(limits)}"]


def to_yaml(content: dict[str, Any]) -> str:
    """Return a configuration file."""
    return yaml.safe_dump(content, sort_keys=False, allow_unicode=True)


def to_json(trials: Sequence[Trial], goal: Goal, decision: Decision) -> dict[str, Any]:
    """Return all numbers as JSON."""
    return {
        "goal": str(goal),
        "decision": {
            "changes": None if decision.changes is None else dict(decision.changes),
            "text": decision.text,
        },
        "trials": [_trial_json(trial, goal) for trial in trials],
    }


def _trial_json(trial: Trial, goal: Goal) -> dict[str, Any]:
    value = score(trial, goal) if trial.rounds else None
    shown = None
    if value is not None and value.value < float("inf"):
        shown = {"value": value.value, "low": value.low, "high": value.high}
    return {
        "changes": dict(trial.changes),
        "failure": trial.failure,
        "rounds": len(trial.rounds),
        "ratio": shown,
        "runs": trial.rows,
        "defaults": rows_of(defaults for defaults, _ in trial.rounds),
    }
