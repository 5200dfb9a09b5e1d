"""The `Inference` before the dispatcher that answers from caches, and computes equal requests once.

A request whose answer is cached waits in no queue and counts in no limit.  Of equal requests in
flight, the first is dispatched, without its deadline, and the others join it: each has its own
deadline and can be cancelled, and the computation is cancelled with the last of them.  If the
computation fails, all that wait for it get its error, and nothing is stored.

If servers share answers, an answer that is not in memory is first looked up in their store.
"""

import asyncio
import time
from collections.abc import Callable
from contextvars import copy_context
from dataclasses import replace
from functools import partial

from mindspore_serving import log
from mindspore_serving.core.service import HIT, HIT_STORE, MISS, Reply, Request, tenant_of_task
from mindspore_serving.errors import Code, DeadlineExceeded, Overloaded, ServingError
from mindspore_serving.ipc.messages import to_fault
from mindspore_serving.master.answer_cache import AnswerCache, Key
from mindspore_serving.master.dispatcher import Dispatcher
from mindspore_serving.master.registry import Method
from mindspore_serving.master.request import PendingRequest
from mindspore_serving.master.shared_answers import AnswerLookup, StoredAnswer
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
                computation = Computation(self._dispatcher, request, call.method, cache, key)
                computation.on_end = lambda: self._running.pop((cache, key))
                computation.begin()
                self._running[cache, key] = computation
            else:
                self._dispatcher.shares.take(call.method.share)
                cache.counts.joined += 1
        except Overloaded as error:
            self._loop.call_soon(partial(call.answer, Reply(failure=error), is_counted=False))
            self._dispatcher.is_refusing = True
            return call
        computation.calls[call] = None
        call.computation = computation
        if request.timeout is not None:
            call.stop_timer = self._loop.call_later(
                request.timeout, call.expire, request.timeout
            ).cancel
        return call


class Computation:
    """Answer to all equal requests in flight, its `calls`: looked up in a store, or computed.

    A request that is dispatched is counted in metrics and limits, as one of the calls, by the
    dispatcher; the others are counted here, and all calls while the answer is looked up.
    """

    def __init__(
        self, dispatcher: Dispatcher, request: Request, method: Method, cache: AnswerCache, key: Key
    ) -> None:
        self.calls: dict[CachedCall, None] = {}  # in the order of their arrival
        self.on_end: Callable[[], object]
        self._dispatcher = dispatcher
        self._request: Request | None = request  # until it is dispatched
        self._method = method
        self._cache, self._key = cache, key
        self._pending: PendingRequest | None = None
        self._is_dispatched = False
        self._lookup: AnswerLookup | None = None
        self._began = time.monotonic()
        self._context = copy_context()  # of the task that submits the request
        self._span = current_span.get()

    def begin(self) -> None:
        """Look the answer up, or dispatch.  Raises Overloaded if it would be answered too late."""
        if self._method.shared_answers is not None:
            self._lookup = self._method.shared_answers.get(self._key, self._on_stored)
        if self._lookup is None:
            self._dispatch()

    def _dispatch(self) -> None:
        request, self._request = self._request, None
        assert request is not None
        error = self._dispatcher.refusal(
            request.servable, request.version, request.method, request.timeout
        )
        if error is not None:
            raise error
        self._cache.counts.miss += 1
        self._is_dispatched = True
        self._pending = self._dispatcher.submit(replace(request, timeout=None), self._on_reply)

    def _on_stored(self, answer: StoredAnswer | None) -> None:
        self._lookup = None
        took = int((time.monotonic() - self._began) * 1e9)
        if answer is None:
            self._cache.miss_ns += took
            try:
                self._context.run(self._dispatch)
            except Overloaded as error:
                self._dispatcher.is_refusing = True
                self.end(Reply(failure=error))
            return
        if self._request is not None and (span := self._request.span or self._span) is not None:
            span.attributes[CACHE] = HIT_STORE
        age = max(0.0, time.time() - answer.created)
        self._cache.counts.hit_store += 1
        self._cache.hit_ns += took
        self._cache.put(self._key, answer.instances, time.monotonic(), age)
        self.end(Reply(answer.instances, cache=HIT_STORE))

    def _on_reply(self, reply: Reply) -> None:
        if not reply.is_last:
            return
        if reply.failure is None and reply.faults is None:
            now = time.monotonic()
            copies = self._cache.put(self._key, reply.instances, now)
            if copies is not None and self._method.shared_answers is not None:
                self._method.shared_answers.put(self._key, copies)
            self._cache.miss_ns += int((time.monotonic() - now) * 1e9)
        self.end(reply)

    def end(self, reply: Reply) -> None:
        """Answer all calls."""
        self.on_end()
        self._pending = self._request = None  # which refer to this and to the body
        calls, self.calls = list(self.calls), {}
        for index, call in enumerate(calls):
            call.computation = None
            failure = reply.failure
            if index and failure is not None:  # a raised error has the traceback of one call
                failure = to_fault(failure).to_error()
            if index:
                self._dispatcher.shares.release(self._method.share)
            answer = Reply(reply.instances, reply.faults, failure, cache=reply.cache or MISS)
            call.answer(answer, is_counted=index > 0 or not self._is_dispatched)

    def leave(self, call: "CachedCall", error: ServingError | None = None) -> None:
        """Remove a call that was cancelled, or failed with `error`; the last one cancels all."""
        if len(self.calls) > 1:
            del self.calls[call]
            call.computation = None
            self._dispatcher.shares.release(self._method.share)
            call.finish(Code.CANCELLED if error is None else error.code)
            if error is not None:
                call.reply(Reply(failure=error))
            return
        if self._lookup is not None:
            self._lookup.cancel()
        if error is not None:
            if self._pending is not None:
                self._pending.fail(error)
            else:
                self.end(Reply(failure=error))
            return
        self.calls = {}
        call.computation = None
        call.finish(Code.CANCELLED, is_counted=self._pending is None)
        self.on_end()
        if self._pending is not None:
            self._pending.cancel()


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
