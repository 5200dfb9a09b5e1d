"""How fast requests are served, by those that were served last.  No clock: `now` is an argument, in
seconds.
"""

from dataclasses import dataclass
from math import exp, inf

STANDING = 0.1  # seconds
SAMPLES = 16.0  # that left: what was measured before counts 1/e, but
SHORTEST_MEMORY, LONGEST_MEMORY = 1.0, 5.0  # seconds of work
ENOUGH_OPEN = 4.0
FEW_OPEN = 8  # requests, of which a worker that is in doubt is given no more, and fewer after
MANY_LATE = 32
SAMPLED = 4.0  # of the last answers, as many as are open have so much weight
GROWN = 1.1  # times as many as before: what they do is seen when they are answered
ERROR = 1.15  # times as slow as before may be by chance
SPACING = 0.5  # of the time from one answer to the next
_SMOOTHING = 0.1


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
        kept = exp(-elapsed / self._memory)
        self._count = self._count * kept + count
        self._seconds = self._seconds * kept + elapsed
        self._mark = now
        if is_empty:
            self.since = 0.0

    @property
    def _memory(self) -> float:
        """Seconds in which enough leave to measure their rate."""
        if not self._count:
            return LONGEST_MEMORY
        seconds = SAMPLES * self._seconds / self._count
        return min(LONGEST_MEMORY, max(SHORTEST_MEMORY, seconds))

    def is_standing(self, now: float) -> bool:
        """Whether there is a queue that does not come from one burst."""
        return self.since > 0.0 and now - self.since >= STANDING

    def wait(self, count: int, now: float) -> float:
        """Seconds until `count` will have left; 0 if nothing is known."""
        if not self._count:
            return 0.0
        return count * (self._seconds + now - self._mark) / self._count


@dataclass(frozen=True, slots=True)
class Begun:
    """When a request began, and where the clocks of a SharedRate stood: `runs` if it was among
    those that are computed.
    """

    started: float
    runs: bool
    work: float


class SharedRate:
    """How fast workers are that compute all they have together, such as a language model's engine.

    With N requests in it each gets 1/N of its time: the work for one is the sum of that until its
    answer.  It falls with N at first, so it is measured where most are open; until that was
    ENOUGH_OPEN, nothing is said of more than twice as many.  An engine computes `most_running`
    requests together, and lets later ones wait: of those the shares among all count.
    """

    __slots__ = (
        "_answers",
        "_began",
        "_by_all",
        "_by_running",
        "_late_after",
        "_mark",
        "_num",
        "_num_late",
        "_seconds",
        "most_running",
        "num_open",
    )

    def __init__(self) -> None:
        self.num_open = 0
        self.most_running = inf
        self._by_all = self._by_running = 0.0  # clocks: the shares of one request, summed up
        self._mark = self._began = 0.0  # when anything has changed, and when the last one came
        self._seconds = 0.0  # of the work for one request; 0 while unknown
        self._num = 0.0  # requests, at which that was measured
        self._answers = DrainRate()
        self._num_late = 0  # one after another, without an answer between them
        self._late_after = 0.0  # seconds, at most

    def begin(self, now: float) -> Begun:
        """A request has come."""
        self._advance(now)
        self.num_open += 1
        self._answers.fill(now)
        self._began = now
        runs = self.num_open <= self.most_running
        return Begun(now, runs, self._by_running if runs else self._by_all)

    def end(self, now: float) -> None:
        """A request is gone."""
        self._advance(now)
        self.num_open -= 1
        self._answers.drain(0, now, is_empty=not self.num_open)

    def work(self, begun: Begun, now: float) -> float:
        """What a request has got since it began."""
        self._advance(now)
        return (self._by_running if begun.runs else self._by_all) - begun.work

    def answered(self, work: float, seconds: float, now: float) -> None:
        """A request was answered after `seconds`, in which it got so much `work`."""
        self._answers.drain(1, now, is_empty=False)
        is_anew = not self._seconds or self.is_in_doubt
        self._num_late, self._late_after = 0, 0.0
        num_open = seconds / work if work > 0 else 1.0
        if is_anew:
            self._answers = DrainRate()
            self._answers.fill(now)
            self._seconds, self._num = work, num_open
        elif num_open < 0.5 * self._num:
            self._num *= 1 - 0.1 * _SMOOTHING
        else:
            weight = max(_SMOOTHING, min(0.5, SAMPLED / num_open))
            self._seconds += weight * (work - self._seconds)
            self._num += weight * (num_open - self._num)

    def late(self, work: float, seconds: float) -> None:
        """A request was not answered within `seconds`, though it got so much `work`."""
        self._num_late += 1
        self._late_after = max(self._late_after, seconds)
        if work > self._seconds > 0:
            self._seconds += _SMOOTHING * (work - self._seconds)

    @property
    def is_known(self) -> bool:
        """Whether it has been measured, and that still holds."""
        return self._seconds > 0 and not self.is_in_doubt

    @property
    def is_in_doubt(self) -> bool:
        """Whether as many were late, one after another, as there may be at a time."""
        return self._num_late > max(ENOUGH_OPEN, self._num)

    def sojourn(self, num_open: float) -> float:
        """Seconds that a request takes as one of `num_open`; 0 if that is not known."""
        is_known = self._num >= ENOUGH_OPEN or num_open <= 2 * self._num
        return num_open * self._seconds if is_known else 0.0

    def most(self, seconds: float, now: float) -> float:
        """How many may be open so that each is answered within `seconds`."""
        if self.is_in_doubt and seconds < 2 * self._late_after:
            return max(ENOUGH_OPEN, FEW_OPEN / (1 + self._num_late // MANY_LATE))
        if not self._seconds:
            return inf
        work = self._seconds
        if self._num >= ENOUGH_OPEN and self.num_open <= GROWN * self._num:
            work = max(work, self._answers.wait(1, now) / ERROR)
        most = seconds / work
        if self._num < ENOUGH_OPEN:
            most = max(most, 2 * self._num)
        return max(ENOUGH_OPEN, most)

    def is_too_soon(self, now: float) -> bool:
        """Whether one more would come faster than they are answered.  Those that come together end
        together: nothing is answered for long, and then what is late is all of them.
        """
        return now - self._began < SPACING * self._seconds

    def left(self, begun: Begun | None, now: float, num_open: float) -> float:
        """Seconds until its answer, if it is one of `num_open` from now on; None for one that has
        got nothing yet.
        """
        done = 0.0 if begun is None else self.work(begun, now)
        return max(0.0, self._seconds - done) * num_open

    def _advance(self, now: float) -> None:
        elapsed = now - self._mark
        self._mark = now
        if self.num_open:
            self._by_all += elapsed / self.num_open
            self._by_running += elapsed / min(self.num_open, self.most_running)
