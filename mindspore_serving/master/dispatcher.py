"""Dispatcher of the master: the `Inference` that finds a request's method and tracks the request.

It has what both dispatch strategies share: the limit of requests, deadlines, cancellation,
counting, replies and retries.  Which worker gets a part, and when, is decided in `batched` and
`streamed`.
"""

import asyncio
import time
from collections.abc import Callable, Collection, Iterable
from typing import cast

from msgspec.structs import replace

from mindspore_serving import log
from mindspore_serving.core.deployment import Deployment
from mindspore_serving.core.roles import PREFILL_METHOD
from mindspore_serving.core.service import Reply, Request, tenant_of_task
from mindspore_serving.errors import (
    DeadlineExceeded,
    Overloaded,
    ServingError,
    StageFailed,
    WorkerUnavailable,
)
from mindspore_serving.ipc.messages import MethodReport, Slice, WorkerCall
from mindspore_serving.master.batched import BatchedMethod, BatchScheduler
from mindspore_serving.master.call_trace import CallTrace
from mindspore_serving.master.chained_calls import ChainedCall
from mindspore_serving.master.link import Link
from mindspore_serving.master.nested_calls import NestedCalls
from mindspore_serving.master.queue_watch import QueueWatch
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
from mindspore_serving.master.sequenced import SequencedMethod
from mindspore_serving.master.shares import Shares
from mindspore_serving.master.streamed import StreamBalancer, StreamedMethod
from mindspore_serving.tracing.request_span import RequestSpan
from mindspore_serving.tracing.request_span import current as current_span
from mindspore_serving.tracing.span import SpanRecorder, from_traceparent

DEFAULT_LIMIT = 10_000
NEAR_SECONDS = 60.0  # later deadlines get their timer later, as most requests end before

_UNWANTED = "the request has ended"


