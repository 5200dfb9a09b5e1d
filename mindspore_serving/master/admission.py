"""Admission control of a method: refuse requests that cannot be served in time, as measured.

It has no clock: `now` is an argument, in seconds.

`Patience` estimates how long clients wait before they leave.  Batched methods use a `DrainRate`
(requests per second that leave a non-empty queue) and the seconds that a request takes after that.
Streamed methods use a `SharedRate`.  Their clients leave for many reasons, so the median patience
counts there, not the patience of nearly all clients.

Batched requests are refused only after a queue has been non-empty for STANDING seconds, the sign of
overload that CoDel uses (Nichols and Jacobson, "Controlling queue delay", 2012).
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import inf

from mindspore_serving.errors import Overloaded
from mindspore_serving.master.patience import SERVED_SHARE, Patience
from mindspore_serving.master.rates import ENOUGH_OPEN, FEW_OPEN, Arrival, DrainRate, SharedRate

DEADLINE_SHARE = 0.9  # of the remaining time that a request may take; the rest is margin for error
QUEUE_SHARE = 0.5  # of clients' patience that a request may wait in the queue
SHED_SHARE = 0.75  # of clients' patience, beyond which the oldest requests are refused
# Share of the remaining time that requests computed together may take.  It adapts as in TCP, by
# additive increase and multiplicative decrease.
SHARED_SHARE = 0.75  # initially
MIN_SHARE, MAX_SHARE = 0.5, 0.8
SHARE_DECREASE = 0.85  # factor when requests are late
SHARE_INCREASE = 0.03  # when as many requests as are open were answered in time
CALM_SHARE = 0.6  # of the limit of open requests, beyond which they are admitted one at a time
SLACK = 0.25  # excess over the limit of open requests that is not shed yet
CROWDED = 0.4  # share of unserved requests from which on other clients would stay
_SMOOTHING, _SMOOTHING_UNSERVED = 0.1, 0.01


@dataclass(frozen=True, slots=True)
class OpenRequest:
    """Request that is computed together with others and has no output yet."""

    arrival: Arrival
    deadline: float | None


class AdmissionControl:
    """Admission control of one method: measures, and refuses requests that would be late."""

    def __init__(
        self,
        served_share: float = SERVED_SHARE,
        ages_of_waiting: Callable[[float], Iterable[float]] = lambda now: (),
    ) -> None:
        """Create a control; `ages_of_waiting` returns the ages of queued requests."""
        self.queue = DrainRate()
        self.shared = SharedRate()
        self.patience = Patience(served_share, ages_of_waiting)
        self._share = SHARED_SHARE
        self._unserved = 0.0  # share of requests that were refused or cancelled, smoothed
        self._cut_at = 0.0  # when `_share` decreased last: requests from before do not decrease it
        self._run_seconds = 0.0  # from leaving the queue to the first reply, smoothed

    def ran(self, seconds: float) -> None:
        """Record the seconds from a request's leaving the queue to its first reply."""
        if self._run_seconds:
            seconds = self._run_seconds + _SMOOTHING * (seconds - self._run_seconds)
        self._run_seconds = seconds

    def check(self, num_ahead: int, timeout: float | None, now: float) -> None:
        """Raise Overloaded if a request behind `num_ahead` others would be answered too late.

        That is, after its `timeout`, or after clients have left.
        """
        if not num_ahead or not self.queue.is_standing(now):
            return
        longest = self._longest_wait(timeout, QUEUE_SHARE, now)
        if longest is None:
            return
        wait = self.queue.wait(num_ahead, now)
        if wait > longest:
            raise Overloaded(
                f"the request would wait for {wait:.1f} s, which is too long; try again later",
                retry_after=wait - max(0.0, longest),
            )

    def check_shared(self, timeout: float | None, now: float) -> None:
        """Raise Overloaded if one more request computed together with others would be late.

        That is, if it would take longer than its `timeout` or than clients wait.
        """
        shared = self.shared
        if shared.num_open < ENOUGH_OPEN:
            return
        patience = self.patience.seconds(now, is_crowded=self._unserved > CROWDED)
        longest = min(timeout or inf, patience or inf)
        if longest == inf:
            return
        limit = shared.max_open(self._share * longest, now)
        is_too_soon = shared.num_open > CALM_SHARE * limit and shared.is_too_soon(now)
        is_refused = shared.num_open + 1 > limit or is_too_soon
        self._count(is_refused)
        if is_refused:
            sojourn = shared.sojourn(shared.num_open + 1)
            raise Overloaded(
                f"the request would take {sojourn:.1f} s, which is too long; try again later"
                if sojourn
                else "the requests before it take too long; try again later",
                retry_after=max(0.0, sojourn - self._share * longest),
            )

    def answered_shared(self, work: float, seconds: float, now: float) -> None:
        """Record the first output of a request after `seconds`, in which it got this `work`."""
        self.shared.answered(work, seconds, now)
        self._count(False)
        increase = SHARE_INCREASE / max(1, self.shared.num_open)
        self._share = min(MAX_SHARE, self._share + increase)

    def late_shared(self, arrival: Arrival, now: float) -> None:
        """Record a request that was not answered in time."""
        shared = self.shared
        if shared.is_known and arrival.started > self._cut_at:
            self._cut_at = now
            self._share = max(MIN_SHARE, self._share * SHARE_DECREASE)
        self._count(True)
        shared.late(shared.work(arrival, now), now - arrival.started)

    def _count(self, is_unserved: bool) -> None:
        self._unserved += _SMOOTHING_UNSERVED * (is_unserved - self._unserved)

    def shed_shared(self, requests: Sequence[OpenRequest], now: float) -> list[int]:
        """Return the indices of requests to refuse so that the others are answered in time.

        `requests` are in order of arrival.  Refused are, in this order: requests that would be late
        anyway, those that wait, and of those that run the ones that came last.
        """
        patience = self.patience.seconds(now, is_crowded=self._unserved > CROWDED) or inf
        until = [
            min(request.deadline or inf, request.arrival.started + patience) for request in requests
        ]
        limited = [index for index, time in enumerate(until) if time < inf]
        if not limited:
            return []
        shared = self.shared
        longest = min(until[index] - requests[index].arrival.started for index in limited)
        limit = min(shared.num_open, shared.max_open(self._share * longest, now))
        num_excess = int(shared.num_open - limit)
        if num_excess <= 0 or (num_excess < SLACK * limit and not shared.is_uncertain):
            return []
        self._cut_at = now
        if shared.is_uncertain:  # progress is unknown: the last arrivals have the most time left
            return limited[: -int(limit)]
        max_running = shared.max_running
        doomed, waiting, running = [], [], []
        for index in limited:
            arrival = requests[index].arrival if index < max_running else None
            if now + shared.remaining(arrival, now, limit) / self._share > until[index]:
                doomed.append(index)
            elif arrival is None:
                waiting.append(index)
            else:
                running.append(index)
        if waiting:  # if admitted together, they would be computed together and end together
            num_excess += int((1 - CALM_SHARE) * limit)
        if len(limited) - len(doomed) < FEW_OPEN:  # few requests are fast: the last are not late
            doomed = doomed[:-FEW_OPEN]
        candidates = [*waiting, *reversed(running)]
        return doomed + candidates[: max(0, num_excess - len(doomed))]

    def is_late(self, started: float, deadline: float | None, now: float) -> bool:
        """Return whether a request that waits since `started` would be answered too late."""
        if not self.queue.is_standing(now):
            return False
        patience = self.patience.seconds(now)
        if patience is not None:
            deadline = min(started + patience, deadline or inf)
        return deadline is not None and now + self._run_seconds > deadline

    def num_to_shed(self, num_ahead: int, now: float) -> int:
        """Return how many of the oldest waiting requests to refuse.

        The remaining ones are then served before their clients leave.
        """
        longest = self._longest_wait(None, SHED_SHARE, now)
        if longest is None or not self.queue.is_standing(now):
            return 0
        seconds = self.queue.wait(1, now)
        return max(0, num_ahead - int(longest / seconds)) if seconds else 0

    def _longest_wait(self, timeout: float | None, share: float, now: float) -> float | None:
        """Return the longest wait of a request that is answered in time; None for no limit."""
        longest = inf if timeout is None else DEADLINE_SHARE * timeout - self._run_seconds
        patience = self.patience.seconds(now)
        if patience is not None:
            longest = min(longest, share * max(0.0, patience - self._run_seconds))
        return None if longest == inf else longest
