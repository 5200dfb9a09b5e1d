"""Estimate of how long clients wait before they leave.  No clock: `now` is in seconds.

It is computed from the clients that left and those that stayed.
"""

from collections.abc import Callable, Iterable
from math import log

ENOUGH_LEFT = 5.0  # clients that must have left before there is an estimate
HALF_LIFE = 60.0  # seconds after which an observation counts half
SERVED_SHARE = 0.9  # of clients, to be served before they leave
SERVED_SHARE_CROWDED = 0.8  # at least, if most are refused: other clients would have stayed
LONGEST = 3600.0  # seconds; a longer patience counts as unlimited
SHORTEST = 1.0  # seconds; clients that leave sooner do not leave because of the wait
PERIOD = 0.05  # seconds between two estimates, as each iterates over all waiting requests
# Bins of ages: the first bound in seconds, the ratio of two bounds, and enough bins for an hour.
_FIRST_BOUND, _RATIO, _NUM_BINS = 0.001, 1.1, 160


class Patience:
    """Estimate of the time that a share of clients waits at least, by Kaplan and Meier (1958).

    Their estimator handles censored observations: a client that was served, or still waits, is only
    known to wait at least that long.  While no client leaves, the estimate doubles every HALF_LIFE,
    so that an increased patience is discovered.  `waiting` returns the ages of waiting requests.
    """

    def __init__(
        self,
        served_share: float = SERVED_SHARE,
        waiting: Callable[[float], Iterable[float]] = lambda now: (),
    ) -> None:
        self._shares = served_share, max(served_share, SERVED_SHARE_CROWDED)
        self._waiting = waiting
        self._left = [0.0] * _NUM_BINS  # clients by age, exponentially decayed
        self._stayed = [0.0] * _NUM_BINS
        self._num_left = 0.0
        self._decayed_at = 0.0
        self._estimate = 0.0, 0.0  # seconds for each of `_shares`; 0: unknown
        self._estimated_at = 0.0
        self._is_outdated = False
        self._last_left = 0.0

    def left(self, age: float, now: float) -> None:
        """Record a client that left after `age` seconds without a reply."""
        self._decay(now)
        self._left[_bin(age)] += 1
        self._num_left += 1
        self._is_outdated, self._last_left = True, now

    @property
    def is_known(self) -> bool:
        """True if a client has left recently."""
        return self._num_left > 0

    def stayed(self, age: float, now: float) -> None:
        """Record a client that waited for `age` seconds until its reply or refusal."""
        self._decay(now)
        self._stayed[_bin(age)] += 1

    def seconds(self, now: float, *, is_crowded: bool = False) -> float | None:
        """Return the seconds that the share `served_share` of clients waits; None if unknown.

        If `is_crowded`, the share is at least SERVED_SHARE_CROWDED.
        """
        estimate = self._estimate[is_crowded]
        if self._is_outdated and (not estimate or now - self._estimated_at >= PERIOD):
            self._renew(now)
            estimate = self._estimate[is_crowded]
        if not estimate:
            return None
        seconds = estimate * 2 ** ((now - self._estimated_at) / HALF_LIFE)
        if seconds > LONGEST:
            self._estimate = 0.0, 0.0
        return max(SHORTEST, seconds)

    def _renew(self, now: float) -> None:
        """Estimate anew, as clients have left since the last estimate."""
        self._is_outdated = False
        if self._num_left >= ENOUGH_LEFT:
            self._estimate, self._estimated_at = self._compute(now), self._last_left

    def _decay(self, now: float) -> None:
        """Reduce the weight of old observations, at most once per second."""
        if now - self._decayed_at < 1.0:
            return
        weight = 0.5 ** ((now - self._decayed_at) / HALF_LIFE)
        self._decayed_at = now
        self._num_left *= weight
        if self._num_left < 0.5:  # start anew
            self._num_left = weight = 0.0
        self._left = [count * weight for count in self._left]
        self._stayed = [count * weight for count in self._stayed]

    def _compute(self, now: float) -> tuple[float, float]:
        """Compute the product-limit estimate for each of `_shares`.

        Survival at an age is the product of 1 - left / at_risk over all bins up to it, where
        at_risk are the clients known to have waited until that bin.
        """
        stayed = self._stayed.copy()
        for age in self._waiting(now):
            stayed[_bin(age)] += 1
        num_at_risk = sum(self._left) + sum(stayed)
        survival, crowded = 1.0, 0.0
        for number, (left, censored) in enumerate(zip(self._left, stayed, strict=True)):
            survival *= 1 - left / num_at_risk if left else 1
            if survival < self._shares[1] and not crowded:
                crowded = _FIRST_BOUND * _RATIO**number
            if survival < self._shares[0]:
                return _FIRST_BOUND * _RATIO**number, crowded
            num_at_risk -= left + censored
        return 0.0, crowded


def _bin(age: float) -> int:
    if age <= _FIRST_BOUND:
        return 0
    return min(_NUM_BINS - 1, int(log(age / _FIRST_BOUND) / log(_RATIO)))
