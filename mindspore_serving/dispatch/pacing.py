"""How many parts a worker may hold at a time.  No clock: `now` is an argument.

Enough that it never waits for us, few enough that a free worker elsewhere, a deadline or a
cancellation still finds the rest in our queue: two batches, or what it answers in `TARGET`.
"""

TARGET = 0.004  # seconds of work in flight
MOST = 256
_SMOOTHING = 0.2


class Pace:
    """Learns from answers how long a part takes."""

    __slots__ = ("_mark", "_seconds")

    def __init__(self) -> None:
        self._seconds = 0.0  # per part, smoothed; 0 while unknown
        self._mark = 0.0

    def sent_first(self, now: float) -> None:
        """Work went to a worker that had none."""
        self._mark = now

    def answered(self, count: int, now: float) -> None:
        """`count` parts came back."""
        seconds = (now - self._mark) / count
        self._mark = now
        if self._seconds:
            seconds = self._seconds + _SMOOTHING * (seconds - self._seconds)
        self._seconds = seconds

    def window(self, batch_size: int) -> int:
        """The most parts to have in flight for a method with this batch size."""
        if not self._seconds:
            return 2 * batch_size
        return max(2 * batch_size, min(MOST, int(TARGET / self._seconds)))
