"""Random and mutated bytes on both ports: the server stays up and answers the next good request."""

import json
import os
import socket

import grpc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mindspore_serving.proto import ms_service_pb2 as pb
from tests.e2e.harness import eventually, workers
from tests.waiting import PATIENCE

SOURCE = """
@method("y")
def double(x):
    return x * 2
"""
BODY = b'{"instances":[{"x":[[1,2],[3,4]]},{"x":{"b64":"AAAA","type":"int8","shape":[3]}}]}'
HTTP = b"POST /model/toy:double HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%b" % (
    len(BODY),
    BODY,
)
bounded = settings(max_examples=200)


def request() -> bytes:
    message = pb.PredictRequest()
    message.servable_spec.name, message.servable_spec.method_name = "toy", "double"
    for _ in range(2):
        item = message.instances.add().items["x"]
        item.dtype, item.data = pb.MS_FLOAT32, b"\x00\x00\x80?" * 4
        item.shape.dims.extend([2, 2])
    text = message.instances[1].items["extra"]
    text.dtype = pb.MS_STRING
    text.bytes_val.append(b"text")
    return message.SerializeToString()


def mutated(whole: bytes) -> st.SearchStrategy[bytes]:
    """`whole` with some bytes replaced, and pieces of it dropped, doubled or filled with noise."""
    places = st.integers(0, len(whole))
    changes = st.tuples(places, places, st.binary(max_size=12))

    def apply(edits: list[tuple[int, int, bytes]]) -> bytes:
        result = whole
        for start, end, noise in edits:
            result = (
                result[:start] + noise + result[min(end, start + 16) if end > start else start :]
            )
        return result

    return st.lists(changes, min_size=1, max_size=4).map(apply)


@pytest.fixture
def still_well(calls):
    """The same worker answers good requests on both ports afterwards."""
    before = workers(os.getpid())
    yield
    assert calls.client("toy", "double").infer({"x": 4})[0]["y"] == 8
    assert calls.post("toy", "double", {"x": 4}) == {"instances": [{"y": 8}]}
    assert workers(os.getpid()) == before
    eventually(lambda: b"\nserving_requests_in_flight 0.0\n" in metrics(calls))


def metrics(calls) -> bytes:
    return calls.http_call("GET", "/metrics")[1]


def send(calls, data: bytes) -> bytes:
    """Half-close is a disconnect for an HTTP server, so this waits until nothing more comes."""
    with socket.create_connection(("127.0.0.1", calls.http)) as stream:
        stream.sendall(data)
        stream.settimeout(0.02)
        answer = b""
        try:
            while chunk := stream.recv(1 << 16):
                answer += chunk
        except (TimeoutError, ConnectionError):
            pass
        return answer


@bounded
@given(data=st.binary(max_size=300) | mutated(HTTP))
def test_bytes_to_the_http_port(calls, still_well, data):
    answer = send(calls, data)
    assert answer == b"" or answer.startswith(b"HTTP/1.1 ")
    assert b"Traceback" not in answer


@bounded
@given(body=st.binary(min_size=1, max_size=300) | mutated(BODY))
def test_bytes_as_the_body_of_a_request(calls, still_well, body):
    status, answer = calls.http_call("POST", "/model/toy:double", body)
    assert status == 200
    assert list(json.loads(answer)) in (["instances"], ["error_msg"])


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["x", "b64", "type", "shape", "instances", ""]), inner, max_size=3
        )
    ),
    max_leaves=12,
)


@bounded
@given(value=JSON)
def test_json_of_all_kinds_as_instances(calls, still_well, value):
    status, answer = calls.http_call("POST", "/model/toy:double", json.dumps({"instances": value}))
    assert status == 200
    assert list(json.loads(answer)) in (["instances"], ["error_msg"])


@bounded
@given(path=st.text(st.characters(codec="latin-1", exclude_characters="\r\n "), max_size=40))
def test_paths_of_all_kinds(calls, still_well, path):
    line = b"POST /model/%b HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}" % path.encode("latin-1")
    answer = send(calls, line)
    assert answer == b"" or answer.startswith(b"HTTP/1.1 ")


@bounded
@given(data=st.binary(max_size=300) | mutated(request()))
def test_bytes_as_a_predict_request(calls, still_well, data):
    with grpc.insecure_channel(calls.grpc) as channel:
        reply = channel.unary_unary("/mindspore.serving.proto.MSService/Predict")(
            data, timeout=PATIENCE
        )
    pb.PredictReply.FromString(reply)


@bounded
@given(data=st.binary(max_size=300))
def test_bytes_to_the_grpc_port(calls, still_well, data):
    host, _, port = calls.grpc.partition(":")
    with socket.create_connection((host, int(port))) as stream:
        stream.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + data)
