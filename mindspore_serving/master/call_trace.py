"""The spans of one request in the master: how long it waited, and each time that a worker had it.

What happens in a worker comes with its answers, and is recorded here too.
"""

import time

from mindspore_serving.errors import Code
from mindspore_serving.ipc.messages import PartReply
from mindspore_serving.master.request import PendingPart
from mindspore_serving.tracing import span as names
from mindspore_serving.tracing.request_span import RequestSpan
from mindspore_serving.tracing.span import Attributes, Recorder, Span, SpanContext, from_traceparent
from mindspore_serving.wire import status


class CallTrace:
    """Below the span `parent`, which in a front end is that of `request_span`."""

    def __init__(
        self,
        recorder: Recorder,
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
        self._at_workers: dict[int, tuple[SpanContext, int, str]] = {}  # by index of the part

    def sent(self, part: PendingPart, worker: str) -> SpanContext:
        """`part` goes to `worker`: the context of its span there."""
        if not self._parent.is_sampled:
            return self._parent
        if part.index in self._at_workers:  # one that gives no heartbeat
            self.lost(part)
        self._num_sent += 1
        self._record("queue", self._parent.child(), self._waits_since)
        context = self._parent.child()
        self._at_workers[part.index] = context, time.time_ns(), worker
        return context

    def answered(self, part: PendingPart, reply: PartReply) -> None:
        """The worker has sent `reply`; also when nobody waits for it any more."""
        if reply.spans and self._parent.is_sampled:
            for one in reply.spans:
                span = Span(
                    one.name,
                    self._parent.at(one.id),
                    one.parent_id,
                    one.begin,
                    one.end,
                    one.attributes,
                    *_error(one.code),
                    links=[from_traceparent(link) for link in one.links],
                )
                self._recorder.record(span)
                self._fail(one.code)
        if reply.is_last:
            faults = (reply.rejected, *(reply.faults or ()))
            code = next((one.code for one in faults if one is not None), 0)
            self._left_worker(part, code)
            self._fail(code)

    def lost(self, part: PendingPart) -> None:
        """The worker has died; `part` may go to another."""
        self._num_sent -= 1
        self._left_worker(part, Code.WORKER_UNAVAILABLE)
        self._waits_since = time.time_ns()

    def ended(self, code: int, num_parts: int) -> None:
        """The request, of `num_parts`, was answered with `code`, or nobody waits any more."""
        if self._num_sent < num_parts:
            self._record("queue", self._parent.child(), self._waits_since, code)
        self._fail(code)

    def _left_worker(self, part: PendingPart, code: int) -> None:
        found = self._at_workers.pop(part.index, None)
        if found is not None:
            context, begin, worker = found
            self._record("worker", context, begin, code, worker)

    def _record(
        self, name: str, context: SpanContext, begin: int, code: int = 0, worker: str = ""
    ) -> None:
        if not context.is_sampled:
            return
        attributes = {**self._attributes, names.WORKER: worker} if worker else self._attributes
        end = time.time_ns()
        span = Span(name, context, self._parent.span_id, begin, end, attributes, *_error(code))
        self._recorder.record(span)

    def _fail(self, code: int) -> None:
        if code and self._request_span is not None:
            error, is_failed = _error(code)
            self._request_span.fail(error, is_failed=is_failed)


def _error(code: int) -> tuple[str, bool]:
    """The kind of error that `code` is, and whether the server is to blame."""
    if not code:
        return "", False
    return Code(code).name.lower(), status.of(code).http >= 500
