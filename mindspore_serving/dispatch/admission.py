"""Whether a request to a method can be served in time, by what was measured.  No clock: `now` is an
argument, in seconds.

`Patience` is how long clients wait before they leave.  For batched methods: `DrainRate`, how many
requests per second leave the queue while there is one, and the seconds that a request takes from
then on.  For streamed ones: `SharedRate`.  Their clients leave for many reasons, so how long half
of them wait for their first output counts there, not how long nearly all do.

Nothing batched is refused before a queue has stood for STANDING seconds without being empty, the
sign of overload that CoDel uses (Nichols and Jacobson, "Controlling queue delay", 2012).
"""

from math import exp, inf, log

from mindspore_serving.errors import Overloaded

STANDING = 0.1  # seconds
MEMORY = 5.0  # seconds of work after which what was measured before counts 1/e
DEADLINE_SHARE = 0.9  # of the time left that a request may be expected to take: the rest is error
QUEUE_SHARE = 0.5  # of their patience that clients wait in the queue
SHED_SHARE = 0.75  # ... beyond which the oldest are refused
ENOUGH_OPEN = 4.0
SHARED_SHARE = 0.75  # of the time left, where all that are open are computed together
_SMOOTHING = 0.1

ENOUGH_LEFT = 5.0  # clients that must have left before their patience is believed
HALF_LIFE = 60.0  # seconds after which a client that left counts half
STAYING = 0.9  # the share of clients that is to be served before they leave
STAYING_SHARED = 0.5
LONGEST = 3600.0  # seconds of patience, which is as good as any
SHORTEST = 1.0  # ... and what clients have at least: who leaves sooner did not leave for the wait
_SHORTEST, _STEP, _NUM_BINS = 0.001, 1.1, 160  # seconds, the ratio of two bins; to over an hour


class DrainRate:
    """How fast a queue is emptied."""

    __slots__ = ("_count", "_mark", "_seconds", "since")

    def __init__(self) -> None:
        self._count = self._seconds = 0.0  # that left, in as many seconds with a queue
        self._mark = 0.0
        self.since = 0.0  # when there was no queue last; 0: there is none

    def fill(self, now: float) -> None:
        """Something waits."""
        if not self.since:
            self.since = self._mark = now

    def drain(self, count: int, now: float, *, is_empty: bool) -> None:
        """`count` have left, after which the queue may be empty."""
        if not self.since:
            return
        elapsed = now - self._mark
        kept = exp(-elapsed / MEMORY)
        self._count = self._count * kept + count
        self._seconds = self._seconds * kept + elapsed
        self._mark = now
        if is_empty:
            self.since = 0.0

    def is_standing(self, now: float) -> bool:
        """Whether there is a queue that does not come from one burst."""
        return self.since > 0.0 and now - self.since >= STANDING

    def wait(self, count: int, now: float) -> float:
        """Seconds until `count` will have left; 0 if nothing is known."""
        if not self._count:
            return 0.0
        return count * (self._seconds + now - self._mark) / self._count


class SharedRate:
    """How fast a worker is that computes all it has together, such as a language model's engine.

    With N requests in it each takes about N times as long as its share of the whole work.  That
    share falls with N at first, so it is measured where most are open; until that was ENOUGH_OPEN,
    nothing is said of more than twice as many.
    """

    __slots__ = ("_num", "_seconds")

    def __init__(self) -> None:
        self._seconds = 0.0  # of the whole work for one request; 0 while unknown
        self._num = 0.0  # requests, at which that was measured

    def ended(self, seconds: float, num_open: float, *, is_late: bool = False) -> None:
        """A request was answered after `seconds`, or, if it `is_late`, not within them, with
        `num_open` in all meanwhile."""
        if is_late and seconds < num_open * self._seconds:
            return  # nothing new
        if num_open < 0.5 * self._num:
            self._num *= 1 - 0.1 * _SMOOTHING
            return
        weight = _SMOOTHING if self._seconds else 1.0
        self._seconds += weight * (seconds / num_open - self._seconds)
        self._num += weight * (num_open - self._num)

    def sojourn(self, num_open: int) -> float:
        """Seconds that a request takes as one of `num_open`; 0 if that is not known."""
        is_known = self._num >= ENOUGH_OPEN or num_open <= 2 * self._num
        return num_open * self._seconds if is_known else 0.0


