"""Spans of a request in the master: its time in the queue, and each worker that it was sent to.

Spans of a worker arrive with its replies and are recorded here, too.
"""

import time

from mindspore_serving.errors import Code
from mindspore_serving.ipc.messages import PartReply
from mindspore_serving.master.request import PendingPart
from mindspore_serving.tracing import span as names
from mindspore_serving.tracing.request_span import RequestSpan
from mindspore_serving.tracing.span import (
    Attributes,
    Span,
    SpanContext,
    SpanRecorder,
    from_traceparent,
)
from mindspore_serving.wire import status


class CallTrace:
    """Trace of one request, below the span `parent`.

    In a front end, `parent` is the span of `request_span`.
    """

    def __init__(
        self,
        recorder: SpanRecorder,
        parent: SpanContext,
        attributes: Attributes,
        request_span: RequestSpan | None = None,
    ) -> None:
        self._recorder = recorder
        self._parent = parent
        self._attributes = attributes
        self._request_span = request_span
        self._waits_since = time.time_ns()
        self._num_sent = 0  # parts
        self._at_workers: dict[int, tuple[SpanContext, int, str]] = {}  # by the part's index

    def sent(self, part: PendingPart, worker: str) -> SpanContext:
        """Record that `part` is sent to `worker`; return the context of its span there."""
        if not self._parent.is_sampled:
            return self._parent
        if part.index in self._at_workers:  # sent before, to a worker without heartbeat
            self.lost(part)
        self._num_sent += 1
        self._record("queue", self._parent.child(), self._waits_since)
        context = self._parent.child()
        self._at_workers[part.index] = context, time.time_ns(), worker
        return context

    def answered(self, part: PendingPart, reply: PartReply) -> None:
        """Record a reply of the worker, also after the request has ended."""
        if reply.spans and self._parent.is_sampled:
            for report in reply.spans:
                error, is_failed = _error(report.code)
                span = Span(
                    report.name,
                    self._parent.at(report.id),
                    report.parent_id,
                    report.begin,
                    report.end,
                    report.attributes,
                    error,
                    is_failed,
                    links=[from_traceparent(link) for link in report.links],
                )
                self._recorder.record(span)
                self._fail(report.code)
        if reply.is_last:
            faults = (reply.rejected, *(reply.faults or ()))
            code = next((fault.code for fault in faults if fault is not None), 0)
            self._left_worker(part, code)
            self._fail(code)

    def lost(self, part: PendingPart) -> None:
        """Record that the worker died; `part` may go to another worker."""
        self._num_sent -= 1
        self._left_worker(part, Code.WORKER_UNAVAILABLE)
        self._waits_since = time.time_ns()

    def ended(self, code: int, num_parts: int) -> None:
        """Record the end of the request: an answer with `code`, or its cancellation."""
        if self._num_sent < num_parts:
            self._record("queue", self._parent.child(), self._waits_since, code)
        self._fail(code)

    def _left_worker(self, part: PendingPart, code: int) -> None:
        span = self._at_workers.pop(part.index, None)
        if span is not None:
            context, begin, worker = span
            self._record("worker", context, begin, code, worker)

    def _record(
        self, name: str, context: SpanContext, begin: int, code: int = 0, worker: str = ""
    ) -> None:
        if not context.is_sampled:
            return
        attributes = {**self._attributes, names.WORKER: worker} if worker else self._attributes
        error, is_failed = _error(code)
        span = Span(
            name,
            context,
            self._parent.span_id,
            begin,
            time.time_ns(),
            attributes,
            error,
            is_failed,
        )
        self._recorder.record(span)

    def _fail(self, code: int) -> None:
        if code and self._request_span is not None:
            error, is_failed = _error(code)
            self._request_span.fail(error, is_failed=is_failed)


def _error(code: int) -> tuple[str, bool]:
    """Return the name of the error `code`, and whether it is a failure of the server."""
    if not code:
        return "", False
    return Code(code).name.lower(), status.of(code).http >= 500
