"""Rates at which requests are served, from recent measurements.

It has no clock: `now` is an argument, in seconds.
"""

from dataclasses import dataclass
from math import exp, inf

STANDING = 0.1  # seconds of a non-empty queue that are no burst
SAMPLES = 16.0  # departures after which an older measurement counts 1/e, within these bounds:
SHORTEST_MEMORY, LONGEST_MEMORY = 1.0, 5.0  # seconds
ENOUGH_OPEN = 4.0  # requests that are always admitted, and needed for a measurement
FEW_OPEN = 8  # requests admitted while the rate is uncertain, and fewer the longer it is
MANY_LATE = 32  # late requests, after which fewer are admitted
SAMPLED = 4.0  # answers' weight among as many as are open
GROWN = 1.1  # factor by which open requests may grow until a slowdown is attributed to the growth
ERROR = 1.15  # slowdown that may be by chance
SPACING = 0.5  # share of the time between two answers to leave between two arrivals
_SMOOTHING = 0.1


class DrainRate:
    """Rate at which requests leave a non-empty queue, exponentially decayed."""

    __slots__ = ("_count", "_mark", "_seconds", "since")

    def __init__(self) -> None:
        self._count = self._seconds = 0.0  # departures, and seconds with a queue in which they left
        self._mark = 0.0  # time of the last update
        self.since = 0.0  # time from which on the queue is non-empty; 0 if it is empty

    def fill(self, now: float) -> None:
        """Record that the queue is non-empty."""
        if not self.since:
            self.since = self._mark = now

    def drain(self, count: int, now: float, *, is_empty: bool) -> None:
        """Record that `count` requests left, and whether the queue is now empty."""
        if not self.since:
            return
        elapsed = now - self._mark
        weight = exp(-elapsed / self._memory)
        self._count = self._count * weight + count
        self._seconds = self._seconds * weight + elapsed
        self._mark = now
        if is_empty:
            self.since = 0.0

    @property
    def _memory(self) -> float:
        """Time constant of the decay in seconds; enough requests leave during it."""
        if not self._count:
            return LONGEST_MEMORY
        seconds = SAMPLES * self._seconds / self._count
        return min(LONGEST_MEMORY, max(SHORTEST_MEMORY, seconds))

    def is_standing(self, now: float) -> bool:
        """Return whether the queue has been non-empty for longer than a burst."""
        return self.since > 0.0 and now - self.since >= STANDING

    def wait(self, count: int, now: float) -> float:
        """Return the seconds until `count` requests will have left; 0 if unknown."""
        if not self._count:
            return 0.0
        return count * (self._seconds + now - self._mark) / self._count


@dataclass(frozen=True, slots=True)
class Arrival:
    """Time at which a request arrived, and the reading of a SharedRate's clock then.

    `runs` says which clock: that of running requests, or that of all.
    """

    started: float
    runs: bool
    work: float


