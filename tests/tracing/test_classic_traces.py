"""The spans of requests to methods, in every protocol, as a collector receives them."""

import http.client
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest

from mindspore_serving.client.messages import to_request
from mindspore_serving.frontends.v2.service import SERVICE as V2
from mindspore_serving.proto import inference_pb2 as pb
from mindspore_serving.proto import ms_service_pb2
from tests.e2e.harness import eventually, in_flight
from tests.tracing.collector import Received, Trace
from tests.tracing.conftest import PARENT, Traced
from tests.waiting import PATIENCE

SERVED = ["toy"]
MS = "mindspore.serving.proto.MSService"
REST = "POST /model/{path}"
JSON = {"content-type": "application/json"}
SERVER = 2  # the kind of span


def post(traced: Traced, method: str, instances: Any, root: str = REST) -> Trace:
    return traced.ask(lambda headers: traced.calls.post("toy", method, instances, headers), root)


def call(traced: Traced, path: str, message: Any, metadata: dict[str, str]) -> Any:
    """The call of a gRPC method, once it has ended; its replies are not read."""
    with grpc.insecure_channel(traced.calls.grpc) as channel:
        multi = channel.unary_stream(path, request_serializer=lambda one: one.SerializeToString())
        found = multi(message, metadata=tuple(metadata.items()), timeout=PATIENCE)
        assert list(found)
        return found


def has_passed(trace: Trace, root: str) -> None:
    """A request with two stages went through all that there is, one part in another."""
    top = trace.one(root)
    assert (top.parent_id, top.kind, top.state) == (PARENT, SERVER, "them=1")
    stages = ["Function 'toy.twice'", "Function 'toy.add'"]
    assert trace.path(trace.one("queue")) == [root, "queue"]
    for stage in stages:
        assert trace.path(trace.one(stage)) == [root, "worker", stage]
    batches = sorted(trace.all("batch"), key=lambda span: span.begin)
    assert [trace.parent(batch).name for batch in batches] == stages
    for span in trace.spans:
        if span is not top:
            parent = trace.parent(span)
            assert parent.begin <= span.begin <= span.end <= parent.end


def names_the_method(span: Received, method: str) -> None:
    assert span["mindspore_serving.servable.name"] == "toy"
    assert span["mindspore_serving.servable.version"] == 1
    assert span["mindspore_serving.method"] == method


def test_a_classic_request_over_rest_has_a_span_of_each_part(traced: Traced) -> None:
    trace = post(traced, "staged", [{"x": 1}, {"x": 2}, {"x": 3}])
    has_passed(trace, REST)
    for name in (REST, "queue", "worker"):
        names_the_method(trace.one(name), "staged")
    top = trace.one(REST)
    assert top["http.request.method"] == "POST"
    assert top["http.route"] == "/model/{path}"
    assert top["url.path"] == "/model/toy:staged"
    assert top["http.response.status_code"] == 200
    assert top["server.port"] == traced.calls.http
    assert {batch["mindspore_serving.batch.size"] for batch in trace.all("batch")} == {3}
    assert not any(span.is_error for span in trace.spans)
    assert top.resource["service.name"] == "mindspore-serving"


def test_the_fast_path_and_the_application_make_the_same_spans(traced: Traced) -> None:
    def fast(headers: dict[str, str]) -> None:
        body = json.dumps({"instances": {"x": 1}})
        status, _ = traced.calls.http_call("POST", "/model/toy:staged", body, {**headers, **JSON})
        assert status == 200

    def slow(headers: dict[str, str]) -> None:
        body = json.dumps({"instances": {"x": 1}})
        path = "/model/toy:staged?by=application"
        status, _ = traced.calls.http_call("POST", path, body, {**headers, **JSON})
        assert status == 200

    for send in (fast, slow):
        has_passed(traced.ask(send, REST), REST)


def test_a_classic_request_over_grpc(traced: Traced) -> None:
    path = f"{MS}/Predict"
    message = ms_service_pb2.PredictRequest.FromString(to_request("toy", "staged", 0, {"x": 1}))
    found = []
    trace = traced.ask(
        lambda headers: found.append(call(traced, f"/{path}", message, headers)), path
    )
    has_passed(trace, path)
    top = trace.one(path)
    assert top["rpc.system.name"] == "grpc"
    assert top["rpc.method"] == path
    assert top["rpc.response.status_code"] == "OK"
    names_the_method(top, "staged")
    trailing = dict(found[0].trailing_metadata())
    assert top["mindspore_serving.request.id"] == trailing["x-request-id"]


def test_protocol_v2_over_http(traced: Traced) -> None:
    route = "POST /v2/models/{name}/infer"
    tensor = {"name": "x", "shape": [1], "datatype": "INT64", "data": [1]}

    def send(headers: dict[str, str]) -> None:
        body = json.dumps({"inputs": [tensor]})
        path = "/v2/models/toy.staged/infer"
        status, answer = traced.calls.http_call("POST", path, body, {**headers, **JSON})
        assert status == 200, answer

    trace = traced.ask(send, route)
    has_passed(trace, route)
    names_the_method(trace.one(route), "staged")


