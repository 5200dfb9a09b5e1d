"""Limit of the parts of batched methods that a worker has at a time.

It has no clock: `now` is an argument.  The limit is high enough that the worker never waits for the
master, and low enough that free workers, deadlines and cancellations find the other parts in the
master's queue: two batches, or the parts that it answers in `TARGET` seconds.
"""

from collections.abc import Sequence

from mindspore_serving.master.request import Answer, PendingPart

TARGET = 0.004  # seconds of work in flight
MAX_WINDOW = 256  # parts, unless two batches are more
_SMOOTHING = 0.2


class Pace:
    """Smoothed time per part, learned from answers."""

    __slots__ = ("_mark", "_seconds")

    def __init__(self) -> None:
        self._seconds = 0.0  # per part, smoothed; 0 while unknown
        self._mark = 0.0  # time of the last answer, or of the first part sent before it

    def sent_first(self, now: float) -> None:
        """Record that parts were sent to an idle worker."""
        self._mark = now

    def answered(self, count: int, now: float) -> None:
        """Record that `count` parts were answered."""
        seconds = (now - self._mark) / count
        self._mark = now
        if self._seconds:
            seconds = self._seconds + _SMOOTHING * (seconds - self._seconds)
        self._seconds = seconds

    def window(self, batch_size: int) -> int:
        """Return the limit of parts in flight for a method with this batch size."""
        if not self._seconds:
            return 2 * batch_size
        return max(2 * batch_size, min(MAX_WINDOW, int(TARGET / self._seconds)))


class Window:
    """Parts in flight of one worker, by message, and how many more can be sent."""

    __slots__ = ("_messages", "_max_messages", "_pace", "num_in_flight")

    def __init__(self, max_messages: int) -> None:
        self.num_in_flight = 0  # parts that are not answered
        self._pace = Pace()
        self._max_messages = max_messages
        self._messages: list[list[int]] = []  # [id of the last part, number of unanswered parts]

    def limit_messages(self, limit: int) -> None:
        """Limit the number of messages in flight, unless the limit is lower already."""
        self._max_messages = min(self._max_messages, limit)

    def room(self, batch_size: int) -> int:
        """Return how many more parts can be sent."""
        if len(self._messages) >= self._max_messages:
            return 0
        return self._pace.window(batch_size) - self.num_in_flight

    def sent(self, parts: Sequence[PendingPart], now: float) -> None:
        """Record that `parts` were sent in one message."""
        if not self.num_in_flight:
            self._pace.sent_first(now)
        self.num_in_flight += len(parts)
        self._messages.append([parts[-1].id, len(parts)])

    def answered(self, answers: list[Answer], now: float) -> None:
        """Record `answers`, which arrived together."""
        count = 0
        for part, reply in answers:
            if reply.is_last:
                count += 1
                self._count_out(part.id)
        if count:
            self.num_in_flight -= count
            self._pace.answered(count, now)

    def _count_out(self, part_id: int) -> None:
        """Count an answered part; ids grow from message to message."""
        for message in self._messages:
            if part_id <= message[0]:
                message[1] -= 1
                if not message[1]:
                    self._messages.remove(message)
                return
