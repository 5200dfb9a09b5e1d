"""The `Inference` before the dispatcher that answers from caches, and computes equal requests once.

A request whose answer is cached waits in no queue and counts in no limit.  Of equal requests in
flight, the first is dispatched, without its deadline, and the others join it: each has its own
deadline and can be cancelled, and the computation is cancelled with the last of them.  If the
computation fails, all that wait for it get its error, and nothing is stored.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from mindspore_serving import log
from mindspore_serving.core.service import HIT, MISS, Reply, Request, tenant_of_task
from mindspore_serving.errors import Code, DeadlineExceeded, Overloaded, ServingError
from mindspore_serving.ipc.messages import to_fault
from mindspore_serving.master.answer_cache import AnswerCache, Key
from mindspore_serving.master.dispatcher import Dispatcher
from mindspore_serving.master.registry import Method
from mindspore_serving.master.request import PendingRequest
from mindspore_serving.tracing.request_span import current as current_span
from mindspore_serving.tracing.span import CACHE

OnReply = Callable[[Reply], None]


class CachingInference:
    """The `core.service.Inference` of a master."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher
        self._loop = asyncio.get_running_loop()
        self._running: dict[tuple[AnswerCache, Key], Computation] = {}

    @property
    def is_refusing(self) -> bool:
        return self._dispatcher.is_refusing

    def refusal(
        self, servable: str, version: int, method: str, timeout: float | None
    ) -> Overloaded | None:
        """Implement `core.service.Inference.refusal`; a cached answer needs no room."""
        if self._cached_method(servable, version, method) is not None:
            return None
        return self._dispatcher.refusal(servable, version, method, timeout)

    def submit(self, request: Request, on_reply: OnReply) -> "CachedCall | PendingRequest":
        """Implement `core.service.Inference.submit`."""
        if self._dispatcher.registry.has_caches and not request.is_stream:
            method = self._cached_method(request.servable, request.version, request.method)
            if method is not None and method.cache is not None:
                call = CachedCall(method, on_reply)
                tenant = request.tenant or tenant_of_task.get()
                key = method.cache.key_of(tenant, request.codec, request.body)
                if key is not None:
                    return self._submit(request, call, method.cache, key)
                method.cache.counts.skipped += 1
        return self._dispatcher.submit(request, on_reply)

    def _cached_method(self, servable: str, version: int, method: str) -> Method | None:
        if not self._dispatcher.registry.has_caches:
            return None
        try:
            served = self._dispatcher.registry.find(servable, version, method)
        except ServingError:
            return None  # the dispatcher reports the error
        return None if served.cache is None else served

    def _submit(
        self, request: Request, call: "CachedCall", cache: AnswerCache, key: Key
    ) -> "CachedCall":
        answer = cache.get(key, call.started)
        took = int((time.monotonic() - call.started) * 1e9)
        span = request.span or current_span.get()
        if span is not None:
            state = MISS if answer is None else HIT
            span.attributes.update(call.method.attributes)
            span.attributes[CACHE] = state
        if answer is not None:
            cache.counts.hit += 1
            cache.hit_ns += took
            self._loop.call_soon(call.answer, Reply(answer.instances, cache=HIT))
            return call
        computation = self._running.get((cache, key))
        cache.miss_ns += took
        try:
            if computation is None:
                computation = self._begin(request, call, cache, key)
                cache.counts.miss += 1
            else:
                self._dispatcher.shares.take(call.method.share)
                cache.counts.joined += 1
        except Overloaded as error:
            self._dispatcher.is_refusing = True
            self._loop.call_soon(partial(call.answer, Reply(failure=error), is_counted=False))
            return call
        computation.calls[call] = None
        call.computation = computation
        if request.timeout is not None:
            call.stop_timer = self._loop.call_later(
                request.timeout, call.expire, request.timeout
            ).cancel
        return call

    def _begin(
        self, request: Request, call: "CachedCall", cache: AnswerCache, key: Key
    ) -> "Computation":
        """Dispatch the request.  Raises Overloaded if it would be answered too late."""
        error = self._dispatcher.refusal(
            request.servable, request.version, request.method, request.timeout
        )
        if error is not None:
            raise error

        def on_reply(reply: Reply) -> None:
            if reply.is_last:
                del self._running[cache, key]
                if reply.failure is None and reply.faults is None:
                    now = time.monotonic()
                    cache.put(key, reply.instances, now)
                    cache.miss_ns += int((time.monotonic() - now) * 1e9)
                computation.end(reply)

        computation = Computation(self._dispatcher, call.method)
        computation.pending = self._dispatcher.submit(replace(request, timeout=None), on_reply)
        computation.on_cancelled = lambda: self._running.pop((cache, key))
        self._running[cache, key] = computation
        return computation


