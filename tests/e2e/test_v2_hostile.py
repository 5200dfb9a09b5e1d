"""Protocol v2 with what is no request: answers have the protocol's form, and the server goes on."""

import gzip
import json
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import numpy as np
import pytest

from mindspore_serving.frontends.v2.service import SERVICE
from mindspore_serving.proto import inference_pb2 as pb
from tests.e2e.harness import Calls, config, serving, write_servable
from tests.waiting import PATIENCE

SOURCE = """
@register.register_method(output_names=["y"])
def same(x):
    return x
@method("i")
def fails_late(n):
    yield n
    raise RuntimeError("no more")
"""
KEY = "a-key-that-is-long-enough"
AUTHORIZED = {"Authorization": f"Bearer {KEY}"}
X = np.arange(4, dtype=np.float32)
INFER = "/v2/models/toy.same/infer"
GOOD = {"inputs": [{"name": "x", "shape": [4], "datatype": "FP32", "data": X.tolist()}]}
METHODS = [method.name for method in pb.DESCRIPTOR.services_by_name["GRPCInferenceService"].methods]


@pytest.fixture(scope="module")
def calls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Calls]:
    directory = tmp_path_factory.mktemp("hostile")
    write_servable(directory, "toy", SOURCE)
    with serving(directory, config(directory, "toy"), limit=1, api_keys=[KEY]) as found:
        yield found


def ask(
    calls: Calls, verb: str, path: str, body: bytes | None = None, **headers: str
) -> tuple[int, Any]:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    status, answer = calls.http_call(verb, path, body, {**AUTHORIZED, **named})
    return status, json.loads(answer) if answer else None


def infer(calls: Calls, body: Any, **headers: str) -> tuple[int, Any]:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return ask(calls, "POST", INFER, data, **headers)


def is_well(calls: Calls) -> bool:
    status, answer = infer(calls, GOOD)
    return status == 200 and answer["outputs"][0]["data"] == X.tolist()


def binary(array: Any, **changes: Any) -> tuple[bytes, str]:
    tensor = {
        "name": "x",
        "shape": list(array.shape),
        "datatype": "FP32",
        "parameters": {"binary_data_size": array.nbytes},
        **changes,
    }
    head = json.dumps({"inputs": [tensor]}).encode()
    return head + array.tobytes(), str(len(head))


@pytest.mark.parametrize("length", ["-1", "x", "1e3", "٣", "9" * 30, "100000", "1"])
def test_a_length_of_the_header_that_cannot_be_is_refused(calls: Calls, length: str) -> None:
    body, _ = binary(X)
    with_length = {"Inference_Header_Content_Length": length.encode().decode("latin-1")}
    status, answer = infer(calls, body, **with_length)
    assert (status, [*answer]) == (400, ["error"])
    assert is_well(calls)


@pytest.mark.parametrize(
    "changes",
    [
        {"shape": [3]},
        {"shape": [-4]},
        {"shape": [2**62, 2**62]},
        {"shape": [0]},
        {"shape": []},
        {"shape": [1] * 100},
        {"datatype": "FP128"},
        {"datatype": "BYTES"},
        {"parameters": {"binary_data_size": 2**62}},
        {"parameters": {"binary_data_size": 15}},
        {"name": "y"},
    ],
    ids=str,
)
def test_a_tensor_that_its_bytes_are_not_is_refused(calls: Calls, changes: Any) -> None:
    body, length = binary(X, **changes)
    status, answer = infer(calls, body, Inference_Header_Content_Length=length)
    assert (status, [*answer]) == (400, ["error"])
    assert is_well(calls)


def test_a_binary_request_is_answered_in_binary_form(calls: Calls) -> None:
    body, length = binary(X)
    text = json.loads(body[: int(length)]) | {"parameters": {"binary_data_output": True}}
    head = json.dumps(text).encode()
    status, answer = calls.http_call(
        "POST",
        INFER,
        head + X.tobytes(),
        {**AUTHORIZED, "Inference-Header-Content-Length": str(len(head))},
    )
    assert (status, answer[-X.nbytes :]) == (200, X.tobytes())


