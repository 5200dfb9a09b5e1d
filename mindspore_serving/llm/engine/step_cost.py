"""How long a step takes by its number of rows (tokens), relative to other numbers: numbers only.

Learned from steps one after another that differ in their rows: of those the machine's load and the
length of the texts are nearly the same, so they cancel out.  The first step of a number of rows is
left out, as kernels may be compiled for it; so steps with guesses have one of `SIZES` alone.  A
step that has other rows than the one before takes longer, as a runtime may prepare all operations
anew: with many small matrices twice as long.
"""

from bisect import bisect_right
from math import exp, log

_KNOTS = (1, 2, 3, 4, 6, 8, 12, 17, 24, 34, 48, 68, 96, 128, 192, 256, 384, 512)
SIZES = frozenset(_KNOTS)
_PRIOR = 0.085  # of a step of one row, for each row more: a small model on a CPU of two cores
_PRIORS = [log(1 + _PRIOR * (rows - 1)) for rows in _KNOTS]
_RATE = 0.1  # of an error that is corrected at once, when some have been seen
_MOST = 1.5  # logarithm of the largest error that is believed: a pause is not a cost
_ENOUGH = 4  # comparisons, for a number of rows to be known
_FORGOTTEN = 0.0001  # of what was learned, with each step that teaches nothing: it is tried again
_OFTEN = 100  # such steps, after which that is done
_CHANGE_RATE = 0.05  # as _RATE, of what a step takes longer that has other rows than before
_LONGEST = 100  # steps with guesses, after which one without is compared with them


class StepCost:
    """Relative seconds of a step, linear between numbers of rows that are compared."""

    __slots__ = (
        *("_change", "_counts", "_last", "_logs", "_num_alike", "_num_changes", "_rows", "_seen"),
        "_streak",
    )

    def __init__(self) -> None:
        self._logs = _PRIORS[:]
        self._counts = [0] * len(_KNOTS)
        self._change, self._num_changes = 0.0, 0
        self._rows = 0  # of the last step
        # Rows and seconds of a step to compare with, and whether the one before had other rows.
        self._last: tuple[int, float, bool] | None = None
        self._seen: set[int] = set()  # numbers of rows
        self._streak = 0  # steps with guesses in a row
        self._num_alike = 0  # steps that taught nothing, and are not counted in `_logs`

    def of(self, rows: int) -> float:
        """Relative seconds of a step of `rows`; meaningful as a ratio to another number's."""
        low, share = _place(rows)
        if low == len(_KNOTS) - 1:
            return exp(self._logs[low]) * rows / _KNOTS[low]
        return (1 - share) * exp(self._logs[low]) + share * exp(self._logs[low + 1])

    def of_next(self, rows: int, plain: int) -> float:
        """As `of`, of the next step, which has `plain` rows without guesses.  To begin with guesses
        counts twice, as they end some time.
        """
        times = 0 if rows == self._rows else 2 if plain == self._rows else 1
        return self.of(rows) + times * self._change

    def observe(self, rows: int, seconds: float) -> None:
        """A step of `rows` took `seconds`, directly after the one of the last call."""
        is_changed, self._rows = rows != self._rows, rows
        if rows not in self._seen:
            self._seen.add(rows)
            self._last = None
            return
        last, self._last = self._last, (rows, seconds, is_changed)
        if last is None or last[0] == rows or min(seconds, last[1]) <= 0:
            if last is not None and last[2] and min(seconds, last[1]) > 0:
                self._learn_change(self.of(rows) * (last[1] / seconds - 1))
            self._num_alike += 1
            if self._num_alike >= _OFTEN:
                self._forget()
            return
        self._forget()
        before = self.of(last[0]) + self._change * last[2]
        error = log(seconds / last[1]) - log((self.of(rows) + self._change) / before)
        error = max(-_MOST, min(_MOST, error))
        known, own = self._rate(last[0]), self._rate(rows)
        self._correct(rows, error * own * own / (own + known))
        self._correct(last[0], -error * known * known / (own + known))

    def wants_plain(self, rows: int) -> bool:
        """Whether the next step ought to have no guesses, `rows` rows then, to be compared."""
        if self._last is None or self._last[0] <= rows:
            self._streak = 0
            return False
        self._streak += 1
        is_known = self._counts[_place(self._last[0])[0]] >= _ENOUGH
        return not is_known or self._streak > _LONGEST

    def interrupt(self, rows: int) -> None:
        """A step of another kind came, of `rows`: the next one cannot be compared."""
        self._last, self._rows = None, rows

    def _learn_change(self, found: float) -> None:
        self._num_changes += 1
        found = max(0.0, min(found, 2 * self.of(1)))
        rate = max(_CHANGE_RATE, 1 / (1 + self._num_changes))
        self._change += rate * (found - self._change)

    def _forget(self) -> None:
        share, self._num_alike = 1 - (1 - _FORGOTTEN) ** self._num_alike, 0
        for knot, prior in enumerate(_PRIORS):
            self._logs[knot] += share * (prior - self._logs[knot])

    def _rate(self, rows: int) -> float:
        """The part of an error that is corrected: less, the more is known."""
        return max(_RATE, 1 / (1 + self._counts[_place(rows)[0]]))

    def _correct(self, rows: int, change: float) -> None:
        low, share = _place(rows)
        for knot in (low, low + 1) if share else (low,):
            self._logs[knot] += change
            self._counts[knot] += 1
        known = low
        for knot in range(low + 1, len(_KNOTS)):
            if self._counts[knot]:  # n times the rows take n times as long at most
                most = self._logs[known] + log(_KNOTS[knot] / _KNOTS[known])
                self._logs[knot] = min(self._logs[knot], most)
                known = knot
            else:  # as much more than what is known as was assumed
                self._logs[knot] = self._logs[known] + _PRIORS[knot] - _PRIORS[known]


def _place(rows: int) -> tuple[int, float]:
    """The knot at or below `rows`, and the share of the way from there to the next."""
    low = bisect_right(_KNOTS, rows) - 1
    if low >= len(_KNOTS) - 1:
        return len(_KNOTS) - 1, 0.0
    return low, (rows - _KNOTS[low]) / (_KNOTS[low + 1] - _KNOTS[low])
