"""The spans that the master makes of one request, with workers that come and go."""

from mindspore_serving.errors import Code
from mindspore_serving.ipc.messages import Fault, PartReply, RequestPart, SpanReport, WorkerCall
from mindspore_serving.master.call_trace import CallTrace
from mindspore_serving.master.request import NO_REQUEST, PendingPart
from mindspore_serving.tracing.request_span import RequestSpan
from mindspore_serving.tracing.span import SERVABLE, WORKER, SpanContext
from tests.master.served import Served, Worker, turn

PARENT = SpanContext(0xA, 0xB, is_sampled=True, state="them=1")
PART = PendingPart(NO_REQUEST, 0, "native", [b"1"])


class Recorded:
    """The spans, in the order in which they ended, of a request with one span in a front end."""

    def __init__(self, parent=PARENT):
        self.spans = []
        self.request = RequestSpan(self, "asked", parent, 0)
        self.trace = CallTrace(self, parent, {SERVABLE: "s"}, self.request)

    def record(self, span):
        self.spans.append(span)

    @property
    def rows(self):
        return [(span.name, span.attributes.get(WORKER, ""), span.error) for span in self.spans]


def test_a_request_waits_and_is_with_a_worker():
    recorded = Recorded()
    context = recorded.trace.sent(PART, "first")
    recorded.trace.answered(PART, PartReply(1, [b"2"]))
    recorded.trace.ended(Code.OK, 1)
    assert recorded.rows == [("queue", "", ""), ("worker", "first", "")]
    queue, worker = recorded.spans
    assert worker.context == context
    assert {queue.parent_id, worker.parent_id} == {PARENT.span_id}
    assert queue.begin <= queue.end <= worker.begin <= worker.end
    assert (context.trace_id, context.state) == (PARENT.trace_id, "them=1")


def test_a_request_whose_worker_dies_waits_again_and_is_no_failure():
    recorded = Recorded()
    recorded.trace.sent(PART, "first")
    recorded.trace.lost(PART)
    recorded.trace.sent(PART, "second")
    recorded.trace.answered(PART, PartReply(1, [b"2"]))
    recorded.trace.ended(Code.OK, 1)
    assert recorded.rows == [
        ("queue", "", ""),
        ("worker", "first", "worker_unavailable"),
        ("queue", "", ""),
        ("worker", "second", ""),
    ]
    assert not recorded.request.has_failed


def test_a_request_that_no_worker_got_has_waited_to_its_end():
    recorded = Recorded()
    recorded.trace.ended(Code.DEADLINE_EXCEEDED, 1)
    assert recorded.rows == [("queue", "", "deadline_exceeded")]
    assert recorded.request.has_failed


def test_a_failed_instance_fails_the_spans_above():
    recorded = Recorded()
    recorded.trace.sent(PART, "first")
    faults = [None, Fault(Code.SYSTEM_ERROR, "secret")]
    recorded.trace.answered(PART, PartReply(1, [b"2", b""], faults))
    recorded.trace.ended(Code.OK, 1)
    assert recorded.rows[-1] == ("worker", "first", "system_error")
    assert recorded.request.has_failed
    assert "secret" not in str(recorded.spans)


def test_the_spans_of_a_worker_are_recorded_as_reported():
    recorded = Recorded()
    other = SpanContext(0xC, 0xD, is_sampled=True)
    report = SpanReport("batch", 7, 5, 10, 20, {"size": 2}, links=[other.traceparent])
    recorded.trace.sent(PART, "first")
    recorded.trace.answered(PART, PartReply(1, [b"2"], is_last=False, spans=[report]))
    found = recorded.spans[-1]
    assert (found.name, found.context, found.parent_id) == ("batch", PARENT.at(7), 5)
    assert (found.begin, found.end, found.attributes) == (10, 20, {"size": 2})
    assert list(found.links) == [other]


def test_a_request_that_is_not_sampled_has_a_context_and_no_spans():
    recorded = Recorded(SpanContext(0xA, 0xB, is_sampled=False))
    context = recorded.trace.sent(PART, "first")
    recorded.trace.answered(PART, PartReply(1, [b"2"]))
    recorded.trace.ended(Code.OK, 1)
    assert (context.trace_id, context.is_sampled) == (0xA, False)
    assert recorded.spans == []


async def test_a_call_between_workers_belongs_to_the_span_of_the_caller():
    served, recorded = Served(worker := Worker()), Recorded()
    served.dispatcher.recorder = recorded
    item = RequestPart(5, "m", "native", [b"1"], None, traceparent=PARENT.traceparent)
    served.dispatcher.on_call(Worker(), WorkerCall("s", 1, item))
    await turn()
    (part,) = worker.held
    part.request.trace.sent(part, "second")
    assert [span.parent_id for span in recorded.spans] == [PARENT.span_id]
