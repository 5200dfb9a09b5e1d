"""Requests that are refused from their head, for want of room: what they hold is not looked at.

A body that is small is read, so that the connection may go on.  If many are refused, each waits a
little for its answer: clients that come again at once take no more of the processor than so many
refusals cost.
"""

import asyncio
from collections.abc import Callable
from math import ceil

from mindspore_serving.frontends.http.exchange import Exchange, ExchangeOutput, head_of, length_of
from mindspore_serving.frontends.http.head import RequestHead
from mindspore_serving.frontends.request_id import NAME, id_of

SMALL = 64 << 10  # bytes of a body that is read all the same
RATE = 500.0  # refusals per second that are answered at once: some 3 % of a core
BURST = 100
LONGEST = 1.0  # seconds that one waits
TICK = 0.05  # ... in steps of so many: those that are answered together cost less
Fields = list[tuple[bytes, bytes]]


class RefusalPace:
    """When refusals are answered: RATE per second, after BURST at once, none later than LONGEST.
    No clock: `now` is an argument, in seconds.
    """

    __slots__ = ("_next",)

    def __init__(self) -> None:
        self._next = 0.0  # when one more is due, if they come evenly

    def delay(self, now: float) -> float:
        """Seconds for which the next one waits."""
        due = max(self._next, now - BURST / RATE)
        self._next = min(due + 1 / RATE, now + LONGEST)
        if due <= now:
            return 0.0
        return min(LONGEST, ceil(due / TICK) * TICK - now)


def is_read(head: RequestHead) -> bool:
    """Whether a refused request is read to its end: it is small, and comes without being asked."""
    size = head.fields.get(b"content-length", b"0")
    return (
        b"expect" not in head.fields
        and b"transfer-encoding" not in head.fields
        and size.isdigit()
        and int(size) <= SMALL
    )


class TurnedAway(Exchange):
    """A request that is refused: `answer` gives the status, the headers and the body for its id."""

    __slots__ = ("_answer", "_is_over", "_is_read", "_is_started", "_pace", "protocol", "route")

    def __init__(
        self,
        head: RequestHead,
        output: ExchangeOutput,
        pace: RefusalPace,
        answer: Callable[[bytes], tuple[int, Fields, bytes]],
    ) -> None:
        super().__init__(output, head.keep_alive)
        self.request_id = id_of(head.fields.get(NAME))
        self._answer = answer
        self._pace = pace
        self._is_read = is_read(head)
        self._is_started = self._is_over = False
        self.route = ""  # as its protocol declares it

    def route_path(self) -> str:
        return self.route

    def start(self) -> None:
        self._is_started = True
        if self.is_complete or not self._is_read:
            self._refuse()

    def end(self) -> None:
        self.is_complete = True
        if self._is_started and self._is_read:
            self._refuse()

    def _refuse(self) -> None:
        loop = asyncio.get_running_loop()
        delay = self._pace.delay(loop.time())
        if delay:
            loop.call_later(delay, self._write)
        else:
            self._write()

    def disconnect(self) -> None:
        self._is_over = True

    def expire(self, error: Exception) -> None:
        self._write()

    def _write(self) -> None:
        if self._is_over:
            return
        self._is_over = self.has_responded = True
        self.keep_alive = self.keep_alive and self.is_complete
        self.status, fields, body = self._answer(self.request_id)
        self.num_sent = len(body)
        fields = [*fields, (NAME, self.request_id), length_of(body)]
        head = head_of(self.status, fields, keep_alive=self.keep_alive)
        self.output.transport.write(head + body)
        self.output.finished()
