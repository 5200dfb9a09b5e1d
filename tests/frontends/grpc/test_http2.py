"""The gRPC server on HTTP/2, alone and with front ends, as clients of grpcio see it."""

import json
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from urllib.error import HTTPError

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from mindspore_serving.client import Client
from mindspore_serving.core.server_limits import ServerLimits
from mindspore_serving.core.service import Reply
from mindspore_serving.errors import Overloaded, StartError
from mindspore_serving.frontends.access import ResponseCounter
from mindspore_serving.frontends.address import parse
from mindspore_serving.frontends.grpc.calls import CallGate
from mindspore_serving.frontends.grpc.http2_server import GrpcMethods, Http2GrpcServer
from mindspore_serving.frontends.keys import Keys
from mindspore_serving.frontends.mindspore import grpc as ms_grpc
from tests.e2e.harness import config, write_servable
from tests.e2e.harness import serving as whole_server
from tests.frontends.grpc.test_limits import KEY, PREDICT, message, status_of
from tests.frontends.http_serving import Inference
from tests.frontends.raw_grpc import RawGrpc
from tests.ports import free_port
from tests.waiting import PATIENCE, eventually

LARGEST = 1 << 20
TOY = """
@method("y")
def echo(x):
    return x

@method("y")
def count_up(x):
    for number in range(x.item()):
        yield number
"""


class Served:
    """A running server over an inference that the test answers."""

    def __init__(self, background, keys=(), text="", **limits) -> None:
        self.background, self.inference = background, Inference()
        self.responses = ResponseCounter()
        self.address = parse(text or f"127.0.0.1:{free_port()}", "gRPC", allow_unix=True)
        bounds = ServerLimits(**limits)
        gate = CallGate(Keys(keys), bounds, LARGEST)
        handlers = [ms_grpc.handler(self.inference, gate)]
        closing = [gate.close]
        methods = GrpcMethods(handlers, LARGEST, closing)
        self.server = Http2GrpcServer(self.address, methods, bounds, self.responses)
        background.run(self.server.start(None))
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_retries", 0)]
        self.channel = grpc.insecure_channel(self.address.text, options)

    def call(self, body: bytes, *metadata, timeout=PATIENCE, path=PREDICT, **options):
        return self.channel.unary_unary(path).future(
            body, timeout=timeout, metadata=metadata, **options
        )

    def close(self) -> None:
        self.channel.close()
        self.background.run(self.server.stop(0))


@contextmanager
def serving(background, keys=(), **options) -> Iterator[Served]:
    made = Served(background, keys, **options)
    try:
        yield made
    finally:
        made.close()


@pytest.fixture(scope="module")
def served(background):
    with serving(background) as made:
        yield made


def test_a_call_is_answered_with_the_bytes_of_the_reply(served):
    assert message(1000) in served.call(message(1000)).result()
    assert served.inference.calls[-1].request.body == message(1000)


def test_the_text_of_a_compressed_message_is_read(served):
    compressed = served.call(message(5000), compression=grpc.Compression.Gzip)
    assert b"x" * 5000 in compressed.result()


def test_a_caller_gets_its_request_id_back(served):
    call = served.call(message(), ("x-request-id", "mine"))
    assert ("x-request-id", "mine") in [tuple(pair) for pair in call.trailing_metadata()]


def test_a_message_over_the_limit_is_refused_with_its_size(served):
    body = message(LARGEST)
    call = served.call(body)
    assert status_of(call) == "RESOURCE_EXHAUSTED"
    assert f"message of {len(body)} bytes is larger than max ({LARGEST})" in call.details()


def test_an_answer_over_the_limit_is_refused_with_its_size(background):
    with serving(background) as served:
        served.inference.holds = True
        call = served.call(message())
        served.inference.wait_for(1).reply(Reply([bytes(LARGEST + 1)]))
        assert status_of(call) == "RESOURCE_EXHAUSTED"
        assert f"larger than max ({LARGEST})" in call.details()


