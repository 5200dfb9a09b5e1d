"""Requests that are wrong: a clear error on both protocols, and the server goes on."""

import json
import os
from pathlib import Path

import grpc
import numpy as np
import pytest

from mindspore_serving.proto import ms_service_pb2 as pb
from tests.e2e.harness import both_errors, workers
from tests.waiting import PATIENCE

SOURCE = """
@method("z")
def add(x, y):
    return x + y

@method("text", "same")
def echo(x):
    text = x if isinstance(x, str) else f"{x.dtype}{list(x.shape)}"
    return text, x

@register.register_method(output_names=["x", "y"])
def swap(y, x):
    return x, y

"""


@pytest.fixture(autouse=True)
def still_well(calls):
    """After every test the server answers, and by the same worker as before."""
    before = workers(os.getpid())
    yield
    assert calls.client("toy", "add").infer({"x": 1, "y": 2})[0]["z"] == 3
    assert calls.post("toy", "add", {"x": 1, "y": 2}) == {"instances": [{"z": 3}]}
    assert workers(os.getpid()) == before
    calls.close()


def test_a_request_without_instances_is_an_error_on_both(calls):
    assert "Instances count of request cannot be 0" in calls.client("toy", "add").infer([])["error"]
    assert "no value" in calls.post("toy", "add", [])["error_msg"]


@pytest.mark.parametrize(
    ("servable", "method", "words"),
    [
        ("nobody", "add", "Request servable(nobody) method(add), servable is not available"),
        ("toy", "nothing", "Request servable(toy) method(nothing), method is not available"),
        ("toy", "@call_x_0", "method is not available"),
    ],
)
def test_unknown_servables_and_methods_are_named(calls, servable, method, words):
    for text in both_errors(calls, method, {"x": 1, "y": 2}, servable):
        assert words in text


def test_a_version_that_does_not_run_is_named(calls):
    text = calls.client("toy", "add", 9).infer({"x": 1, "y": 2})["error"]
    assert "version(9)" in text
    body = json.dumps({"instances": {"x": 1, "y": 2}})
    _, by_rest = calls.http_call("POST", "/model/toy/version/9:add", body)
    assert json.loads(by_rest) == {"error_msg": text}
    _, by_rest = calls.http_call("POST", "/model/toy/version/1:add", body)
    assert json.loads(by_rest) == {"instances": [{"z": 3}]}


def test_a_missing_input_fails_the_request_and_is_named(calls):
    for text in both_errors(calls, "add", [{"x": 1, "y": 2}, {"x": 1}]):
        assert "Cannot find input y in instance input" in text


def test_values_that_do_not_fit_together_fail_in_the_function(calls):
    bad = {"x": np.zeros(2, np.float32), "y": np.zeros(3, np.float32)}
    assert "could not be broadcast" in calls.client("toy", "add").infer(bad)["error"]
    assert "Failed" in calls.client("toy", "add").infer({"x": "a", "y": np.zeros(3)})["error"]


@pytest.fixture
def predict(calls):
    """predict(tensor): raw bytes of the answer's error to a request with this input of echo."""
    with grpc.insecure_channel(calls.grpc) as channel:
        call = channel.unary_unary("/mindspore.serving.proto.MSService/Predict")

        def run(tensor: pb.Tensor) -> str:
            request = pb.PredictRequest()
            request.servable_spec.name, request.servable_spec.method_name = "toy", "echo"
            request.instances.add().items["x"].CopyFrom(tensor)
            reply = pb.PredictReply.FromString(call(request.SerializeToString(), timeout=PATIENCE))
            assert not reply.instances
            return reply.error_msg[0].error_msg.decode()

        yield run


def tensor(dims, dtype, data=b"", texts=()):
    return pb.Tensor(shape=pb.TensorShape(dims=dims), dtype=dtype, data=data, bytes_val=texts)


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (tensor([-1], pb.MS_FLOAT32, b"1234"), "shape [-1] invalid"),
        (tensor([-1, -1], pb.MS_FLOAT32, b"1234"), "shape [-1, -1] invalid"),
        (tensor([0, 2], pb.MS_FLOAT32), "shape [0, 2] invalid"),
        (tensor([1 << 62, 4], pb.MS_FLOAT32, b"1234"), "invalid"),
        (tensor([1 << 32, 1 << 32], pb.MS_INT8, b""), "invalid"),
        (tensor([(1 << 63) - 1] * 3, pb.MS_INT8, b""), "invalid"),
        (tensor([1] * 100, pb.MS_INT8, b"1"), "shape of 100 dimensions invalid"),
        (tensor([2], pb.MS_FLOAT32, b"123"), "input data size 3 invalid"),
        (tensor([], pb.MS_FLOAT32), "input data size 0 invalid"),
        (tensor([1], pb.MS_UNKNOWN, b"1234"), "MS_UNKNOWN"),
        (tensor([1], 77, b"1234"), "invalid"),
        (tensor([2], pb.MS_STRING, texts=[b"a", b"b"]), "bytes or string type"),
        (tensor([1, 1], pb.MS_BYTES, texts=[b"a"]), "shape can only be (1,) or empty"),
        (tensor([1], pb.MS_STRING, texts=[b"\xff\xfe"]), "string is not UTF-8"),
        (tensor([1], pb.MS_STRING), "shape batch size can only be 1"),
    ],
    ids=str,
)
def test_a_tensor_that_is_none_is_refused(predict, bad, words):
    text = predict(bad)
    assert words in text
    assert "Instances input x check failed" in text


def test_messages_cut_short_are_refused(calls):
    request = pb.PredictRequest()
    request.servable_spec.name, request.servable_spec.method_name = "toy", "add"
    for name in ("x", "y"):
        request.instances.add().items[name].CopyFrom(tensor([1], pb.MS_FLOAT32, b"1234"))
    whole = request.SerializeToString()
    with grpc.insecure_channel(calls.grpc) as channel:
        call = channel.unary_unary("/mindspore.serving.proto.MSService/Predict")
        for end in range(len(whole)):
            reply = pb.PredictReply.FromString(call(whole[:end], timeout=PATIENCE))
            assert reply.error_msg
            assert reply.error_msg[0].error_msg


def test_other_grpc_methods_are_unimplemented(calls):
    with grpc.insecure_channel(calls.grpc) as channel:
        for path in ("/mindspore.serving.proto.MSService/Exit", "/x/y"):
            with pytest.raises(grpc.RpcError) as caught:
                channel.unary_unary(path)(b"", timeout=PATIENCE)
            assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.parametrize("size", [(1 << 20) + 1, 8 << 20])
def test_a_message_over_the_limit_is_resource_exhausted(calls, size):
    client = calls.client("toy", "echo")
    error = client.infer({"x": np.zeros(size, np.uint8)})["error"]
    assert "Grpc Error, (8, 'resource exhausted')" in error
    assert client.infer({"x": np.zeros(1 << 19, np.uint8)})[0]["same"].size == 1 << 19


def test_no_process_is_left_over(calls, started):
    assert started() == workers(os.getpid())
    assert len(started()) == 1
    assert Path("serving_logs").is_dir()