class Dispatcher:
    """Owner of the requests in flight.  It runs on the event loop's thread only."""

    def __init__(self) -> None:
        self.shares = Shares(DEFAULT_LIMIT)
        self.registry = Registry(self._new_method)
        self._loop = asyncio.get_running_loop()
        self._now = time.monotonic  # uvloop's clock counts milliseconds
        self._batches = BatchScheduler(self._deliver)
        self._streams = StreamBalancer(self._deliver)
        self._requests: dict[PendingRequest, Method | None] = {}  # None: the method is unknown
        self._nested = NestedCalls()
        self._queue_watch = QueueWatch(self._requests)
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
        elif report.state_bytes is not None:
            method = SequencedMethod(self._batches, deployment, version, report)
        else:
            method = BatchedMethod(self._batches, deployment, version, report)
        method.share = self.shares.share(deployment.name, deployment.max_requests)
        return method

    # --- requests ---------------------------------------------------------------------------

    def submit(self, request: Request, on_reply: Callable[[Reply], None]) -> PendingRequest:
        """Implement `core.service.Inference.submit`."""
        pending = PendingRequest(request.method, on_reply, self._on_done, self._now())
        pending.id = request.id or log.request_id.get()
        pending.is_background, pending.is_shadow = request.is_background, request.is_shadow
        pending.priority = request.priority
        pending.tenant = request.tenant or tenant_of_task.get()
        if request.sequence is not None:
            pending.sequence = replace(request.sequence, owner=pending.tenant)
        try:
            target, step = (request.servable, request.version, request.method), pending.sequence
            find, find_for = self.registry.find, self.registry.find_for
            method = find(*target) if step is None else find_for(step, *target)
            measures = method.measures_all or method.admission.queue.since
            if measures and not request.is_background:
                method.admit(request.timeout, pending.started, pending.tenant)
            if not request.is_shadow:
                self.shares.take(method.share)
            self._requests[pending] = method
            pending.prefix = request.prefix
            pending.parts = method.split_body(pending, request.codec, request.body)
            if request.is_stream:
                pending.make_stream()
            span = request.span or current_span.get()
            if span is not None and not request.is_shadow:
                pending.trace = _trace(span, method)
            if request.timeout is not None:
                self._limit(pending, request.timeout)
            self._put(pending, method)
        except ServingError as error:
            self._refuse(pending, error)
        except Exception:
            log.error("failed to dispatch a request to method %s", request.method, exc_info=True)
            text = "the request could not be dispatched, see the server's log"
            self._refuse(pending, ServingError(text))
        return pending

    def refusal(
        self, servable: str, version: int, method: str, timeout: float | None
    ) -> Overloaded | None:
        """Implement `core.service.Inference.refusal`."""
        try:
            target = self.registry.find(servable, version, method)
            if target.measures_all or target.admission.queue.since:
                target.admit(timeout, self._now())
            self.shares.check(target.share)
        except Overloaded as error:
            return error.with_traceback(None)
        except ServingError:
            return None  # `submit` reports the error
        self.is_refusing = False
        return None

    def _refuse(self, request: PendingRequest, error: ServingError) -> None:
        """Reply with `error` in the next turn of the loop, as every reply is asynchronous."""
        if isinstance(error, Overloaded):
            self.is_refusing = True
        self._requests.setdefault(request)
        self._loop.call_soon(request.fail, error)

    def on_call(
        self, link: Link, message: WorkerCall, caller: ServableService | None = None
    ) -> None:
        """Run the call of a worker, or its chain of calls; it belongs to the service `caller`."""
        call_id = message.part.id

        def answer(reply: Reply) -> None:
            if reply.has_output or reply.is_last:
                link.answer_call(call_id, reply)

        if message.steps:
            self._call_next(link, ChainedCall(message), caller)
        else:
            self._call(link, message, caller, answer)

    def on_dropped_call(self, link: Link, call_id: int) -> None:
        """End a call of a worker, which needs no reply to it."""
        for call in self._nested.made_by(link, call_id):
            call.cancel()

    def _call_next(self, link: Link, chain: ChainedCall, caller: ServableService | None) -> None:
        """Make the next call of a chain, or answer the worker after the last one."""

        def answer(reply: Reply) -> None:
            chain.take(reply)
            self._call_next(link, chain, caller)

        if (message := chain.next_call()) is None:
            link.answer_call(chain.id, chain.reply(), chain.failed_at)
        else:
            self._call(link, message, caller, answer)

    def _call(
        self,
        link: Link,
        message: WorkerCall,
        caller: ServableService | None,
        on_reply: Callable[[Reply], None],
    ) -> None:
        part = message.part
        pending = PendingRequest(part.method, on_reply, self._on_done, self._now(), is_call=True)
        pending.id = part.request_id
        self._requests[pending] = None
        try:
            method = _method_of_caller(caller, message) or self.registry.find_routed(
                message.servable, message.version, part.method
            )
            if part.method == PREFILL_METHOD and not method.is_served:
                raise WorkerUnavailable(f"{method.label}: no worker computes prompts now")
            self.shares.count(method.share)
            self._requests[pending] = method
            if message.parents:
                self._nest(pending, method, link, message)
            if part.traceparent and self.recorder is not None:
                parent = from_traceparent(part.traceparent, part.tracestate)
                pending.trace = CallTrace(self.recorder, parent, method.attributes)
            chunks = [chunk for chunk in part.chunks if not isinstance(chunk, Slice)]
            pending.parts = method.split(pending, part.codec, chunks)
            if part.is_stream:
                pending.make_stream()
            self._put(pending, method)
        except ServingError as error:
            pending.fail(error)

    def _nest(self, call: PendingRequest, method: Method, link: Link, message: WorkerCall) -> None:
        """Let `call` end with the requests of the worker's parts for which it is made.

        Raises DeadlineExceeded if they have ended already.
        """
        callers = []
        for part_id in message.parents:
            request = link.parts[part_id].request if part_id in link.parts else None
            if request is not None and (owner := self._requests.get(request)) is not None:
                callers.append((request, owner))
        if not callers:
            raise DeadlineExceeded(_UNWANTED)
        part_id = message.part.id
        self._nested.begin(call, method, link, callers, waits=message.waits, call_id=part_id)
        deadlines = [request.deadline for request, _ in callers]
        if None not in deadlines:
            deadline = max(cast("list[float]", deadlines))
            self._limit(call, max(0.0, deadline - call.started))
        call.is_background = all(request.is_background for request, _ in callers)

    def num_in(self, methods: Collection[object], *, with_sequences: bool = True) -> int:
        """Return the number of requests in flight to `methods`, also or not of sequences."""
        if with_sequences:
            return sum(method in methods for method in self._requests.values())
        return sum(
            method in methods and not (request.parts and request.parts[0].entry)
            for request, method in self._requests.items()
        )

    def fail_all(self, error: ServingError, methods: Collection[object] | None = None) -> None:
        """Answer all requests in flight, or those to `methods`, with `error`."""
        for request, method in list(self._requests.items()):
            if methods is None or method in methods:
                request.fail(error)

    def _limit(self, request: PendingRequest, timeout: float) -> None:
        """Set the deadline of `request`, `timeout` seconds after its start."""
        request.deadline = request.started + timeout
        if timeout <= NEAR_SECONDS:
            self._arm(request, timeout, timeout)
        elif not self._is_sweeping:
            self._is_sweeping = True
            self._loop.call_later(NEAR_SECONDS / 2, self._sweep)

    def _arm(self, request: PendingRequest, seconds: float, timeout: float) -> None:
        """Start the timer of `request`, which fires in `seconds`."""
        timer = self._loop.call_later(seconds, self._expire, request, timeout)
        request.stop_timer = timer.cancel

    def _sweep(self) -> None:
        """Start the timers of requests whose deadlines are near."""
        now = self._now()
        for request in self._requests:
            if request.deadline is not None and request.stop_timer is None:
                remaining = request.deadline - now
                if remaining <= NEAR_SECONDS:
                    self._arm(request, max(0.0, remaining), request.deadline - request.started)
        self._is_sweeping = bool(self._requests)
        if self._is_sweeping:
            self._loop.call_later(NEAR_SECONDS / 2, self._sweep)

    def _put(self, request: PendingRequest, method: Method) -> None:
        method.put(request.parts, request.started)
        if method.max_queue_seconds and not method.is_watched:
            self._queue_watch.begin(method, request.started)

    def _expire(self, request: PendingRequest, timeout: float) -> None:
        request.fail(DeadlineExceeded(f"no answer within {timeout:g} seconds"))

    def _on_done(self, request: PendingRequest, code: int) -> None:
        method = self._requests.pop(request)
        if request.stop_timer is not None:
            request.stop_timer()
        if method is not None and not request.is_shadow:
            self.shares.release(method.share)
            now = self._now()
            waited = -1.0  # not sent
            if request.parts and (first := request.parts[0]).state is SENT:
                waited = first.sent_at - request.started
            method.series.observe(now - request.started, code, now, request.num_instances, waited)
            if code or method.measures_all or method.admission.queue.since:
                method.count_done(request, code, now)
        if request.trace is not None:
            request.trace.ended(code, len(request.parts))
        for part in request.parts:
            part.chunks = ()  # the part may stay in a queue for long
            if part.link is not None:
                part.link.cancel(part)
            if part.state is QUEUED and method is not None:
                method.on_dropped(part)
        request.parts = ()  # break the reference cycle, which would keep the reply in memory
        for call in self._nested.end(request) if self._nested else ():
            call.fail(DeadlineExceeded(_UNWANTED))

    # --- answers and losses -----------------------------------------------------------------

    def _deliver(self, answers: list[Answer]) -> None:
        """Pass replies of workers to their requests.

        The strategies that sent the parts have counted the replies already.
        """
        for part, reply in answers:
            if part.is_quarantined and reply.has_output:
                self._on_quarantined_reply(part)
            if reply.is_last:
                part.link = None
            elif not reply.has_output:
                if part.request.is_accepted:
                    continue  # by a second worker: the client was notified already
                part.request.is_accepted = True
            elif not part.has_replied:
                part.has_replied = True
                part.request.first_output = self._now()
            part.request.answer(part, reply)

    def _on_quarantined_reply(self, part: PendingPart) -> None:
        method = self._requests.get(part.request)
        if method is not None:
            method.on_quarantined_reply(part)

    def withhold(self, link: Link, methods: Iterable[Method]) -> None:
        """Give the worker no parts of `methods` for now; take back those that only wait there."""
        for method in methods:
            method.withhold(link)
        is_running = _running_in(link)
        for part in reversed(list(link.parts.values())):
            owner = self._requests.get(part.request)
            if owner is None or part.has_replied or part.step or not owner.can_retry:
                continue
            if not is_running(part):
                link.cancel(part)
                owner.put_back(part.request.replace(part))

    def on_lost(self, link: Link, reason: str) -> None:
        """Retry or fail the parts of a worker that died."""
        self._batches.remove_worker(link)
        self._streams.remove_worker(link)
        for call in self._nested.made_by(link):
            call.cancel()
        is_running = _running_in(link)
        for part in reversed(link.take_parts()):
            part.link = None
            if part.request.trace is not None:
                part.request.trace.lost(part)
            method = self._requests.get(part.request)
            if method is None:  # the request has ended
                continue
            was_running = is_running(part)
            if was_running and link.overdue is not None and link.overdue.has(part.id):
                part.request.fail(StageFailed(f"{method.label}: {link.end_reason}"))
                continue
            decision = decide_retry(part, was_running=was_running, can_retry=method.can_rerun(part))
            if decision is RetryDecision.FAIL:
                part.request.fail(WorkerUnavailable(f"{method.label}: {reason}"))
            else:
                part.is_quarantined = decision is RetryDecision.QUARANTINE
                method.put_back(part)

    def fail_waiting(self, method: Method, error: ServingError) -> None:
        """Fail all parts queued for `method`, as no worker is expected to run it soon."""
        for part in method.take_waiting():
            part.request.fail(error)


def _trace(span: RequestSpan, method: Method) -> CallTrace:
    span.attributes.update(method.attributes)
    return CallTrace(span.recorder, span.context, method.attributes, span)


def _method_of_caller(caller: ServableService | None, message: WorkerCall) -> Method | None:
    """Return the method of the caller's own service; None if it calls another servable.

    A service that has replaced the caller's is not used.
    """
    if caller is None or message.servable != caller.name:
        return None
    if message.version not in (0, caller.version):
        return None
    return caller.methods.get(message.part.method)


def _running_in(link: Link) -> Callable[[PendingPart], bool]:
    """Return a predicate: whether the worker was running a part when it was last seen."""
    running = link.running()
    return lambda part: any(stage.has(part.id) for stage in running)