def test_a_method_that_is_unknown_is_refused(served):
    assert status_of(served.call(b"", path="/no.Service/Method")) == "UNIMPLEMENTED"
    assert status_of(served.call(b"", path=f"{PREDICT}More")) == "UNIMPLEMENTED"


def test_a_call_without_a_message_is_refused(served):
    method = served.channel.stream_unary(PREDICT)
    with pytest.raises(grpc.RpcError):
        method(iter(()), timeout=PATIENCE)
    assert status_of(served.call(message())) == "OK"


def test_a_path_that_is_not_utf8_ends_no_other_call(served):
    bad = grpc.insecure_channel(served.address.text, [("grpc.use_local_subchannel_pool", 1)])
    with bad, pytest.raises(grpc.RpcError):
        bad.unary_unary(b"/\xff".decode("latin-1"))(b"", timeout=PATIENCE)
    assert status_of(served.call(message())) == "OK"


def test_a_call_that_its_client_cancels_is_cancelled_in_the_server(background):
    with serving(background) as served:
        served.inference.holds = True
        call = served.call(message())
        asked = served.inference.wait_for(1)
        call.cancel()
        eventually(lambda: asked.is_cancelled)
        eventually(lambda: sum(served.responses.counts.values()))
        assert dict(served.responses.counts) == {("grpc", "CANCELLED"): 1}


def test_a_call_whose_deadline_passes_is_cancelled_in_the_server(background):
    with serving(background) as served:
        assert status_of(served.call(message())) == "OK"  # the connection takes no time of the next
        served.inference.holds = True
        call = served.call(message(), timeout=1)
        asked = served.inference.wait_for(2)
        assert asked.request.timeout < 2
        assert status_of(call) == "DEADLINE_EXCEEDED"
        eventually(lambda: asked.is_cancelled)


def test_a_caller_without_a_key_is_refused(background):
    with serving(background, [KEY]) as served:
        assert status_of(served.call(message())) == "UNAUTHENTICATED"
        assert status_of(served.call(message(), ("authorization", f"Bearer {KEY}"))) == "OK"
        assert len(served.inference.calls) == 1