@pytest.mark.parametrize(
    ("make_body", "encoding", "status"),
    [
        (lambda: b"no gzip", "gzip", 400),
        (lambda: gzip.compress(json.dumps(GOOD).encode())[:-4], "gzip", 400),
        (lambda: gzip.compress(json.dumps(GOOD).encode()) + b"more", "gzip", 400),
        (lambda: zlib.compress(b" " * (2 << 20)), "deflate", 413),
        (lambda: gzip.compress(bytes(1 << 26)), "gzip", 413),
        (lambda: json.dumps(GOOD).encode(), "br", 400),
    ],
    ids=["none", "half", "more", "large", "bomb", "other"],
)
def test_compressed_bodies_are_limited_and_checked(
    calls: Calls, make_body: Callable[[], bytes], encoding: str, status: int
) -> None:
    found, answer = infer(calls, make_body(), Content_Encoding=encoding)
    assert (found, [*answer]) == (status, ["error"])
    assert is_well(calls)


def test_a_body_that_is_too_large_is_refused(calls: Calls) -> None:
    status, answer = infer(calls, b" " * ((1 << 20) + 1))
    assert (status, [*answer]) == (413, ["error"])


@pytest.mark.parametrize(
    ("verb", "path", "status"),
    [
        ("GET", INFER, 405),
        ("POST", "/v2/health/live", 405),
        ("DELETE", "/v2/models/toy", 405),
        ("POST", "/v2", 405),
        ("GET", "/v2/nothing", 404),
        ("GET", "/v2/models/toy/nothing", 404),
        ("GET", "/v2/models/nobody", 404),
        ("GET", "/v2/models/nobody/ready", 404),
        ("GET", "/v2/models/toy.same/versions/9", 404),
        ("GET", "/v2/models/toy.same/versions/x", 400),
        ("GET", "/v2/models/toy", 400),
        ("GET", "/v2/systemsharedmemory/status", 403),
        ("POST", "/v2/systemsharedmemory/region/r/register", 400),
        ("POST", "/v2/models/toy.same/generate", 400),
        ("POST", "/v2/repository/models/toy/load", 403),
        ("POST", "/v2/cudasharedmemory/region/r/register", 404),
        ("GET", "/v2/models/%2e%2e%2fetc", 404),
    ],
)
def test_a_path_or_verb_that_is_wrong_is_answered_in_the_protocols_form(
    calls: Calls, verb: str, path: str, status: int
) -> None:
    found, answer = ask(calls, verb, path, b"" if verb == "POST" else None)
    assert (found, [*answer]) == (status, ["error"]), answer
    assert isinstance(answer["error"], str)


@pytest.mark.parametrize("body", [b"[]", b"1", b"{", b'{"parameters":1}', b"\xff"])
def test_settings_that_are_no_object_are_refused(calls: Calls, body: bytes) -> None:
    for path in ("/v2/logging", "/v2/trace/setting", "/v2/repository/index"):
        status, answer = ask(calls, "POST", path, body)
        assert (status, [*answer]) == (400, ["error"])


def test_health_needs_no_key_and_all_else_does(calls: Calls) -> None:
    for path in ("/v2/health/live", "/v2/health/ready"):
        assert calls.http_call("GET", path)[0] == 200
    for path in ("/v2", "/v2/models/toy.same/ready", "/v2/logging"):
        status, answer = calls.http_call("GET", path)
        assert (status, [*json.loads(answer)]) == (401, ["error"])


# --- gRPC ---


def grpc_call(calls: Calls, method: str, body: bytes, *, with_key: bool = True) -> Any:
    metadata = [("authorization", f"Bearer {KEY}")] if with_key else []
    with grpc.insecure_channel(calls.grpc) as channel:
        call = channel.stream_stream(f"/{SERVICE}/{method}")
        return [*call(iter([body]), timeout=PATIENCE, metadata=metadata)]