class SharedRate:
    """Rate of workers that compute all of their requests together, such as language engines.

    With N open requests each gets 1/N of the worker's time.  The work for a request is the integral
    of 1/N over the time until its answer; a clock advances by 1/N per second, so that work is a
    difference of two readings.  Work per request falls with N at first (batches are efficient), so
    it is measured where most requests are open; until that was at least ENOUGH_OPEN, no estimate is
    made for more than twice as many.  An engine computes at most `max_running` requests together;
    for those that wait the share among all counts.
    """

    __slots__ = (
        "_answers",
        "_began",
        "_by_all",
        "_by_running",
        "_late_after",
        "_mark",
        "_num_late",
        "_num_measured",
        "_seconds",
        "max_running",
        "num_open",
    )

    def __init__(self) -> None:
        self.num_open = 0
        self.max_running = inf
        self._by_all = self._by_running = 0.0  # clocks, see above
        self._mark = self._began = 0.0  # times of the last update and of the last arrival
        self._seconds = 0.0  # of work per request; 0 if unknown
        self._num_measured = 0.0  # open requests during that measurement
        self._answers = DrainRate()
        self._num_late = 0  # consecutive late requests, without an answer between them
        self._late_after = 0.0  # seconds, the maximum of those

    def begin(self, now: float) -> Arrival:
        """Record the arrival of a request."""
        self._advance(now)
        self.num_open += 1
        self._answers.fill(now)
        self._began = now
        runs = self.num_open <= self.max_running
        return Arrival(now, runs, self._by_running if runs else self._by_all)

    def end(self, now: float) -> None:
        """Record the end of a request."""
        self._advance(now)
        self.num_open -= 1
        self._answers.drain(0, now, is_empty=not self.num_open)

    def work(self, arrival: Arrival, now: float) -> float:
        """Return the work that a request has got since its arrival."""
        self._advance(now)
        return (self._by_running if arrival.runs else self._by_all) - arrival.work

    def answered(self, work: float, seconds: float, now: float) -> None:
        """Record the answer of a request after `seconds`, in which it got `work`."""
        self._answers.drain(1, now, is_empty=False)
        is_first = not self._seconds or self.is_uncertain
        self._num_late, self._late_after = 0, 0.0
        num_open = seconds / work if work > 0 else 1.0
        if is_first:
            self._answers = DrainRate()
            self._answers.fill(now)
            self._seconds, self._num_measured = work, num_open
        elif num_open < 0.5 * self._num_measured:
            self._num_measured *= 1 - 0.1 * _SMOOTHING
        else:
            weight = max(_SMOOTHING, min(0.5, SAMPLED / num_open))
            self._seconds += weight * (work - self._seconds)
            self._num_measured += weight * (num_open - self._num_measured)

    def late(self, work: float, seconds: float) -> None:
        """Record a request that was not answered within `seconds`, though it got `work`."""
        self._num_late += 1
        self._late_after = max(self._late_after, seconds)
        if work > self._seconds > 0:
            self._seconds += _SMOOTHING * (work - self._seconds)

    @property
    def is_known(self) -> bool:
        """True if there is a measurement that still holds."""
        return self._seconds > 0 and not self.is_uncertain

    @property
    def is_uncertain(self) -> bool:
        """True if as many consecutive requests were late as can be open at a time."""
        return self._num_late > max(ENOUGH_OPEN, self._num_measured)

    def sojourn(self, num_open: float) -> float:
        """Return the seconds that a request takes as one of `num_open`; 0 if unknown."""
        is_known = self._num_measured >= ENOUGH_OPEN or num_open <= 2 * self._num_measured
        return num_open * self._seconds if is_known else 0.0

    def max_open(self, seconds: float, now: float) -> float:
        """Return how many requests can be open so that each is answered within `seconds`."""
        if self.is_uncertain and seconds < 2 * self._late_after:
            return max(ENOUGH_OPEN, FEW_OPEN / (1 + self._num_late // MANY_LATE))
        if not self._seconds:
            return inf
        work = self._seconds
        if self._num_measured >= ENOUGH_OPEN and self.num_open <= GROWN * self._num_measured:
            work = max(work, self._answers.wait(1, now) / ERROR)
        limit = seconds / work
        if self._num_measured < ENOUGH_OPEN:
            limit = max(limit, 2 * self._num_measured)
        return max(ENOUGH_OPEN, limit)

    def is_too_soon(self, now: float) -> bool:
        """Return whether one more request would arrive faster than requests are answered.

        Requests that arrive together end together: for long none is answered, and then all are
        late.
        """
        return now - self._began < SPACING * self._seconds

    def remaining(self, arrival: Arrival | None, now: float, num_open: float) -> float:
        """Return the seconds until the answer of a request that stays one of `num_open`.

        `arrival` is None if it has got no work yet.
        """
        done = 0.0 if arrival is None else self.work(arrival, now)
        return max(0.0, self._seconds - done) * num_open

    def _advance(self, now: float) -> None:
        elapsed = now - self._mark
        self._mark = now
        if self.num_open:
            self._by_all += elapsed / self.num_open
            self._by_running += elapsed / min(self.num_open, self.max_running)