def test_unanswered_messages_count_in_the_memory_limit(background):
    with serving(background, max_body_memory=LARGEST) as served:
        served.inference.holds = True
        first = served.call(message(LARGEST // 2))
        asked = served.inference.wait_for(1)
        refused = served.call(message(LARGEST // 2))
        assert status_of(refused) == "RESOURCE_EXHAUSTED"
        assert ("retry-after", "1") in [tuple(pair) for pair in refused.trailing_metadata()]
        asked.reply(Reply(failure=Overloaded("no")))
        assert status_of(first) == "OK"  # the error is in the message


@pytest.mark.parametrize("path", [PREDICT, f"{PREDICT}Stream"])
def test_calls_without_a_message_keep_no_other_client_out(background, path):
    with serving(background, max_body_memory=4 * LARGEST) as served:
        hog = RawGrpc(served.address.port)
        for _ in range(25):
            hog.call(path)
        hog.call("/no.Service/Method")
        hog.wait_until_closed(51)  # all are read
        for size in (0, 1000, LARGEST // 2):
            assert status_of(served.call(message(size))) == "OK"
            stream = served.channel.unary_stream(f"{PREDICT}Stream")
            assert len([*stream(message(size), timeout=PATIENCE)]) == 1
        hog.stream.close()


def test_running_calls_are_answered_when_the_server_stops(background):
    with serving(background) as served:
        served.inference.holds = True
        running = served.call(message())
        asked = served.inference.wait_for(1)
        with ThreadPoolExecutor(1) as thread:
            stopping = thread.submit(background.run, served.server.stop(grace=600))
            # One that comes before the server has begun to stop is held, so none may take long.
            eventually(lambda: status_of(served.call(message(), timeout=1)) == "UNAVAILABLE")
            asked.reply(Reply([b""]))
            assert status_of(running) == "OK"
            stopping.result(PATIENCE)


def test_calls_that_are_not_answered_in_time_end_with_the_server(background):
    with serving(background) as served:
        served.inference.holds = True
        running = served.call(message())
        asked = served.inference.wait_for(1)
        background.run(served.server.stop(grace=0))
        assert status_of(running) == "UNAVAILABLE"
        eventually(lambda: asked.is_cancelled)


def test_a_unix_socket_is_served(background, tmp_path):
    with serving(background, text=f"unix:{tmp_path}/socket") as served:
        assert status_of(served.call(message())) == "OK"


def test_an_address_in_use_is_reported(served):
    with pytest.raises(StartError, match=f"address {served.address.text} failed: .* in use"):
        Served(served.background, text=served.address.text)


@pytest.fixture(scope="module", params=[1, 2], ids=["alone", "two front ends"])
def calls(request, tmp_path_factory):
    """A server with one front end, and with two."""
    directory = tmp_path_factory.mktemp("served")
    write_servable(directory, "toy", TOY)
    with whole_server(directory, config(directory, "toy"), front_ends=request.param) as found:
        yield found


def test_the_classic_protocol_and_its_streams_are_served(calls):
    assert calls.client("toy", "echo").infer({"x": np.arange(6.0)})[0]["y"].sum() == 15
    found = calls.client("toy", "count_up").infer_stream({"x": 4})
    assert [int(one["y"]) for one in found] == [0, 1, 2, 3]


def test_protocol_v2_and_its_streams_are_served(calls):
    triton = pytest.importorskip("tritonclient.grpc")
    given = triton.InferInput("x", [3], "FP32")
    given.set_data_from_numpy(np.arange(3, dtype=np.float32))
    with triton.InferenceServerClient(calls.grpc) as client:
        assert client.is_model_ready("toy.echo")
        assert client.infer("toy.echo", [given]).as_numpy("y").tolist() == [0, 1, 2]
        found = []
        client.start_stream(lambda result, error: found.append((result, error)))
        client.async_stream_infer("toy.echo", [given])
        eventually(lambda: found)
        client.stop_stream()
    assert found[0][1] is None
    assert found[0][0].as_numpy("y").tolist() == [0, 1, 2]


def test_the_health_service_is_served(calls):
    with grpc.insecure_channel(calls.grpc) as channel:
        request = health_pb2.HealthCheckRequest(service="toy")
        answer = health_pb2_grpc.HealthStub(channel).Check(request, timeout=PATIENCE)
    assert answer.status == health_pb2.HealthCheckResponse.SERVING


def test_the_http_port_answers_grpc_too(calls):
    port = calls.http
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        request = health_pb2.HealthCheckRequest(service="toy")
        answer = health_pb2_grpc.HealthStub(channel).Check(request, timeout=PATIENCE)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
    with Client(f"127.0.0.1:{port}", "toy", "echo") as client:
        assert client.infer({"x": np.arange(6.0)})[0]["y"].sum() == 15


def test_a_foreign_page_cannot_call_grpc_on_the_http_port(calls):
    origin = ("origin", "https://foreign.example")
    with grpc.insecure_channel(f"127.0.0.1:{calls.http}") as channel:
        call = channel.unary_unary(PREDICT).future(message(), metadata=[origin], timeout=PATIENCE)
        assert status_of(call) == "PERMISSION_DENIED"


def test_the_http_port_answers_connect_too(calls):
    for name, answer in (
        ("toy", b'{"status": "SERVING"}'),
        ("no", b'{"code":"not_found","message":"there is no servable \'no\'"}'),
    ):
        call = urllib.request.Request(
            f"http://127.0.0.1:{calls.http}/grpc.health.v1.Health/Check",
            json.dumps({"service": name}).encode(),
            {"content-type": "application/json"},
        )
        try:
            response = urllib.request.urlopen(call, timeout=PATIENCE)
        except HTTPError as error:
            response = error
        assert response.read() == answer
