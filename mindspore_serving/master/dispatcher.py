"""The `Inference` of the master: finds the method, whose strategy takes the request from there.

Here is what both strategies share: the limit, deadlines, cancellation, counting, replies, retries.
Which worker gets a part, and when, is decided in `batched` and `streamed`.
"""

import asyncio
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import cast

from mindspore_serving import log
from mindspore_serving.core.deployment import Deployment
from mindspore_serving.core.service import Reply, Request
from mindspore_serving.errors import (
    DeadlineExceeded,
    Overloaded,
    ServingError,
    StageFailed,
    WorkerUnavailable,
)
from mindspore_serving.ipc.messages import MethodReport, WorkerCall
from mindspore_serving.master.batched import BatchedMethod, BatchScheduler
from mindspore_serving.master.call_trace import CallTrace
from mindspore_serving.master.link import Link
from mindspore_serving.master.registry import Method, Registry, ServableService
from mindspore_serving.master.request import (
    QUEUED,
    SENT,
    Answer,
    PendingPart,
    PendingRequest,
    RetryDecision,
    decide_retry,
)
from mindspore_serving.master.shares import Shares
from mindspore_serving.master.streamed import StreamBalancer, StreamedMethod
from mindspore_serving.tracing.request_span import RequestSpan
from mindspore_serving.tracing.request_span import current as current_span
from mindspore_serving.tracing.span import SpanRecorder, from_traceparent

DEFAULT_LIMIT = 10_000
LOOK_SECONDS = 0.05  # between two looks at what waits for too long
NEAR = 60.0  # seconds; a deadline further away gets its timer later: most requests end before


