"""Refusals of requests by their head, when no worker has room: their bodies are not parsed.

A small body is read and discarded, so that the connection can be kept.  If many requests are
refused, their answers are delayed a little, which bounds the CPU time for clients that retry at
once.
"""

import asyncio
from collections.abc import Callable
from math import ceil

from mindspore_serving.frontends.http.exchange import Exchange, ExchangeOutput
from mindspore_serving.frontends.http.head import RequestHead
from mindspore_serving.frontends.request_id import NAME, id_of

SMALL = 64 << 10  # bytes of a body that is read and discarded
RATE = 500.0  # refusals per second without a delay: some 3 % of a core
BURST = 100  # refusals at once without a delay
MAX_DELAY = 1.0  # seconds
TICK = 0.05  # seconds; delays end at multiples: refusals that are answered together cost less
Fields = list[tuple[bytes, bytes]]


class RefusalPace:
    """Rate limit of refusals: RATE per second after BURST at once, delayed by at most MAX_DELAY.

    A token bucket without a clock: `now` is an argument, in seconds.
    """

    __slots__ = ("_next",)

    def __init__(self) -> None:
        self._next = 0.0  # when the next refusal is due at an even rate

    def delay(self, now: float) -> float:
        """Return the seconds by which to delay the next refusal."""
        due = max(self._next, now - BURST / RATE)
        self._next = min(due + 1 / RATE, now + MAX_DELAY)
        if due <= now:
            return 0.0
        return min(MAX_DELAY, ceil(due / TICK) * TICK - now)


def reads_body(head: RequestHead) -> bool:
    """Return whether the body of a refused request is read: it is small and sent unasked."""
    size = head.fields.get(b"content-length", b"0")
    return (
        b"expect" not in head.fields
        and b"transfer-encoding" not in head.fields
        and size.isdigit()
        and int(size) <= SMALL
    )


class EarlyRefusal(Exchange):
    """A request that is refused; `answer` returns status, headers and body for its id."""

    __slots__ = ("_answer", "_is_over", "_reads_body", "_is_started", "_pace", "protocol", "route")

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
        self._reads_body = reads_body(head)
        self._is_started = self._is_over = False
        self.route = ""  # path as declared

    def route_path(self) -> str:
        return self.route

    def start(self) -> None:
        self._is_started = True
        if self.is_complete or not self._reads_body:
            self._refuse()

    def end(self) -> None:
        self.is_complete = True
        if self._is_started and self._reads_body:
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
        fields = [*fields, (NAME, self.request_id)]
        self.output.answer(self.status, fields, body, keep_alive=self.keep_alive)
