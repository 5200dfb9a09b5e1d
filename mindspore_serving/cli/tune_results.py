"""Results of `tune`: runs of settings in turn with the defaults, ratios and the frontier.  Pure.

A round is a run of the defaults and one of the settings at each load, one after the other, so that
other work on the machine meets both alike.  Loads are numbers of clients.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeAlias

import numpy as np

from mindspore_serving.cli.bench_load import BenchRun
from mindspore_serving.cli.bench_summary import summarize
from mindspore_serving.cli.tune_goals import Goal, measure

Runs: TypeAlias = Mapping[int, BenchRun]  # by load
Row: TypeAlias = dict[str, Any]

# Quantiles 0.975 of Student's t for 1 to 10 degrees of freedom; the last holds beyond, too.
_STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
MIN_ROUNDS = 3  # of a ratio with an interval


class Verdict(Enum):
    """Outcome of a comparison with the defaults."""

    BETTER = "better than the defaults"
    WORSE = "worse than the defaults"
    EQUAL = "no difference shown"
    UNKNOWN = "too few rounds to be sure"


@dataclass(frozen=True, slots=True)
class Gain:
    """Gain of the objective to that of the defaults, over 1 if better, with its 95 % interval."""

    value: float
    low: float
    high: float
    num_rounds: int

    @property
    def verdict(self) -> Verdict:
        if self.num_rounds < MIN_ROUNDS:
            return Verdict.UNKNOWN
        if self.low <= 1 <= self.high:
            return Verdict.EQUAL
        return Verdict.BETTER if self.low > 1 else Verdict.WORSE

    def __str__(self) -> str:
        text = f"{self.value:.2f}"
        if self.num_rounds > 1:
            text += f" ({self.low:.2f} to {self.high:.2f})"
        return text


@dataclass(slots=True)
class Trial:
    """Settings that were measured: changes of the defaults, and their rounds.

    `rounds` have the runs of the defaults and of the settings; `failure` is why there are none.
    """

    changes: Mapping[str, Any]
    rounds: list[tuple[Runs, Runs]] = field(default_factory=list)
    failure: str = ""

    @property
    def rows(self) -> dict[int, Row]:
        """Numbers of the settings by load, over all rounds."""
        return rows_of(settings for _, settings in self.rounds)

    @property
    def default_rows(self) -> dict[int, Row]:
        """Numbers of the defaults in the same rounds."""
        return rows_of(defaults for defaults, _ in self.rounds)


@dataclass(frozen=True, slots=True)
class Point:
    """Settings at one load: milliseconds, and a rate."""

    changes: Mapping[str, Any]
    clients: int
    latency: float
    rate: float
    row: Row


def rows_of(rounds: Iterable[Runs]) -> dict[int, Row]:
    """Return the numbers of each load over several rounds."""
    runs: dict[int, list[BenchRun]] = {}
    for each in rounds:
        for clients, run in each.items():
            runs.setdefault(clients, []).append(run)
    return {clients: summarize(_joined(parts)) for clients, parts in sorted(runs.items())}


def defaults_of(trials: Iterable[Trial]) -> Trial:
    """Return the defaults as a trial, with their rounds of all trials."""
    return Trial({}, [(runs, runs) for trial in trials for runs, _ in trial.rounds])


def best_load(rows: Mapping[int, Row], goal: Goal) -> int | None:
    """Return the load with the best value of those at which the goal is kept; None without such."""
    kept = [clients for clients, row in rows.items() if goal.excess(row) <= 1]
    return max(kept, key=lambda clients: goal.value(rows[clients]), default=None)


def score(trial: Trial, goal: Goal) -> Gain | None:
    """Return the ratio to the defaults, each side at its best load.

    Returns None if the settings keep the goal at no load, or have no rounds; a ratio of infinity if
    the defaults keep it at none.
    """
    load, default_load = best_load(trial.rows, goal), best_load(trial.default_rows, goal)
    if load is None:
        return None
    if default_load is None:
        return Gain(math.inf, math.inf, math.inf, len(trial.rounds))
    pairs = (
        (goal.value(summarize(defaults[default_load])), goal.value(summarize(settings[load])))
        for defaults, settings in trial.rounds
    )
    return ratio([settings / defaults for defaults, settings in pairs if defaults and settings])


def ratio(ratios: Sequence[float]) -> Gain | None:
    """Return the geometric mean of the ratios of rounds with the interval of Student's t.

    None without rounds; a single round has no interval: from 0 to infinity.
    """
    count = len(ratios)
    if not count:
        return None
    logs = np.log(np.asarray(ratios, np.float64))
    mean = float(logs.mean())
    if count == 1:
        return Gain(math.exp(mean), 0.0, math.inf, 1)
    quantile = _STUDENT[min(count - 1, len(_STUDENT)) - 1]
    half = quantile * float(logs.std(ddof=1)) / math.sqrt(count)
    return Gain(math.exp(mean), math.exp(mean - half), math.exp(mean + half), count)


def points(trials: Iterable[Trial], rate: str, latency: str = "p99") -> list[Point]:
    """Return a point for each load of each of the trials; loads with failed requests have none.

    `rate` and `latency` are measures of `tune_goals`.
    """
    every = []
    for trial in trials:
        for clients, row in trial.rows.items():
            milliseconds, per_second = measure(latency, row), measure(rate, row)
            if not row["errors"] and milliseconds and per_second:
                every.append(Point(trial.changes, clients, milliseconds, per_second, row))
    return every


def frontier(every: Sequence[Point]) -> list[Point]:
    """Return the points that no other beats in both latency and rate, by rising latency."""
    kept: list[Point] = []
    for point in sorted(every, key=lambda point: (point.latency, -point.rate)):
        if not kept or point.rate > kept[-1].rate:
            kept.append(point)
    return kept


def nearest(trials: Iterable[Trial], goal: Goal) -> tuple[Trial, int] | None:
    """Return the trial and load that miss an impossible goal by the least; None without runs."""
    every = [
        (goal.excess(row), trial, clients)
        for trial in trials
        for clients, row in trial.rows.items()
    ]
    reached = [entry for entry in every if entry[0] < math.inf]
    if not reached:
        return None
    _, trial, clients = min(reached, key=lambda entry: entry[0])
    return trial, clients


def _joined(runs: Sequence[BenchRun]) -> BenchRun:
    """Return several runs of one load as one."""
    outcomes = [outcome for run in runs for outcome in run.outcomes]
    seconds, busy = sum(run.seconds for run in runs), sum(run.busy for run in runs)
    return BenchRun(runs[0].label, outcomes, seconds, busy)
