"""Spans of a servable's own code, and traces that go on from a client and to another server."""

import json

from opentelemetry import context as contexts
from opentelemetry import trace as api

from tests.tracing.collector import Trace
from tests.tracing.conftest import Traced

SERVED = ["toy", "own"]
REST = "POST /model/{path}"
PREDICT = "mindspore.serving.proto.MSService/Predict"


def ask(traced: Traced, method: str, instances: object, *names: str) -> Trace:
    def send(headers: dict[str, str]) -> None:
        traced.calls.post("own", method, instances, headers)

    return traced.ask(send, REST, *names)


def test_a_span_of_a_stage_is_below_the_batch_that_runs(traced: Traced) -> None:
    trace = ask(traced, "each", [{"x": 1}, {"x": 2}], "look up")
    found = trace.all("look up")
    assert sorted(span["x"] for span in found) == [1, 2]
    for span in found:
        assert trace.path(span) == [REST, "worker", "Function 'own.look_up'", "batch", "look up"]


def test_the_span_of_a_batch_stage_is_below_a_request_of_the_batch(traced: Traced) -> None:
    trace = ask(traced, "together", [{"x": 1}, {"x": 2}], "look up all")
    assert trace.parent(trace.one("look up all")).name == "batch"


def test_a_request_that_a_stage_sends_by_the_client_goes_on_in_the_trace(traced: Traced) -> None:
    trace = ask(traced, "asked", [{"x": 1, "address": traced.calls.grpc}], PREDICT)
    call = trace.one(PREDICT)
    assert trace.parent(call).name == "batch"
    assert call["mindspore_serving.servable.name"] == "toy"


def test_a_client_sends_its_current_span(traced: Traced) -> None:
    own = api.SpanContext(0xABC, 0xDEF, is_remote=False, trace_flags=api.TraceFlags(1))
    token = contexts.attach(api.set_span_in_context(api.NonRecordingSpan(own)))
    try:
        assert traced.calls.client("toy", "staged").infer({"x": 1}) == [{"y": 3}]
    finally:
        contexts.detach(token)
    found = traced.collector.trace(f"{0xABC:032x}", PREDICT).one(PREDICT)
    assert found.parent_id == f"{0xDEF:016x}"


def test_clients_of_protocol_v2_can_read_that_requests_are_traced(traced: Traced) -> None:
    status, answer = traced.calls.http_call("GET", "/v2/trace/setting")
    found = json.loads(answer)
    assert (status, found["trace_level"], found["trace_rate"]) == (200, ["TIMESTAMPS"], "1")
    assert found["trace_mode"] == "opentelemetry"
