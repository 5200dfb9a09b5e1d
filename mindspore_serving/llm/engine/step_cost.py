"""How long a step takes by its number of rows (tokens), relative to other numbers: numbers only.

Learned from steps one after another that differ in their rows: of those the machine's load and the
length of the texts are nearly the same, so they cancel out.
"""

from bisect import bisect_right
from math import exp, log

_KNOTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
_PRIOR = 0.085  # of a step of one row, for each row more: a small model on a CPU of two cores
_PRIORS = [log(1 + _PRIOR * (rows - 1)) for rows in _KNOTS]
_RATE = 0.1  # of an error that is corrected at once, when some have been seen
_MOST = 1.5  # logarithm of the largest error that is believed: a pause is not a cost
_ENOUGH = 2  # comparisons, for a number of rows to be known
_FORGOTTEN = 0.0001  # of what was learned, with each step that teaches nothing: it is tried again
_OFTEN = 100  # such steps, after which that is done
_LONGEST = 100  # steps with guesses, after which one without is compared with them


class StepCost:
    """Relative seconds of a step, linear between numbers of rows that are powers of two, and one
    and a half times these."""

    __slots__ = ("_counts", "_last", "_logs", "_num_alike", "_streak")

    def __init__(self) -> None:
        self._logs = _PRIORS[:]
        self._counts = [0] * len(_KNOTS)
        self._last: tuple[int, float] | None = None
        self._streak = 0  # steps with guesses in a row
        self._num_alike = 0  # steps that taught nothing, and are not counted in `_logs`

    def of(self, rows: int) -> float:
        """Relative seconds of a step of `rows`; meaningful as a ratio to another number's."""
        low, share = _place(rows)
        if low == len(_KNOTS) - 1:
            return exp(self._logs[low]) * rows / _KNOTS[low]
        return (1 - share) * exp(self._logs[low]) + share * exp(self._logs[low + 1])

    def observe(self, rows: int, seconds: float) -> None:
        """A step of `rows` took `seconds`, directly after the one of the last call."""
        last, self._last = self._last, (rows, seconds)
        if last is None or last[0] == rows or min(seconds, last[1]) <= 0:
            self._num_alike += 1
            if self._num_alike >= _OFTEN:
                self._forget()
            return
        self._forget()
        error = log(seconds / last[1]) - log(self.of(rows) / self.of(last[0]))
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

    def interrupt(self) -> None:
        """A step of another kind came: the next one cannot be compared."""
        self._last = None

    def _forget(self) -> None:
        share, self._num_alike = 1 - (1 - _FORGOTTEN) ** self._num_alike, 0
        for knot, prior in enumerate(_PRIORS):
            self._logs[knot] += share * (prior - self._logs[knot])

    def _rate(self, rows: int) -> float:
        """The part of an error that is corrected: less, the more is known."""
        return max(_RATE, 1 / (1 + self._counts[_place(rows)[0]]))

    def _correct(self, rows: int, change: float) -> None:
        """Knots of which nothing is known follow."""
        low, share = _place(rows)
        for knot, count in enumerate(self._counts):
            if knot == low or (knot == low + 1 and share) or (not count and knot > low):
                self._logs[knot] += change
        self._counts[low] += 1
        if share:
            self._counts[low + 1] += 1


def _place(rows: int) -> tuple[int, float]:
    """The knot at or below `rows`, and the share of the way from there to the next."""
    low = bisect_right(_KNOTS, rows) - 1
    if low >= len(_KNOTS) - 1:
        return len(_KNOTS) - 1, 0.0
    return low, (rows - _KNOTS[low]) / (_KNOTS[low + 1] - _KNOTS[low])
