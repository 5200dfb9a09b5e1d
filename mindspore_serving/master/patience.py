"""For how long clients wait before they leave, by those that left and those that stayed.  No clock:
`now` is an argument, in seconds.
"""

from collections.abc import Callable, Iterable
from math import log

ENOUGH_LEFT = 5.0  # clients that must have left before their patience is believed
HALF_LIFE = 60.0  # seconds after which a client that left counts half
STAYING = 0.9  # the share of clients that is to be served before they leave
STAYING_CROWDED = 0.8  # ... at least, where most are refused: others would have stayed
LONGEST = 3600.0  # seconds of patience, which is as good as any
SHORTEST = 1.0  # ... and what clients have at least: who leaves sooner did not leave for the wait
PERIOD = 0.05  # seconds between two estimates: each looks at all that wait
_SHORTEST, _STEP, _NUM_BINS = 0.001, 1.1, 160  # seconds, the ratio of two bins; to over an hour


class Patience:
    """An estimate by Kaplan and Meier (1958), since of a client that was served, or still waits, it
    is only known that it would have waited for so long.

    Without clients that leave it doubles every HALF_LIFE: that is how a longer one is found.
    `waiting` gives the ages of those that still wait.
    """

    def __init__(
        self,
        staying: float = STAYING,
        waiting: Callable[[float], Iterable[float]] = lambda now: (),
    ) -> None:
        self._staying = staying, max(staying, STAYING_CROWDED)
        self._waiting = waiting
        self._left = [0.0] * _NUM_BINS  # by age; what is old counts less
        self._stayed = [0.0] * _NUM_BINS
        self._num_left = 0.0
        self._aged = 0.0
        self._estimate = 0.0, 0.0  # for each of these shares; 0: none
        self._estimated = 0.0  # when
        self._is_outdated = False
        self._last_left = 0.0

    def left(self, age: float, now: float) -> None:
        """A client has left after `age` seconds without a reply."""
        self._forget(now)
        self._left[_bin(age)] += 1
        self._num_left += 1
        self._is_outdated, self._last_left = True, now

    @property
    def is_known(self) -> bool:
        """Whether a client has left, of late."""
        return self._num_left > 0

    def stayed(self, age: float, now: float) -> None:
        """A client waited for `age` seconds and got its reply, or a refusal."""
        self._forget(now)
        self._stayed[_bin(age)] += 1

    def seconds(self, now: float, *, is_crowded: bool = False) -> float | None:
        """What the share `staying` of clients waits at least, or STAYING_CROWDED if that is more
        and it `is_crowded`; None unless enough have left.
        """
        estimate = self._estimate[is_crowded]
        if self._is_outdated and (not estimate or now - self._estimated >= PERIOD):
            self._renew(now)
            estimate = self._estimate[is_crowded]
        if not estimate:
            return None
        seconds = estimate * 2 ** ((now - self._estimated) / HALF_LIFE)
        if seconds > LONGEST:
            self._estimate = 0.0, 0.0
        return max(SHORTEST, seconds)

    def _renew(self, now: float) -> None:
        """Estimate anew, as some have left since."""
        self._is_outdated = False
        if self._num_left >= ENOUGH_LEFT:
            self._estimate, self._estimated = self._compute(now), self._last_left

    def _forget(self, now: float) -> None:
        """Count what is old less: a second at a time."""
        if now - self._aged < 1.0:
            return
        kept = 0.5 ** ((now - self._aged) / HALF_LIFE)
        self._aged = now
        self._num_left *= kept
        if self._num_left < 0.5:  # begin anew
            self._num_left = kept = 0.0
        self._left = [count * kept for count in self._left]
        self._stayed = [count * kept for count in self._stayed]

    def _compute(self, now: float) -> tuple[float, float]:
        stayed = self._stayed.copy()
        for age in self._waiting(now):
            stayed[_bin(age)] += 1
        num_there = sum(self._left) + sum(stayed)
        share, crowded = 1.0, 0.0
        for number, (left, others) in enumerate(zip(self._left, stayed, strict=True)):
            share *= 1 - left / num_there if left else 1
            if share < self._staying[1] and not crowded:
                crowded = _SHORTEST * _STEP**number
            if share < self._staying[0]:
                return _SHORTEST * _STEP**number, crowded
            num_there -= left + others
        return 0.0, crowded


def _bin(age: float) -> int:
    if age <= _SHORTEST:
        return 0
    return min(_NUM_BINS - 1, int(log(age / _SHORTEST) / log(_STEP)))