def code_of(calls: Calls, method: str, body: bytes, **options: Any) -> str:
    with pytest.raises(grpc.RpcError) as caught:
        grpc_call(calls, method, body, **options)
    return caught.value.code().name


def request(**fields: Any) -> pb.ModelInferRequest:
    found = pb.ModelInferRequest(model_name="toy.same", **fields)
    found.inputs.add(name="x", datatype="FP32", shape=[4])
    return found


def is_well_by_grpc(calls: Calls) -> bool:
    body = request(raw_input_contents=[X.tobytes()]).SerializeToString()
    (answer,) = grpc_call(calls, "ModelInfer", body)
    return pb.ModelInferResponse.FromString(answer).raw_output_contents[0] == X.tobytes()


@pytest.mark.parametrize("method", [one for one in METHODS if one != "ModelStreamInfer"])
def test_bytes_that_are_no_message_are_an_invalid_argument(calls: Calls, method: str) -> None:
    assert code_of(calls, method, b"\xff\xff\xff") == "INVALID_ARGUMENT"
    assert is_well_by_grpc(calls)


@pytest.mark.parametrize("method", METHODS)
def test_every_call_needs_the_key(calls: Calls, method: str) -> None:
    assert code_of(calls, method, b"", with_key=False) == "UNAUTHENTICATED"


@pytest.mark.parametrize(
    ("raw", "shape", "datatype"),
    [
        ([b""], [4], "FP32"),
        ([bytes(15)], [4], "FP32"),
        ([bytes(16), b""], [4], "FP32"),
        ([bytes(16)], [-4], "FP32"),
        ([bytes(16)], [2**62, 4], "FP32"),
        ([bytes(16)], [4], ""),
        ([bytes(16)], [4], "BYTES2"),
        ([b"\xff\xff\xff\xff" * 4], [4], "BYTES"),
        ([], [4], "FP32"),
    ],
    ids=str,
)
def test_tensors_that_their_bytes_are_not_are_invalid(
    calls: Calls, raw: list[bytes], shape: list[int], datatype: str
) -> None:
    found = request(raw_input_contents=raw)
    found.inputs[0].shape[:] = shape
    found.inputs[0].datatype = datatype
    assert code_of(calls, "ModelInfer", found.SerializeToString()) == "INVALID_ARGUMENT"
    assert is_well_by_grpc(calls)


def test_a_stream_answers_bytes_that_are_no_request(calls: Calls) -> None:
    (answer,) = grpc_call(calls, "ModelStreamInfer", b"\xff\xff")
    found = pb.ModelStreamInferResponse.FromString(answer)
    assert found.error_message == "the request is not a valid ModelInferRequest"


def test_a_stream_that_fails_late_says_so_behind_its_pieces(calls: Calls) -> None:
    body = pb.ModelInferRequest(model_name="toy.fails_late", id="1")
    body.inputs.add(name="n", datatype="INT64", shape=[1])
    body.raw_input_contents.append(bytes(8))
    answers = grpc_call(calls, "ModelStreamInfer", body.SerializeToString())
    first, last = map(pb.ModelStreamInferResponse.FromString, answers)
    assert first.infer_response.outputs[0].name == "i"
    assert "no more" in last.error_message
    assert last.infer_response.id == "1"


def test_contents_of_protobuf_are_taken(calls: Calls) -> None:
    found = request()
    found.inputs[0].contents.fp32_contents.extend(X.tolist())
    (answer,) = grpc_call(calls, "ModelInfer", found.SerializeToString())
    assert pb.ModelInferResponse.FromString(answer).raw_output_contents[0] == X.tobytes()


def test_reflection_needs_the_key_too(calls: Calls) -> None:
    with grpc.insecure_channel(calls.grpc) as channel:
        call = channel.stream_stream("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo")
        with pytest.raises(grpc.RpcError) as caught:
            [*call(iter([b""]), timeout=PATIENCE)]
        assert caught.value.code().name == "UNAUTHENTICATED"