@pytest.mark.parametrize("method", ["ModelInfer", "ModelStreamInfer"])
def test_protocol_v2_over_grpc(traced: Traced, method: str) -> None:
    path = f"{V2}/{method}"
    message = pb.ModelInferRequest(model_name="toy.staged")
    tensor = message.inputs.add(name="x", datatype="INT64", shape=[1])
    tensor.contents.int64_contents.append(1)
    trace = traced.ask(lambda headers: call(traced, f"/{path}", message, headers), path)
    has_passed(trace, path)


def test_requests_that_run_together_share_a_batch(traced: Traced) -> None:
    waiting = ThreadPoolExecutor(4)
    names = [f"shared {number}" for number in range(4)]
    traces: list[Trace] = []
    try:
        first = waiting.submit(post, traced, "wait", {"x": names[0]})
        eventually(Path(f"waits {names[0]}").exists)
        rest = [waiting.submit(post, traced, "wait", {"x": name}) for name in names[1:]]
        eventually(lambda: in_flight(traced.calls) == 4)
    finally:
        for name in names:
            Path(f"go {name}").touch()
        waiting.shutdown()
    traces = [one.result() for one in (first, *rest)]
    batches = [trace.one("batch") for trace in traces]
    together = [one for one in batches if one["mindspore_serving.batch.requests"] > 1]
    assert len(together) >= 2
    for one in together:
        assert one["mindspore_serving.batch.size"] == one["mindspore_serving.batch.requests"]
        others = [other.id for other in together if other.id in one.links]
        assert len(one.links) == one["mindspore_serving.batch.requests"] - 1
        assert sorted(others) == sorted(one.links)
        assert one.id not in one.links


def test_an_error_is_seen_and_its_text_is_not(traced: Traced) -> None:
    trace = post(traced, "broken", {"x": 424242})
    stage = trace.one("Function 'toy.fail'")
    for span in (trace.one(REST), trace.one("worker"), stage, trace.one("batch")):
        assert span.is_error
        assert span["error.type"] == "system_error"
    assert not trace.one("queue").is_error
    assert "424242" not in str(trace.spans)


def test_errors_of_clients_are_no_errors_of_the_server(traced: Traced) -> None:
    def send(headers: dict[str, str]) -> None:
        status, _ = traced.calls.http_call("POST", "/model/toy:staged", "no json", headers)
        assert status == 200  # the original's way

    trace = traced.ask(send, REST)
    assert trace.one("worker")["error.type"] == "invalid_inputs"
    assert not trace.one(REST).is_error


def test_a_request_without_a_route_has_no_name_of_its_own(traced: Traced) -> None:
    def send(headers: dict[str, str]) -> None:
        assert traced.calls.http_call("GET", "/v1/no/such/path", None, headers)[0] == 404

    top = traced.ask(send, "GET").one("GET")
    assert top["http.response.status_code"] == 404
    assert "http.route" not in top.attributes
    assert not top.is_error


def test_a_client_that_leaves_ends_its_request_as_cancelled(traced: Traced) -> None:
    def send(headers: dict[str, str]) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", traced.calls.http, timeout=PATIENCE)
        body = json.dumps({"instances": {"x": "left"}})
        connection.request("POST", "/model/toy:wait", body, {**headers, **JSON})
        eventually(Path("waits left").exists)
        connection.close()
        eventually(lambda: in_flight(traced.calls) == 0)
        Path("go left").touch()

    trace = traced.ask(send, REST, "worker")
    assert trace.one(REST)["error.type"] == "cancelled"
    assert not trace.one(REST).is_error
    assert trace.path(trace.one("worker")) == [REST, "worker"]  # which ran it to its end


def test_a_stream_has_a_single_span_of_its_stage(traced: Traced) -> None:
    path = f"{MS}/PredictStream"
    message = ms_service_pb2.PredictRequest.FromString(to_request("toy", "counted", 0, {"n": 5}))
    trace = traced.ask(lambda headers: call(traced, f"/{path}", message, headers), path)
    stage = trace.one("Function 'toy.count'")
    assert trace.path(stage) == [path, "worker", stage.name]


def test_requests_that_the_caller_does_not_sample_are_not_recorded(traced: Traced) -> None:
    ids = []

    def send(headers: dict[str, str]) -> None:
        trace_id = headers["traceparent"].split("-")[1]
        ids.append(trace_id)
        unsampled = {"traceparent": f"00-{trace_id[::-1]}-{PARENT}-00"}
        assert traced.calls.post("toy", "staged", {"x": 1}, unsampled)["instances"] == [{"y": 3}]
        traced.calls.post("toy", "staged", {"x": 1}, headers)

    traced.ask(send, REST)  # spans leave in the order in which they ended
    assert not traced.collector.has(ids[0][::-1])


def test_probes_are_not_traced(traced: Traced) -> None:
    def send(headers: dict[str, str]) -> None:
        for path in ("/readyz", "/metrics", "/v2/health/live"):
            assert traced.calls.http_call("GET", path, None, headers)[0] == 200
        traced.calls.post("toy", "staged", {"x": 1}, headers)

    trace = traced.ask(send, REST)
    assert [span.name for span in trace.spans if span.kind == SERVER] == [REST]