class Dispatcher:
    """Owns the requests in flight.  Everything happens on the loop's thread."""

    def __init__(self) -> None:
        self.shares = Shares(DEFAULT_LIMIT)
        self.registry = Registry(self._new_method)
        self._loop = asyncio.get_running_loop()
        self._now = time.monotonic  # uvloop's clock counts milliseconds
        self._batches = BatchScheduler(self._deliver)
        self._streams = StreamBalancer(self._deliver)
        self._requests: dict[PendingRequest, Method | None] = {}  # None: no method was found
        self._is_sweeping = False
        self.is_refusing = False
        self.recorder: SpanRecorder | None = None  # of traces

    @property
    def num_in_flight(self) -> int:
        return len(self._requests)

    def _new_method(self, deployment: Deployment, version: int, report: MethodReport) -> Method:
        method: Method
        if report.streams:
            method = StreamedMethod(self._streams, deployment, version, report)
        else:
            method = BatchedMethod(self._batches, deployment, version, report)
        method.share = self.shares.share(deployment.name, deployment.max_requests)
        return method

    # --- requests ---------------------------------------------------------------------------

    def submit(self, request: Request, on_reply: Callable[[Reply], None]) -> PendingRequest:
        """See `core.service.Inference.submit`."""
        pending = PendingRequest(request.method, on_reply, self._on_done, self._now())
        pending.id = request.id or log.request_id.get()
        try:
            method = self.registry.find(request.servable, request.version, request.method)
            if method.measures_all or method.admission.queue.since:
                method.admit(request.timeout, pending.started)
            self.shares.take(method.share)
            self._requests[pending] = method
            pending.prefix = request.prefix
            pending.parts = method.cut_body(pending, request.codec, request.body)
            if request.is_stream:
                pending.make_stream()
            span = request.span or current_span.get()
            if span is not None:
                pending.trace = _trace(span, method)
            if request.timeout is not None:
                self._limit(pending, request.timeout)
            self._put(pending, method)
        except ServingError as error:
            self._refuse(pending, error)
        except Exception:
            log.error("taking a request to method %s", request.method, exc_info=True)
            text = "the request could not be read; the server's log says why"
            self._refuse(pending, ServingError(text))
        return pending

    def refusal(
        self, servable: str, version: int, method: str, timeout: float | None
    ) -> Overloaded | None:
        """See `core.service.Inference.refusal`."""
        try:
            found = self.registry.find(servable, version, method)
            if found.measures_all or found.admission.queue.since:
                found.admit(timeout, self._now())
            self.shares.check(found.share)
        except Overloaded as error:
            return error.with_traceback(None)
        except ServingError:
            return None  # who submits it is told
        self.is_refusing = False
        return None

    def _refuse(self, request: PendingRequest, error: ServingError) -> None:
        """Soon, as every reply."""
        if isinstance(error, Overloaded):
            self.is_refusing = True
        self._requests.setdefault(request)
        self._loop.call_soon(request.fail, error)

    def on_call(
        self, link: Link, message: WorkerCall, caller: ServableService | None = None
    ) -> None:
        """A worker, of the service `caller`, wants a model of another worker to be run."""
        part = message.part

        def answer(reply: Reply) -> None:
            link.answer_call(part.id, reply)

        pending = PendingRequest(part.method, answer, self._on_done, self._now())
        pending.id = part.request_id
        self._requests[pending] = None
        try:
            method = _own_method(caller, message) or self.registry.find(
                message.servable, message.version, part.method
            )
            self.shares.count(method.share)
            self._requests[pending] = method
            if part.traceparent and self.recorder is not None:
                parent = from_traceparent(part.traceparent, part.tracestate)
                pending.trace = CallTrace(self.recorder, parent, method.attributes)
            chunks = [chunk for chunk in part.chunks if isinstance(chunk, bytes)]
            pending.parts = method.cut(pending, part.codec, chunks)
            if part.timeout is not None:
                self._limit(pending, part.timeout)
            self._put(pending, method)
        except ServingError as error:
            pending.fail(error)

    def num_in(self, methods: Collection[object]) -> int:
        """How many requests are in flight of `methods`."""
        return sum(method in methods for method in self._requests.values())

    def fail_all(self, error: ServingError, methods: Collection[object] | None = None) -> None:
        """Answer with `error` everything that is in flight, or that of `methods`."""
        for request, method in list(self._requests.items()):
            if methods is None or method in methods:
                request.fail(error)

    def _limit(self, request: PendingRequest, timeout: float) -> None:
        """Have `request` expire in so many seconds from its start."""
        request.deadline = request.started + timeout
        if timeout <= NEAR:
            self._arm(request, timeout, timeout)
        elif not self._is_sweeping:
            self._is_sweeping = True
            self._loop.call_later(NEAR / 2, self._sweep)

    def _arm(self, request: PendingRequest, seconds: float, timeout: float) -> None:
        """Have `request` expire in so many seconds, of the `timeout` it was given."""
        timer = self._loop.call_later(seconds, self._expire, request, timeout)
        request.stop_timer = timer.cancel

    def _sweep(self) -> None:
        """Give timers to the requests whose deadlines have come near."""
        now = self._now()
        for request in self._requests:
            if request.deadline is not None and request.stop_timer is None:
                left = request.deadline - now
                if left <= NEAR:
                    self._arm(request, max(0.0, left), request.deadline - request.started)
        self._is_sweeping = bool(self._requests)
        if self._is_sweeping:
            self._loop.call_later(NEAR / 2, self._sweep)

    def _put(self, request: PendingRequest, method: Method) -> None:
        method.put(request.parts, request.started)
        if method.max_queue_seconds and not method.is_watched:
            method.is_watched = True
            seconds, now = method.max_queue_seconds, request.started
            self._loop.call_later(seconds, self._look_at_queue, method, now)

    def _look_at_queue(
        self, method: Method, looked: float, late: Sequence[PendingRequest] = ()
    ) -> None:
        """Refuse the requests to `method` that are `late`, and wait now as at the look before, at
        `looked`: a worker that is between two steps runs nothing for a moment.
        """
        now, limit = self._now(), method.max_queue_seconds
        seen = [(one, _is_waiting(one)) for one in late if not one.is_done]
        for request, is_waiting in seen:
            if is_waiting:
                text = f"{method.label}: it waited for over {limit:g} s (max_queue_seconds)"
                request.fail(Overloaded(text, retry_after=limit))
        theirs = [one for one, its in self._requests.items() if its is method]
        reached = [one for one in theirs if looked < one.started + limit <= now]
        late = [one for one, is_waiting in seen if is_waiting is None]
        late += [one for one in reached if _is_waiting(one) is not False]
        first = next(
            (one.started + limit - now for one in theirs if one.started + limit > now), 0.0
        )
        method.is_watched = bool(late or first)
        if method.is_watched:
            seconds = LOOK_SECONDS if late else max(LOOK_SECONDS, first)
            self._loop.call_later(seconds, self._look_at_queue, method, now, late)

    def _expire(self, request: PendingRequest, timeout: float) -> None:
        request.fail(DeadlineExceeded(f"no answer within {timeout:g} seconds"))

    def _on_done(self, request: PendingRequest, code: int) -> None:
        method = self._requests.pop(request)
        if request.stop_timer is not None:
            request.stop_timer()
        if method is not None:
            self.shares.release(method.share)
            now = self._now()
            waited = -1.0  # it was not sent
            if request.parts and (first := request.parts[0]).state is SENT:
                waited = first.sent_at - request.started
            method.series.observe(now - request.started, code, now, request.num_instances, waited)
            if code or method.measures_all or method.admission.queue.since:
                method.count_done(request, code, now)
        if request.trace is not None:
            request.trace.ended(code, len(request.parts))
        for part in request.parts:
            part.chunks = ()  # it may lie in a queue for long
            if part.link is not None:
                part.link.cancel(part)
            if part.state is QUEUED and method is not None:
                method.on_dropped(part)
        request.parts = ()  # they point to their request: a cycle would keep the reply for long

    # --- answers and losses -----------------------------------------------------------------

    def _deliver(self, answers: list[Answer]) -> None:
        """Workers have answered; the strategy that sent the parts has counted it."""
        for part, reply in answers:
            if part.is_isolated and reply.has_output:
                self._on_suspect_replied(part)
            if reply.is_last:
                part.link = None
            elif not reply.has_output:
                if part.request.is_accepted:
                    continue  # by a second worker: whoever waits knows already
                part.request.is_accepted = True
            elif not part.has_replied:
                part.has_replied = True
                part.request.first_output = self._now()
            part.request.answer(part, reply)

    def _on_suspect_replied(self, part: PendingPart) -> None:
        method = self._requests.get(part.request)
        if method is not None:
            method.on_suspect_replied(part)

    def withhold(self, link: Link, methods: Iterable[Method]) -> None:
        """Give the worker of `methods` no work for now; what only waits there is taken back."""
        for method in methods:
            method.withhold(link)
        is_running = _running_in(link)
        for part in reversed(list(link.parts.values())):
            method_of = self._requests.get(part.request)
            if method_of is None or part.has_replied or not method_of.can_retry:
                continue
            if not is_running(part):
                link.cancel(part)
                method_of.put_back(part.request.replace(part))

    def on_lost(self, link: Link, reason: str) -> None:
        """Its worker died: the parts it had go to another one, or fail."""
        self._batches.forget(link)
        self._streams.forget(link)
        is_running = _running_in(link)
        for part in reversed(link.take_parts()):
            part.link = None
            if part.request.trace is not None:
                part.request.trace.lost(part)
            method = self._requests.get(part.request)
            if method is None:  # nobody waits any more
                continue
            was_running = is_running(part)
            if was_running and link.overdue is not None and link.overdue.has(part.id):
                part.request.fail(StageFailed(f"{method.label}: {link.why_ended}"))
                continue
            decision = decide_retry(part, was_running=was_running, can_retry=method.can_retry)
            if decision is RetryDecision.FAIL:
                part.request.fail(WorkerUnavailable(f"{method.label}: {reason}"))
            else:
                part.is_isolated = decision is RetryDecision.ISOLATE
                method.put_back(part)

    def fail_waiting(self, method: Method, error: ServingError) -> None:
        """No worker is expected to run `method` soon: answer what waits for it."""
        for part in method.take_waiting():
            part.request.fail(error)


def _trace(span: RequestSpan, method: Method) -> CallTrace:
    span.attributes.update(method.attributes)
    return CallTrace(span.recorder, span.context, method.attributes, span)


def _own_method(caller: ServableService | None, message: WorkerCall) -> Method | None:
    """What the worker of `caller` calls there: not that of a service which has taken its place."""
    if caller is None or message.servable != caller.name:
        return None
    if message.version not in (0, caller.version):
        return None
    return caller.methods.get(message.part.method)


def _is_waiting(request: PendingRequest) -> bool | None:
    """Whether no part of it has been run, or is when its worker was seen last; None if that cannot
    be seen now.
    """
    is_waiting: bool | None = True
    for part in request.parts:
        has_left = part.state is SENT
        if part.has_replied or (has_left and part.link is None):
            return False
        for one in cast("Link", part.link).running() if has_left else ():
            if one.ids is None:
                is_waiting = None
            elif part.id in one.ids:
                return False
    return is_waiting


def _running_in(link: Link) -> Callable[[PendingPart], bool]:
    """Whether the worker was at a part when it was seen last."""
    running = link.running()
    return lambda part: any(one.has(part.id) for one in running)
