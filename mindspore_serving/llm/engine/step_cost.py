"""Cost of a step by its number of rows (tokens), as a ratio.  Knows no clock and no model.

Absolute times say little: the machine's load and the length of the texts change them.  They are
nearly the same in two steps one after another, so what is learned is the ratio of two consecutive
steps with different numbers of rows.  It is kept as logarithms at `_KNOTS`, with linear
interpolation between them:

    cost |                  x
         |          .-x--'      known knots follow what was measured,
         |   x--x-'             unknown ones keep their prior distance to the known one below
         +---1--2---4-----8---> rows

Two effects would spoil the ratio.  The first step with a number of rows is left out, as kernels may
be compiled for it; for the same reason steps with draft tokens have one of `SIZES` only.  A step
with another number of rows than the one before takes longer, as a runtime may prepare all
operations anew (with many small matrices twice as long): that surcharge is learned apart, and
`estimate_next` adds it.
"""

from bisect import bisect_right
from math import exp, log

_KNOTS = (1, 2, 3, 4, 6, 8, 12, 17, 24, 34, 48, 68, 96, 128, 192, 256, 384, 512)
SIZES = frozenset(_KNOTS)
_PRIOR = 0.085  # cost of another row, in steps of one row: a small model on a CPU of two cores
_PRIORS = [log(1 + _PRIOR * (rows - 1)) for rows in _KNOTS]
_RATE = 0.1  # part of an error that is corrected at once, after the first comparisons
_MAX_ERROR = 1.5  # logarithm of the largest error that is believed: a pause is not a cost
_ENOUGH = 4  # comparisons after which a number of rows counts as known
_DECAY = 0.0001  # towards the priors, with each step that teaches nothing: costs are tried again
_DECAY_INTERVAL = 100  # such steps, after which the decay is applied
_CHANGE_RATE = 0.05  # as _RATE, for the surcharge of a changed number of rows
_MAX_STREAK = 100  # steps with draft tokens, after which one without is compared with them


class StepCost:
    """Relative seconds of a step by its number of rows."""

    __slots__ = (
        *("_change", "_counts", "_last", "_logs", "_num_alike", "_num_changes", "_rows", "_seen"),
        "_streak",
    )

    def __init__(self) -> None:
        self._logs = _PRIORS[:]
        self._counts = [0] * len(_KNOTS)
        self._change, self._num_changes = 0.0, 0  # surcharge of a changed number of rows
        self._rows = 0  # of the last step
        # Rows and seconds of a step to compare with, and whether its number of rows was new.
        self._last: tuple[int, float, bool] | None = None
        self._seen: set[int] = set()  # numbers of rows that were observed
        self._streak = 0  # consecutive steps with draft tokens
        self._num_alike = 0  # steps that taught nothing, whose decay is not applied yet

    def estimate(self, rows: int) -> float:
        """Return the relative seconds of a step of `rows`; only ratios have a meaning."""
        low, share = _locate(rows)
        if low == len(_KNOTS) - 1:
            return exp(self._logs[low]) * rows / _KNOTS[low]
        return (1 - share) * exp(self._logs[low]) + share * exp(self._logs[low + 1])

    def estimate_next(self, rows: int, plain: int) -> float:
        """Return the relative seconds of the next step if it has `rows` rows.

        `plain` is its number of rows without draft tokens.  A change of the number of rows costs
        extra. Switching to drafting costs two switches, since it will be switched off again.
        """
        times = 0 if rows == self._rows else 2 if plain == self._rows else 1
        return self.estimate(rows) + times * self._change

    def observe(self, rows: int, seconds: float) -> None:
        """Learn from a step of `rows` that took `seconds`, directly after that of the last call."""
        is_changed, self._rows = rows != self._rows, rows
        if rows not in self._seen:
            self._seen.add(rows)
            self._last = None
            return
        last, self._last = self._last, (rows, seconds, is_changed)
        if last is None or last[0] == rows or min(seconds, last[1]) <= 0:
            if last is not None and last[2] and min(seconds, last[1]) > 0:
                # Rows 1, 8, 8: the second step of 8 rows differs by the surcharge of the first.
                self._learn_change(self.estimate(rows) * (last[1] / seconds - 1))
            self._num_alike += 1
            if self._num_alike >= _DECAY_INTERVAL:
                self._decay()
            return
        self._decay()
        before = self.estimate(last[0]) + self._change * last[2]
        error = log(seconds / last[1]) - log((self.estimate(rows) + self._change) / before)
        error = max(-_MAX_ERROR, min(_MAX_ERROR, error))
        # Both numbers of rows may be wrong: the less known one takes the larger part of the error.
        before_rate, rate = self._rate(last[0]), self._rate(rows)
        self._correct(rows, error * rate * rate / (rate + before_rate))
        self._correct(last[0], -error * before_rate * before_rate / (rate + before_rate))

    def needs_plain_step(self, rows: int) -> bool:
        """Return whether the next step, of `rows` rows, should have no drafts, to compare with."""
        if self._last is None or self._last[0] <= rows:
            self._streak = 0
            return False
        self._streak += 1
        is_known = self._counts[_locate(self._last[0])[0]] >= _ENOUGH
        return not is_known or self._streak > _MAX_STREAK

    def interrupt(self, rows: int) -> None:
        """Note a step of another kind with `rows` rows: the next one cannot be compared with it."""
        self._last, self._rows = None, rows

    def _learn_change(self, surcharge: float) -> None:
        self._num_changes += 1
        surcharge = max(0.0, min(surcharge, 2 * self.estimate(1)))
        rate = max(_CHANGE_RATE, 1 / (1 + self._num_changes))
        self._change += rate * (surcharge - self._change)

    def _decay(self) -> None:
        share, self._num_alike = 1 - (1 - _DECAY) ** self._num_alike, 0
        for knot, prior in enumerate(_PRIORS):
            self._logs[knot] += share * (prior - self._logs[knot])

    def _rate(self, rows: int) -> float:
        """Return the part of an error to correct: less, the more comparisons there were."""
        return max(_RATE, 1 / (1 + self._counts[_locate(rows)[0]]))

    def _correct(self, rows: int, change: float) -> None:
        low, share = _locate(rows)
        for knot in (low, low + 1) if share else (low,):
            self._logs[knot] += change
            self._counts[knot] += 1
        known = low
        for knot in range(low + 1, len(_KNOTS)):
            if self._counts[knot]:  # n times the rows take at most n times as long
                limit = self._logs[known] + log(_KNOTS[knot] / _KNOTS[known])
                self._logs[knot] = min(self._logs[knot], limit)
                known = knot
            else:  # keeps its prior distance to the known knot below
                self._logs[knot] = self._logs[known] + _PRIORS[knot] - _PRIORS[known]


def _locate(rows: int) -> tuple[int, float]:
    """Return the knot at or below `rows`, and how far `rows` is from it to the next, in [0, 1)."""
    low = bisect_right(_KNOTS, rows) - 1
    if low >= len(_KNOTS) - 1:
        return len(_KNOTS) - 1, 0.0
    return low, (rows - _KNOTS[low]) / (_KNOTS[low + 1] - _KNOTS[low])