class Patience:
    """For how long clients wait before they leave: an estimate by Kaplan and Meier (1958), since of
    a client that was served it is only known that it would have waited for so long.

    Without clients that leave it doubles every HALF_LIFE: that is how a longer one is found.
    """

    def __init__(self, staying: float = STAYING) -> None:
        self._staying = staying
        self._left = [0.0] * _NUM_BINS  # by age; what is old counts less
        self._stayed = [0.0] * _NUM_BINS
        self._num_left = 0.0
        self._aged = 0.0
        self._estimate = 0.0  # 0: none
        self._estimated = 0.0  # when

    def left(self, age: float, now: float) -> None:
        """A client has left after `age` seconds without a reply."""
        self._forget(now)
        self._left[_bin(age)] += 1
        self._num_left += 1
        if self._num_left >= ENOUGH_LEFT:
            self._estimate, self._estimated = self._compute(), now

    @property
    def is_known(self) -> bool:
        """Whether a client has left, of late."""
        return self._num_left > 0

    def stayed(self, age: float, now: float) -> None:
        """A client waited for `age` seconds and got its reply, or a refusal."""
        self._forget(now)
        self._stayed[_bin(age)] += 1

    def seconds(self, now: float) -> float | None:
        """What the share `staying` of clients waits at least; None unless enough have left."""
        if not self._estimate:
            return None
        seconds = self._estimate * 2 ** ((now - self._estimated) / HALF_LIFE)
        if seconds > LONGEST:
            self._estimate = 0.0
        return max(SHORTEST, seconds)

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

    def _compute(self) -> float:
        num_there = sum(self._left) + sum(self._stayed)
        share = 1.0
        for number, (left, stayed) in enumerate(zip(self._left, self._stayed, strict=True)):
            share *= 1 - left / num_there if left else 1
            if share < self._staying:
                return _SHORTEST * _STEP**number
            num_there -= left + stayed
        return 0.0


class Admission:
    """Of one method: measures, and refuses what would be late."""

    def __init__(self, staying: float = STAYING) -> None:
        self.queue = DrainRate()
        self.shared = SharedRate()
        self.patience = Patience(staying)
        self._run_seconds = 0.0  # from the queue to the first reply, smoothed

    def ran(self, seconds: float) -> None:
        """A request got its first reply so long after it left the queue."""
        if self._run_seconds:
            seconds = self._run_seconds + _SMOOTHING * (seconds - self._run_seconds)
        self._run_seconds = seconds

    def check(self, num_ahead: int, timeout: float | None, now: float) -> None:
        """Raise Overloaded if a request that comes behind `num_ahead` would be answered too late:
        after its `timeout`, or when clients have left."""
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

    def check_shared(self, num_open: int, timeout: float | None, now: float) -> None:
        """Raise Overloaded if one of `num_open` that are computed together would take longer than
        its `timeout`, or than clients wait."""
        if num_open <= ENOUGH_OPEN:
            return
        patience = self.patience.seconds(now)
        longest = SHARED_SHARE * min(timeout or inf, patience or inf)
        sojourn = self.shared.sojourn(num_open)
        if sojourn > longest:
            raise Overloaded(
                f"it would take {sojourn:.1f} s, which is too long; try again later",
                retry_after=sojourn - longest,
            )

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
        before their clients leave."""
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


def _bin(age: float) -> int:
    if age <= _SHORTEST:
        return 0
    return min(_NUM_BINS - 1, int(log(age / _SHORTEST) / log(_STEP)))
