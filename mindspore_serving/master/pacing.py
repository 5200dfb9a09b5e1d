"""How many parts of batched methods a worker may have at a time.  No clock: `now` is an argument.

Enough that it never waits for us, few enough that a free worker elsewhere, a deadline or a
cancellation still finds the rest in our queue: two batches, or what it answers in `TARGET`.
"""

from collections.abc import Sequence

from mindspore_serving.master.request import Answer, PendingPart

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


class Window:
    """What a worker has now, in messages of several parts, and how much more it may be sent."""

    __slots__ = ("_messages", "_most_messages", "_pace", "num_held")

    def __init__(self, most_messages: int) -> None:
        self.num_held = 0  # parts that are not answered
        self._pace = Pace()
        self._most_messages = most_messages
        self._messages: list[list[int]] = []  # [id of its last part, how many are not answered]

    def limit_messages(self, most: int) -> None:
        """There may be at most `most` messages, or fewer if that was so."""
        self._most_messages = min(self._most_messages, most)

    def room(self, batch_size: int) -> int:
        """How many more parts may be sent."""
        if len(self._messages) >= self._most_messages:
            return 0
        return self._pace.window(batch_size) - self.num_held

    def sent(self, parts: Sequence[PendingPart], now: float) -> None:
        """`parts` have left in one message."""
        if not self.num_held:
            self._pace.sent_first(now)
        self.num_held += len(parts)
        self._messages.append([parts[-1].id, len(parts)])

    def answered(self, answers: list[Answer], now: float) -> None:
        """`answers` came together."""
        count = 0
        for part, reply in answers:
            if reply.is_last:
                count += 1
                self._count_out(part.id)
        if count:
            self.num_held -= count
            self._pace.answered(count, now)

    def _count_out(self, part_id: int) -> None:
        """The part is answered in full; ids grow from message to message."""
        for message in self._messages:
            if part_id <= message[0]:
                message[1] -= 1
                if not message[1]:
                    self._messages.remove(message)
                return
