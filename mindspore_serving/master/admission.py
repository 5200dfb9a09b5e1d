"""Whether a request to a method can be served in time, by what was measured.  No clock: `now` is an
argument, in seconds.

`Patience` is how long clients wait before they leave.  For batched methods: `DrainRate`, how many
requests per second leave the queue while there is one, and the seconds that a request takes from
then on.  For streamed ones: `SharedRate`.  Their clients leave for many reasons, so how long half
of them wait for their first output counts there, not how long nearly all do.

Nothing batched is refused before a queue has stood for STANDING seconds without being empty, the
sign of overload that CoDel uses (Nichols and Jacobson, "Controlling queue delay", 2012).
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import inf

from mindspore_serving.errors import Overloaded
from mindspore_serving.master.patience import STAYING, Patience
from mindspore_serving.master.rates import ENOUGH_OPEN, FEW_OPEN, Begun, DrainRate, SharedRate

DEADLINE_SHARE = 0.9  # of the time left that a request may be expected to take: the rest is error
QUEUE_SHARE = 0.5  # of their patience that clients wait in the queue
SHED_SHARE = 0.75  # ... beyond which the oldest are refused
SHARED_SHARE = 0.75  # of the time left, where all that are open are computed together: at first
LEAST_SHARE, MOST_SHARE = 0.5, 0.8  # ... and later
SHARE_KEPT, SHARE_GAINED = 0.85, 0.03  # of it, when some are late; when as many as are open are not
CALM_SHARE = 0.6  # of those that may be open, beyond which they come one at a time
SLACK = 0.25  # so many more than can be answered in time are not refused yet
CROWDED = 0.4  # if so many are not served, there are others who would stay
_SMOOTHING, _SMOOTHING_UNSERVED = 0.1, 0.01


@dataclass(frozen=True, slots=True)
class Open:
    """A request that is being computed with others, and has no output yet."""

    begun: Begun
    deadline: float | None


class AdmissionControl:
    """Of one method: measures, and refuses what would be late."""

    def __init__(
        self,
        staying: float = STAYING,
        waiting: Callable[[float], Iterable[float]] = lambda now: (),
    ) -> None:
        """`waiting` gives the ages of the requests that wait, for `Patience`."""
        self.queue = DrainRate()
        self.shared = SharedRate()
        self.patience = Patience(staying, waiting)
        self._share = SHARED_SHARE
        self._unserved = 0.0  # which share of those that came was refused, or left
        self._cut_at = 0.0  # when it was made smaller: of those before no more is learnt
        self._run_seconds = 0.0  # from the queue to the first reply, smoothed

    def ran(self, seconds: float) -> None:
        """A request got its first reply so long after it left the queue."""
        if self._run_seconds:
            seconds = self._run_seconds + _SMOOTHING * (seconds - self._run_seconds)
        self._run_seconds = seconds

    def check(self, num_ahead: int, timeout: float | None, now: float) -> None:
        """Raise Overloaded if a request that comes behind `num_ahead` would be answered too late:
        after its `timeout`, or when clients have left.
        """
        if not num_ahead or not self.queue.is_standing(now):
            return
        longest = self._longest_wait(timeout, QUEUE_SHARE, now)
        if longest is None:
            return
        wait = self.queue.wait(num_ahead, now)
        if wait > longest:
            raise Overloaded(
                f"it would wait for {wait:.1f} s, which is too long; try again later",
                retry_after=wait - max(0.0, longest),
            )

    def check_shared(self, timeout: float | None, now: float) -> None:
        """Raise Overloaded if one more of those that are computed together would take longer than
        its `timeout`, or than clients wait.
        """
        shared = self.shared
        if shared.num_open < ENOUGH_OPEN:
            return
        patience = self.patience.seconds(now, is_crowded=self._unserved > CROWDED)
        longest = min(timeout or inf, patience or inf)
        if longest == inf:
            return
        most = shared.most(self._share * longest, now)
        is_too_soon = shared.num_open > CALM_SHARE * most and shared.is_too_soon(now)
        is_refused = shared.num_open + 1 > most or is_too_soon
        self._count(is_refused)
        if is_refused:
            sojourn = shared.sojourn(shared.num_open + 1)
            raise Overloaded(
                f"it would take {sojourn:.1f} s, which is too long; try again later"
                if sojourn
                else "those before it take too long; try again later",
                retry_after=max(0.0, sojourn - self._share * longest),
            )

    def answered_shared(self, work: float, seconds: float, now: float) -> None:
        """One of those that are computed together got its first output after `seconds`, in which
        it got so much `work`.
        """
        self.shared.answered(work, seconds, now)
        self._count(False)
        gained = SHARE_GAINED / max(1, self.shared.num_open)
        self._share = min(MOST_SHARE, self._share + gained)

    def late_shared(self, begun: Begun, now: float) -> None:
        """One of them was not answered in time."""
        shared = self.shared
        if shared.is_known and begun.started > self._cut_at:
            self._cut_at = now
            self._share = max(LEAST_SHARE, self._share * SHARE_KEPT)
        self._count(True)
        shared.late(shared.work(begun, now), now - begun.started)

    def _count(self, is_unserved: bool) -> None:
        self._unserved += _SMOOTHING_UNSERVED * (is_unserved - self._unserved)

    def shed_shared(self, requests: Sequence[Open], now: float) -> list[int]:
        """Which of `requests`, in the order in which they came, are to be refused so that others
        are answered in time.
        """
        patience = self.patience.seconds(now, is_crowded=self._unserved > CROWDED) or inf
        until = [min(one.deadline or inf, one.begun.started + patience) for one in requests]
        some = [index for index, time in enumerate(until) if time < inf]
        if not some:
            return []
        shared = self.shared
        longest = min(until[index] - requests[index].begun.started for index in some)
        most = min(shared.num_open, shared.most(self._share * longest, now))
        num_excess = int(shared.num_open - most)
        if num_excess <= 0 or (num_excess < SLACK * most and not shared.is_in_doubt):
            return []
        self._cut_at = now
        if shared.is_in_doubt:  # nobody knows how far they are: those that came last have most time
            return some[: -int(most)]
        most_running = shared.most_running
        doomed, waiting, running = [], [], []
        for index in some:
            begun = requests[index].begun if index < most_running else None
            if now + shared.left(begun, now, most) / self._share > until[index]:
                doomed.append(index)
            elif begun is None:
                waiting.append(index)
            else:
                running.append(index)
        if waiting:  # they would be computed together, and end together
            num_excess += int((1 - CALM_SHARE) * most)
        if len(some) - len(doomed) < FEW_OPEN:  # few are fast, so the last of them are not late
            doomed = doomed[:-FEW_OPEN]
        others = [*waiting, *reversed(running)]
        return doomed + others[: max(0, num_excess - len(doomed))]

    def is_late(self, started: float, deadline: float | None, now: float) -> bool:
        """Whether what waits since `started` would not be answered in time any more."""
        if not self.queue.is_standing(now):
            return False
        patience = self.patience.seconds(now)
        if patience is not None:
            deadline = min(started + patience, deadline or inf)
        return deadline is not None and now + self._run_seconds > deadline

    def num_to_shed(self, num_ahead: int, now: float) -> int:
        """How many of those that wait, the oldest, are to be refused so that the others are served
        before their clients leave.
        """
        longest = self._longest_wait(None, SHED_SHARE, now)
        if longest is None or not self.queue.is_standing(now):
            return 0
        one = self.queue.wait(1, now)
        return max(0, num_ahead - int(longest / one)) if one else 0

    def _longest_wait(self, timeout: float | None, share: float, now: float) -> float | None:
        """The longest wait of a request that is answered in time; None for any."""
        longest = inf if timeout is None else DEADLINE_SHARE * timeout - self._run_seconds
        patience = self.patience.seconds(now)
        if patience is not None:
            longest = min(longest, share * max(0.0, patience - self._run_seconds))
        return None if longest == inf else longest
