"""SettingsSearch plan of `tune`: which settings to measure next, and when to stop.  Pure.

One knob after the other is turned, on the best settings so far; a further pass begins if one has
helped.  What this picks is biased, as the luckiest of many: finalists are measured again, in rounds
of their own, and those alone decide.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from mindspore_serving.cli.tune_goals import Goal
from mindspore_serving.cli.tune_knobs import Changes, Knob, Subject, describe, merged
from mindspore_serving.cli.tune_results import (
    Trial,
    Verdict,
    best_load,
    defaults_of,
    nearest,
    score,
)

Merit: TypeAlias = tuple[int, float]  # whether the goal is kept, and how well

SEARCH_ROUNDS = 3  # for each candidate
MAX_ROUNDS = 60  # of finalists
MAX_FINALISTS = 2
_HOPELESS = 0.75  # ratio to the defaults in two rounds, after which no further one is needed
_FEW = 2  # rounds, trials or runs
_MAX_WARM_UPS, _RISING = 6, 1.1  # runs before a server is measured, while their rate rises
_MARGIN = 0.02  # by which settings have to be better to be searched from
_SEARCH_SHARE = 0.6  # of the time; the rest is for finalists
_ROUND_SHARE = 1 / 300  # of the time, for a run at one load
_MIN_RUN, _MAX_RUN = 0.2, 3.0  # seconds of a run


@dataclass(frozen=True, slots=True)
class TimePlan:
    """Division of the time, in seconds; `start` is how long a server takes to be ready."""

    total: float
    start: float
    round: float

    def fits_candidate(self, elapsed: float, num_trials: int) -> bool:
        """Return whether one more candidate can be measured, and finalists afterwards.

        The first one after the defaults is measured in any case.
        """
        return num_trials < _FEW or elapsed + self.candidate <= self.total * _SEARCH_SHARE

    def needs_round(self, elapsed: float, count: int) -> bool:
        """Return whether finalists with `count` rounds get one more, which is longer with two."""
        fits = elapsed + self.round * (MAX_FINALISTS + 1) / 2 <= self.total
        return count < SEARCH_ROUNDS or fits and count < MAX_ROUNDS

    @property
    def candidate(self) -> float:
        """Seconds that a candidate takes."""
        return self.start + (SEARCH_ROUNDS + 1) * self.round  # with two warm-ups, of one server


def run_seconds(total: float) -> float:
    """Return how long a run at one load should take."""
    return min(max(total * _ROUND_SHARE, _MIN_RUN), _MAX_RUN)


def is_settled(rates: Sequence[float]) -> bool:
    """Return whether a server that was just started is as fast as it gets, by its last runs."""
    if len(rates) < _FEW:
        return False
    return len(rates) >= _MAX_WARM_UPS or rates[-1] < rates[-2] * _RISING


def merit(trial: Trial, goal: Goal) -> Merit:
    """Return how good settings are: by the objective if the goal is kept, else by what is missed.

    The objective is that at the best load, by that of the defaults at the largest load in the same
    rounds.
    """
    rows, defaults = trial.rows, trial.default_rows
    if not rows:
        return 0, 0.0
    load = best_load(rows, goal)
    if load is None:
        return 0, 1 / min(goal.excess(row) for row in rows.values())
    reference = goal.value(defaults[max(defaults)])
    return 1, goal.value(rows[load]) / reference if reference else math.inf


def is_hopeless(trial: Trial, goal: Goal) -> bool:
    """Return whether no more rounds are needed: two were far worse, or a request failed.

    Those of the defaults against themselves are the error, and all needed.
    """
    if not trial.changes:
        return False
    if any(row["errors"] for row in trial.rows.values()):
        return True
    parts = [score(Trial(trial.changes, [each]), goal) for each in trial.rounds]
    return len(parts) >= _FEW and all(part is not None and part.value < _HOPELESS for part in parts)


class SettingsSearch:
    """Iterator over settings to measure; each is reported before the next is drawn."""

    def __init__(self, subject: Subject, knobs: Sequence[Knob], goal: Goal) -> None:
        self._subject, self._knobs, self._goal = subject, knobs, goal
        self._best: dict[str, Any] = {}
        self._merit: Merit = (0, 0.0)
        self.trials: list[Trial] = []
        self.is_complete = False

    def __iter__(self) -> Iterator[dict[str, Any]]:
        if not self.trials:
            yield {}  # the defaults against themselves show the error of the measurement
        is_changed = True
        while is_changed:
            before = self._best
            for knob in self._knobs:
                for values in knob.values(self._subject, {**self._subject.base, **self._best}):
                    changes = merged(self._best, values)
                    if all(trial.changes != changes for trial in self.trials):
                        yield changes
                self._advance()
            is_changed = self._best != before
        self.is_complete = True

    def report(self, trial: Trial) -> None:
        """Take the rounds, or the failure, of settings."""
        self.trials.append(trial)
        if not trial.changes:
            self._merit = merit(trial, self._goal)

    def _advance(self) -> None:
        for trial in self.trials:
            value = merit(trial, self._goal)
            keeps, amount = self._merit
            if value[0] > keeps or value[0] == keeps and value[1] > amount * (1 + _MARGIN):
                self._best, self._merit = dict(trial.changes), value


def finalists(trials: Sequence[Trial], goal: Goal) -> list[Changes]:
    """Return the settings to measure again, the best first: not the defaults, nor failed ones."""
    ranked = sorted(
        (trial for trial in trials if trial.changes and trial.rounds),
        key=lambda trial: merit(trial, goal),
        reverse=True,
    )
    return [trial.changes for trial in ranked[:MAX_FINALISTS] if merit(trial, goal)[1] > 0]


@dataclass(frozen=True, slots=True)
class Decision:
    """Settings to write, {} for the defaults, and why, in a sentence.

    They are None if the goal is impossible, and if nothing was compared.  `trial` has the rounds
    behind them, or those that come nearest to the goal.
    """

    changes: Changes | None
    text: str
    trial: Trial | None = None


def decide(confirmed: Sequence[Trial], trials: Sequence[Trial], goal: Goal) -> Decision:
    """Choose settings by rounds of finalists, which the search did not see."""
    better = []
    for trial in confirmed:
        value = score(trial, goal)
        if value is not None and value.verdict is Verdict.BETTER:
            better.append((value.value, merit(trial, goal), trial, value))
    if better:
        _, _, trial, value = max(better, key=lambda entry: entry[:2])
        if math.isinf(value.value):
            text = (
                f"they keep the goal ({goal}), which the defaults miss; {value.num_rounds} rounds"
            )
        else:
            text = (
                f"{goal.objective}: {value} times as good as with the defaults "
                f"(95 % interval, {value.num_rounds} rounds in turn with them)"
            )
        return Decision(trial.changes, f"Best: {describe(trial.changes)}: {text}", trial)
    if not any(trial.changes and trial.rounds for trial in trials):
        return Decision(None, "Not tuned: no settings but the defaults were measured")
    if not confirmed and (ranked := finalists(trials, goal)):
        best = describe(ranked[0])
        text = (
            f"Not decided: nothing was measured again; best in the search, by luck or not: {best}"
        )
        return Decision(None, text)
    defaults = defaults_of([*confirmed, *trials])
    if best_load(defaults.rows, goal) is not None:
        return Decision({}, f"Best: defaults: {_why_defaults(confirmed, goal)}")
    sure = [trial for trial in confirmed if trial.rounds] or trials
    reached = nearest([defaults, *sure], goal)
    text = f"Impossible: no settings that were measured keep the goal ({goal})"
    return Decision(None, text, None if reached is None else reached[0])


def _why_defaults(confirmed: Sequence[Trial], goal: Goal) -> str:
    values = [value for trial in confirmed if (value := score(trial, goal)) is not None]
    if not values:
        return "no other settings that keep the goal could be measured again"
    best = max(values, key=lambda value: value.value)
    if best.verdict is Verdict.WORSE:
        return "the defaults are best: all other settings that were measured again are worse"
    if best.verdict is Verdict.UNKNOWN:
        return f"too few rounds to tell ({best.num_rounds}): the defaults stay; give more --time"
    return (
        f"the defaults are best, within the error: the best other settings have {best} times their "
        f"{goal.objective} (95 % interval, {best.num_rounds} rounds)"
    )