class Computation:
    """Request that is dispatched for all equal ones in flight, its `calls`.

    The dispatcher counts it in metrics and limits as one of the calls; the others are counted here.
    """

    def __init__(self, dispatcher: Dispatcher, method: Method) -> None:
        self.calls: dict[CachedCall, None] = {}  # in the order of their arrival
        self.pending: PendingRequest
        self.on_cancelled: Callable[[], object]
        self._dispatcher = dispatcher
        self._method = method

    def end(self, reply: Reply) -> None:
        """Answer all calls."""
        calls, self.calls = list(self.calls), {}
        for index, call in enumerate(calls):
            call.computation = None
            failure = reply.failure
            if index and failure is not None:  # a raised error has the traceback of one call
                failure = to_fault(failure).to_error()
            if index:
                self._dispatcher.shares.release(self._method.share)
            answer = Reply(reply.instances, reply.faults, failure, cache=MISS)
            call.answer(answer, is_counted=index > 0)

    def leave(self, call: "CachedCall", error: ServingError | None = None) -> None:
        """Remove a call that was cancelled, or failed with `error`; the last one cancels all."""
        if len(self.calls) > 1:
            del self.calls[call]
            call.computation = None
            self._dispatcher.shares.release(self._method.share)
            call.finish(Code.CANCELLED if error is None else error.code)
            if error is not None:
                call.reply(Reply(failure=error))
        elif error is not None:
            self.pending.fail(error)
        else:
            self.calls = {}
            call.computation = None
            call.finish(Code.CANCELLED, is_counted=False)
            self.on_cancelled()
            self.pending.cancel()


class CachedCall:
    """Call of a front end whose answer is cached, or computed once for several calls."""

    __slots__ = ("_on_reply", "computation", "is_done", "method", "started", "stop_timer")

    def __init__(self, method: Method, on_reply: OnReply) -> None:
        self.method = method
        self.started = time.monotonic()
        self.computation: Computation | None = None
        self.is_done = False
        self.stop_timer: Callable[[], object] | None = None
        self._on_reply = on_reply

    def answer(self, reply: Reply, *, is_counted: bool = True) -> None:
        """Answer the call, unless it was cancelled; `is_counted` in the metrics of the method."""
        if not self.is_done:
            code = 0 if reply.failure is None else reply.failure.code
            self.finish(code, len(reply.instances), is_counted=is_counted)
            self.reply(reply)

    def cancel(self) -> None:
        """Implement `core.service.Call.cancel`."""
        if self.computation is not None:
            self.computation.leave(self)
        elif not self.is_done:
            self.finish(Code.CANCELLED)

    def expire(self, timeout: float) -> None:
        """Fail the call, whose deadline has passed after `timeout` seconds."""
        if self.computation is not None:
            error = DeadlineExceeded(f"no answer within {timeout:g} seconds")
            self.computation.leave(self, error)

    def finish(self, code: int, num_instances: int = 0, *, is_counted: bool = True) -> None:
        """End the call, and count it in the metrics of the method if it `is_counted` here."""
        self.is_done = True
        if self.stop_timer is not None:
            self.stop_timer()
        if is_counted:
            now = time.monotonic()
            self.method.series.observe(now - self.started, code, now, num_instances)

    def reply(self, reply: Reply) -> None:
        """Pass `reply` to the front end, whose errors must not reach other calls."""
        try:
            self._on_reply(reply)
        except Exception:
            log.error("failed to pass on a reply of %s", self.method.label, exc_info=True)
