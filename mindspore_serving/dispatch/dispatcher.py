"""The `Inference` of the master: find the queue, cut the request into parts, give them to workers.

Work is handed out once per turn of the loop, so that requests that arrive together leave
together, in one message per worker.
"""

import asyncio
import time
from collections.abc import Callable, Sequence

from mindspore_serving.aio import Ticker
from mindspore_serving.core.service import Reply, Request
from mindspore_serving.dispatch.calls import CallState, Part, cut
from mindspore_serving.dispatch.link import Link
from mindspore_serving.dispatch.registry import Line, Registry
from mindspore_serving.errors import (
    DeadlineExceeded,
    InvalidInputs,
    Overloaded,
    ServableUnavailable,
    ServingError,
    WorkerUnavailable,
)
from mindspore_serving.ipc.messages import Call as WorkerCall
from mindspore_serving.wire import cutting

DEFAULT_LIMIT = 10_000
MOST_ATTEMPTS = 2


class Dispatcher:
    """Owns the requests in flight.  Everything happens on the loop's thread."""

    def __init__(self, registry: Registry) -> None:
        self.registry = registry
        self.limit = DEFAULT_LIMIT
        self.num_in_flight = 0
        self._loop = asyncio.get_running_loop()
        self._now = time.monotonic  # uvloop's clock counts milliseconds
        self._ticker = Ticker(self._loop, self._hand_out)
        self._busy: dict[Line, None] = {}  # lines where something waits, in order
        self._calls: set[CallState] = set()

    # --- requests ---------------------------------------------------------------------------

    def submit(self, request: Request, on_reply: Callable[[Reply], None]) -> CallState:
        """See `core.service.Inference.submit`."""
        now = self._now()
        call = CallState(None, on_reply, self._on_done, now)
        self._calls.add(call)
        self.num_in_flight += 1
        try:
            if self.num_in_flight > self.limit:
                raise Overloaded(
                    f"Serving Error: enqueued requests count exceeds the limit {self.limit}"
                )
            line = self.registry.find(request.servable, request.version, request.method)
            call.line = line
            call.set_parts(self._parts(call, line, request.codec, request.body))
            if request.is_stream:
                self._check_stream(call)
            self._start(call, line, request.timeout, now)
        except ServingError as error:
            self._loop.call_soon(call.fail, error)
        return call

    def on_call(self, link: Link, message: WorkerCall) -> None:
        """A worker wants a model of another worker to be run."""
        item = message.item

        def answer(reply: Reply) -> None:
            link.answer_call(item.id, reply)

        call = CallState(None, answer, self._on_done, self._now())
        self._calls.add(call)
        self.num_in_flight += 1
        try:
            line = self.registry.find(message.servable, message.version, item.method)
            call.line = line
            chunks: list[cutting.Chunk] = [c for c in item.chunks if isinstance(c, bytes)]
            call.set_parts(self._cut(call, line, item.codec, chunks))
            self._start(call, line, item.timeout, call.started)
        except ServingError as error:
            call.fail(error)

    def fail_all(self, error: ServingError) -> None:
        """Answer everything that is under way with `error`."""
        for call in list(self._calls):
            call.fail(error)

    def _parts(
        self, call: CallState, line: Line, codec: str, body: bytes | bytearray
    ) -> list[Part]:
        """The body as it is where one worker gets it all; else cut at the instances."""
        if len(line.workers) == 1 and not line.batcher.policy.preferred_size:
            return [Part(call, 0, *cutting.whole(codec, body))]
        codec, chunks = cutting.split(codec, body)
        return self._cut(call, line, codec, chunks)

    def _cut(
        self, call: CallState, line: Line, codec: str, chunks: Sequence[cutting.Chunk]
    ) -> list[Part]:
        if not chunks:
            raise InvalidInputs(f"Instances count of request cannot be 0, {line.label}")
        if line.batcher.policy.preferred_size:
            return cut(call, codec, chunks, workers=len(chunks), batch_size=1)
        batch_size = line.report.batch_size
        return cut(call, codec, chunks, workers=len(line.workers), batch_size=batch_size)

    def _start(self, call: CallState, line: Line, timeout: float | None, now: float) -> None:
        if timeout is not None:
            call.deadline = now + timeout
            call.timer = self._loop.call_later(timeout, self._expire, call, timeout)
        for part in call.parts:
            line.batcher.add(part, now)
        self._busy[line] = None
        self._ticker.arm()

    def _check_stream(self, call: CallState) -> None:
        if len(call.parts) != 1:
            raise InvalidInputs(f"a stream takes one instance, {len(call.parts)} were given")
        call.parts[0].is_stream = True

    def _expire(self, call: CallState, timeout: float) -> None:
        call.fail(DeadlineExceeded(f"no answer within {timeout:g} seconds"))

    def _on_done(self, call: CallState, code: int) -> None:
        self._calls.discard(call)
        self.num_in_flight -= 1
        if call.timer is not None:
            call.timer.cancel()
        if call.line is not None:
            call.line.series.observe(self._now() - call.started, code)
        for part in call.parts:
            part.chunks = ()  # it may lie in a queue for long
            if part.holder is not None:
                part.holder.cancel(part)
        call.parts = []  # they point to their call: a cycle would keep the reply for long

    # --- queues to workers ----------------------------------------------------------------

    def _hand_out(self) -> None:
        now = self._now()
        for line in list(self._busy):
            while self._hand_out_once(line, now):
                pass
            if not len(line.batcher):
                del self._busy[line]
            else:
                self._wake_when_due(line, now)

    def _hand_out_once(self, line: Line, now: float) -> bool:
        """Give the freest worker of `line` its share of what waits.  False if nothing moved."""
        oldest = line.batcher.peek()
        if oldest is None:
            return False
        size = line.report.batch_size
        if line.report.streams:  # one by one, each to whoever has the fewest by then
            link, room, num_free = _least_streams(line.workers), 1, 1
        else:
            link, room, num_free = _freest(line.workers, size)
        if link is None:
            return False
        batch = -(-size // max(1, len(oldest.chunks)))  # parts that fill one
        share = max(batch, -(-len(line.batcher) // num_free))
        parts = line.batcher.take(min(room, share), now)
        if not parts:
            return False
        parts = [part for part in parts if not part.call.is_done]
        if parts:
            link.send_work(parts, now, is_paced=not line.report.streams)
            if len(line.workers) > 1:  # among equals the one that waited longest is next
                line.workers.remove(link)
                line.workers.append(link)
        return True

    def _wake_when_due(self, line: Line, now: float) -> None:
        due = line.batcher.due()
        if due is not None and due > now and line.wake_at != due:
            line.wake_at = due
            self._loop.call_later(due - now, self._wake, line)

    def _wake(self, line: Line) -> None:
        line.wake_at = 0.0  # the loop's clock is coarse: if it is early, wait for the rest
        self._ticker.arm()

    # --- what workers say -------------------------------------------------------------------

    def on_answers(self, link: Link, answers: list[tuple[Part, Reply]]) -> None:
        for part, reply in answers:
            if reply.is_last:
                part.holder = None
            else:
                part.has_replied = True
            part.call.answer(part, reply)
        if self._busy:
            self._ticker.arm()

    def on_new_worker(self) -> None:
        if self._busy:
            self._ticker.arm()

    def give_elsewhere(self, parts: Sequence[Part], reason: str) -> None:
        """The worker that held `parts` died: once more on another one, or the bad news."""
        for part in parts:
            part.holder = None
            line = part.call.line
            if part.call.is_done or line is None:
                continue
            can_retry = line.can_retry and part.attempts < MOST_ATTEMPTS and not part.has_replied
            if line.workers and can_retry:
                line.batcher.put_back(part)
                self._busy[line] = None
                self._ticker.arm()
            else:
                part.call.fail(WorkerUnavailable(f"{line.label}: {reason}"))

    def fail_line(self, line: Line) -> None:
        """Nobody can run `line` now: answer what waits in it."""
        self._busy.pop(line, None)
        for part in line.batcher.clear():
            part.call.fail(ServableUnavailable(f"Request {line.label} , servable is not available"))


def _least_streams(workers: Sequence[Link]) -> Link | None:
    """Requests of a method that streams do not wait for each other: an engine schedules them."""
    return min(workers, key=lambda link: link.num_unpaced, default=None)


def _freest(workers: Sequence[Link], batch_size: int) -> tuple[Link | None, int, int]:
    """The worker that has filled the least of its window, its room, and how many have any.

    Not the one with the most room: a fast worker has more of it than an idle slow one, and would
    be given every part of a request.
    """
    freest, its_room, least, num_free = None, 0, 1.0, 0
    for link in workers:
        room = link.room(batch_size)
        if room <= 0:
            continue
        num_free += 1
        held = link.num_held
        filled = held / (held + room)
        if filled < least:
            freest, its_room, least = link, room, filled
    return freest, its_room, num_free
