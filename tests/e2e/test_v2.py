"""Protocol v2 as tritonclient speaks it, over HTTP and gRPC, untouched; all against one server."""

import json
import math
import queue
import re
from collections.abc import Callable, Iterator
from multiprocessing.shared_memory import SharedMemory
from typing import Any

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)

from tests.e2e.harness import Calls, config, eventually, in_flight, serving, write_servable
from tests.waiting import PATIENCE

tritonclient_grpc = pytest.importorskip("tritonclient.grpc")
tritonclient_http = pytest.importorskip("tritonclient.http")
utils = pytest.importorskip("tritonclient.utils")
aio_grpc = pytest.importorskip("tritonclient.grpc.aio")
aio_http = pytest.importorskip("tritonclient.http.aio")

SOURCE = """
@method("y")
def predict(x1, x2):
    return x1 + x2
@register.register_method(output_names=["y"])
def same(x):
    return x
@method("shouted")
def upper(text):
    return text.upper()
@method("size")
def size(data):
    return data.size
@method("i", "text")
def count(n):
    for i in range(int(n)):
        yield i, f"number {i}"
@method("n")
def endless(n):
    while True:
        time.sleep(0.01)
        yield n
@method("y")
def picky(x):
    if x[0] < 0:
        raise RuntimeError("not this one")
    return x
"""
X = np.arange(12, dtype=np.float32).reshape(4, 3)
DATATYPES = [
    "BOOL",
    "UINT8",
    "UINT16",
    "UINT32",
    "UINT64",
    "INT8",
    "INT16",
    "INT32",
    "INT64",
    "FP16",
    "FP32",
    "FP64",
]
UNKNOWN = "Request for unknown model: 'nobody' is not found"


@pytest.fixture(scope="module", params=[1, 2], ids=["one process", "front ends"])
def calls(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Calls]:
    directory = tmp_path_factory.mktemp("v2")
    write_servable(directory, "toy", SOURCE)
    two_workers = config(directory, "toy", num_parallel_workers=2)
    options = {"client_shared_memory": True, "front_ends": request.param}
    with serving(directory, two_workers, **options) as found:
        yield found


class Api:
    """One transport of tritonclient."""

    def __init__(self, module: Any, client: Any, options: tuple[dict[str, Any], ...]) -> None:
        self.module = module
        self.client = client
        self.options = options  # of data: how they are sent

    def input(self, name: str, array: Any, **options: Any) -> Any:
        datatype = utils.np_to_triton_dtype(array.dtype)
        found = self.module.InferInput(name, list(array.shape), datatype)
        found.set_data_from_numpy(array, **options)
        return found

    def infer(self, model: str, *, outputs: Any = None, **arrays: Any) -> Any:
        inputs = [self.input(name, array) for name, array in arrays.items()]
        return self.client.infer(model, inputs, outputs=outputs)

    def as_dict(self, found: Any) -> Any:
        """An answer of gRPC, or of HTTP, which is one already."""
        from google.protobuf.json_format import MessageToDict

        if isinstance(found, list | dict):
            return found
        return MessageToDict(found, preserving_proto_field_name=True)


@pytest.fixture(scope="module", params=["http", "grpc"])
def api(request: pytest.FixtureRequest, calls: Calls) -> Iterator[Api]:
    if request.param == "http":
        client = http_client(calls)
        yield Api(tritonclient_http, client, ({}, {"binary_data": False}))
    else:
        client = tritonclient_grpc.InferenceServerClient(calls.grpc)
        yield Api(tritonclient_grpc, client, ({},))
    client.close()


# Kept for ever: the client's __del__ waits for greenlets, which fails where the garbage collector
# runs on another thread.
_clients: list[Any] = []


def http_client(calls: Calls, **options: Any) -> Any:
    client = tritonclient_http.InferenceServerClient(f"127.0.0.1:{calls.http}", **options)
    _clients.append(client)
    return client


def error_of(action: Callable[[], Any]) -> Any:
    with pytest.raises(utils.InferenceServerException) as caught:
        action()
    return caught.value


# --- server and models ---


def test_the_server_and_its_models_are_live_and_ready(api: Api) -> None:
    client = api.client
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("toy")
    assert client.is_model_ready("toy", "1")
    assert client.is_model_ready("toy.same")


def test_server_metadata_lists_the_extensions(api: Api) -> None:
    found = api.as_dict(api.client.get_server_metadata())
    assert found["name"] == "mindspore_serving"
    assert {"binary_tensor_data", "statistics", "system_shared_memory"} <= {*found["extensions"]}


def test_a_model_is_the_method_predict_or_a_dotted_method(api: Api) -> None:
    default = api.as_dict(api.client.get_model_metadata("toy"))
    assert [one["name"] for one in default["inputs"]] == ["x1", "x2"]
    other = api.as_dict(api.client.get_model_metadata("toy.upper", "1"))
    assert (other["name"], other["versions"]) == ("toy.upper", ["1"])
    assert [one["name"] for one in other["outputs"]] == ["shouted"]


def test_a_streaming_method_is_decoupled(api: Api) -> None:
    found = api.as_dict(api.client.get_model_config("toy.count"))
    found = found.get("config", found)
    assert found["model_transaction_policy"]["decoupled"] is True


def test_the_index_has_every_model(api: Api) -> None:
    found = api.as_dict(api.client.get_model_repository_index())
    rows = found if isinstance(found, list) else found["models"]
    assert {row["name"] for row in rows} == {
        *("toy", "toy.same", "toy.upper", "toy.size", "toy.count", "toy.picky", "toy.endless")
    }
    assert {row["state"] for row in rows} == {"READY"}


def test_loading_models_is_for_those_who_are_allowed(api: Api) -> None:
    for action in (api.client.load_model, api.client.unload_model):
        assert "may not load and unload" in str(error_of(lambda action=action: action("toy")))


def test_waiting_and_computing_are_counted_apart(api: Api) -> None:
    def counts() -> dict[str, tuple[int, int]]:
        found = api.as_dict(api.client.get_inference_statistics("toy.same"))["model_stats"][0]
        parts = found["inference_stats"].items()
        return {name: (int(row.get("count", 0)), int(row.get("ns", 0))) for name, row in parts}

    before = counts()
    api.infer("toy.same", x=X)
    after = counts()
    assert {name: row[0] - before[name][0] for name, row in after.items()} == {
        **dict.fromkeys(("fail", "cache_hit", "cache_miss"), 0),
        **dict.fromkeys(
            ("success", "queue", "compute_input", "compute_infer", "compute_output"), 1
        ),
    }
    took = {name: row[1] - before[name][1] for name, row in after.items()}
    assert took["success"] >= took["compute_infer"] > 0
    assert abs(took["queue"] + took["compute_infer"] - took["success"]) <= 3  # they are rounded


def test_memory_of_gpus_may_be_asked_to_be_forgotten(api: Api) -> None:
    api.client.unregister_cuda_shared_memory()
    assert not api.as_dict(api.client.get_cuda_shared_memory_status())


def test_outcomes_of_requests_are_counted(api: Api) -> None:
    def counts() -> list[int]:
        found = api.as_dict(api.client.get_inference_statistics("toy.same"))["model_stats"][0]
        stats = found["inference_stats"]
        numbers = [stats["success"].get("count", 0), stats["fail"].get("count", 0)]
        return [int(one) for one in (*numbers, found.get("inference_count", 0))]

    before = counts()
    api.infer("toy.same", x=X)
    error_of(lambda: api.infer("toy.same", z=X))
    assert [b - a for a, b in zip(before, counts(), strict=True)] == [1, 1, 4]


# --- inference ---


def test_instances_of_a_request_are_answered_in_order(api: Api) -> None:
    for options in api.options:
        inputs = [api.input(name, X, **options) for name in ("x1", "x2")]
        found = api.client.infer("toy", inputs, request_id="seven")
        np.testing.assert_array_equal(found.as_numpy("y"), X + X)
        head = api.as_dict(found.get_response())
        assert (head["model_name"], head["model_version"], head["id"]) == ("toy", "1", "seven")


@pytest.mark.parametrize("datatype", DATATYPES)
def test_every_datatype_goes_both_ways(api: Api, datatype: str) -> None:
    array = np.array([[0, 1], [1, 0], [1, 1]], utils.triton_to_np_dtype(datatype))
    for options in api.options:
        if datatype == "FP16" and options:
            continue  # which the client does not write as JSON
        asked = [api.module.InferRequestedOutput("y", **options)]
        found = api.client.infer("toy.same", [api.input("x", array, **options)], outputs=asked)
        np.testing.assert_array_equal(found.as_numpy("y"), array, strict=True)


def test_bf16_is_float32_for_a_method(api: Api) -> None:
    array = np.array([[1.5, -2.0], [0.25, 3.0]], np.float32)
    tensor = api.module.InferInput("x", [2, 2], "BF16")
    tensor.set_data_from_numpy(array.astype(utils.triton_to_np_dtype("BF16")))
    found = api.client.infer("toy.same", [tensor])
    np.testing.assert_array_equal(found.as_numpy("y"), array, strict=True)


def test_texts_and_bytes_go_both_ways(api: Api) -> None:
    texts = np.array(["grün", "b"], object)
    for options in api.options:
        asked = [api.module.InferRequestedOutput("shouted", **options)]
        inputs = [api.input("text", texts, **options)]
        found = api.client.infer("toy.upper", inputs, outputs=asked).as_numpy("shouted")
        decoded = [one.decode() if isinstance(one, bytes) else one for one in found]
        assert decoded == ["GRÜN", "B"]
    data = np.array([b"\xff\xd8\0"], object)
    np.testing.assert_array_equal(api.infer("toy.size", data=data).as_numpy("size"), [3])
    np.testing.assert_array_equal(api.infer("toy.same", x=data).as_numpy("y"), data)


def test_a_single_instance_is_sent_without_a_batch_dimension(api: Api) -> None:
    inputs = [api.input("x", X)]
    found = api.client.infer("toy.same", inputs, parameters={"batched": False})
    np.testing.assert_array_equal(found.as_numpy("y"), X)


def test_a_stream_that_is_asked_for_at_once_gives_its_end(api: Api) -> None:
    found = api.infer("toy.count", n=np.array([3], np.int64))
    assert found.as_numpy("i").tolist() == [2]
    assert found.as_numpy("text").tolist() == [b"number 0number 1number 2"]


def test_only_outputs_that_are_asked_for_are_answered(api: Api) -> None:
    asked = [api.module.InferRequestedOutput("text")]
    found = api.infer("toy.count", n=np.array([1], np.int64), outputs=asked)
    assert found.as_numpy("i") is None
    assert found.as_numpy("text").tolist() == [b"number 0"]


def test_large_tensors_go_both_ways(api: Api) -> None:
    array = np.random.default_rng(7).random((16, 65536), np.float32)
    found = api.infer("toy.same", x=array)
    np.testing.assert_array_equal(found.as_numpy("y"), array)


def test_tensors_may_be_in_shared_memory(api: Api) -> None:
    ours, theirs = (SharedMemory(create=True, size=X.nbytes + 8) for _ in range(2))
    try:
        ours.buf[8 : 8 + X.nbytes] = X.tobytes()
        client = api.client
        client.register_system_shared_memory("in", ours.name, X.nbytes, offset=8)
        client.register_system_shared_memory("out", theirs.name, X.nbytes)
        tensor = api.module.InferInput("x", list(X.shape), "FP32")
        tensor.set_shared_memory("in", X.nbytes)
        asked = api.module.InferRequestedOutput("y")
        asked.set_shared_memory("out", X.nbytes)
        client.infer("toy.same", [tensor], outputs=[asked])
        assert bytes(theirs.buf[: X.nbytes]) == X.tobytes()
        status = api.as_dict(client.get_system_shared_memory_status())
        rows = status if isinstance(status, list) else status["regions"].values()
        assert {row["name"] for row in rows} == {"in", "out"}
        error = error_of(lambda: client.register_system_shared_memory("in", ours.name, 1))
        assert "already" in str(error)
        client.unregister_system_shared_memory("in")
        assert "not registered" in str(error_of(lambda: client.infer("toy.same", [tensor])))
    finally:
        api.client.unregister_system_shared_memory()
        for memory in (ours, theirs):
            memory.close()
            memory.unlink()


def test_a_large_tensor_of_a_body_may_be_answered_in_shared_memory(api: Api) -> None:
    large = np.arange(1 << 18, dtype=np.float32).reshape(2, -1)
    theirs = SharedMemory(create=True, size=large.nbytes)
    try:
        api.client.register_system_shared_memory("out", theirs.name, large.nbytes)
        asked = api.module.InferRequestedOutput("y")
        asked.set_shared_memory("out", large.nbytes)
        api.infer("toy.same", x=large, outputs=[asked])
        assert bytes(theirs.buf) == large.tobytes()
        assert np.array_equal(api.infer("toy.same", x=large).as_numpy("y"), large)
        asked.set_shared_memory("out", large.nbytes + 1)
        error = error_of(lambda: api.infer("toy.same", x=large, outputs=[asked]))
        assert "are not in shared memory region 'out'" in str(error)
        asked.set_shared_memory("out", large.nbytes - 1)
        error = error_of(lambda: api.infer("toy.same", x=large, outputs=[asked]))
        assert "has 1048576 bytes, but its shared memory 'out' has 1048575" in str(error)
        assert error.status() in ("400", "StatusCode.INVALID_ARGUMENT")
    finally:
        api.client.unregister_system_shared_memory()
        theirs.close()
        theirs.unlink()


@pytest.mark.parametrize(
    ("model", "array", "status", "text"),
    [
        ("nobody", X, ("404", "NOT_FOUND"), UNKNOWN),
        ("toy.nobody", X, ("404", "NOT_FOUND"), "'toy.nobody' is not found"),
        ("toy", X, ("400", "INVALID_ARGUMENT"), "unexpected input 'x'"),
        ("toy.picky", X - 1, ("500", "INTERNAL"), "instance 0 of 4: .*not this one"),
    ],
)
def test_an_error_has_a_status_and_a_text(
    api: Api, model: str, array: Any, status: tuple[str, str], text: str
) -> None:
    error = error_of(lambda: api.infer(model, x=array))
    assert error.status() in (status[0], f"StatusCode.{status[1]}")
    assert re.search(text, error.message()), error.message()


def test_a_version_that_is_not_there_is_not_found(api: Api) -> None:
    inputs = [api.input("x", X)]
    error = error_of(lambda: api.client.infer("toy.same", inputs, model_version="9"))
    assert error.status() in ("404", "StatusCode.NOT_FOUND")


def test_a_deadline_is_respected(api: Api) -> None:
    inputs = [api.input("x", X)]
    error = error_of(lambda: api.client.infer("toy.same", inputs, timeout=-1))
    assert "timeout is -1, expected microseconds" in str(error)
    api.client.infer("toy.same", inputs, timeout=int(PATIENCE * 1e6))


def test_log_levels_can_be_read_and_are_changed_with_permission(api: Api) -> None:
    assert "log_error" in str(api.client.get_log_settings())
    error = error_of(lambda: api.client.update_log_settings({"log_info": True}))
    assert "clients cannot change the log level of this server" in str(error)


def test_requests_are_not_traced(api: Api) -> None:
    assert "OFF" in str(api.client.get_trace_settings())
    settings = {"trace_level": ["TIMESTAMPS"]}
    error = error_of(lambda: api.client.update_trace_settings(settings=settings))
    assert "only the operator of the server can change" in str(error)


# --- HTTP alone ---


@pytest.fixture(scope="module")
def by_http(calls: Calls) -> Iterator[Api]:
    client = http_client(calls)
    yield Api(tritonclient_http, client, ())
    client.close()


@pytest.mark.parametrize("request_form", ["gzip", "deflate", None])
@pytest.mark.parametrize("response_form", ["gzip", "deflate", None])
def test_bodies_may_be_compressed(
    by_http: Api, request_form: str | None, response_form: str | None
) -> None:
    found = by_http.client.infer(
        "toy.same",
        [by_http.input("x", X)],
        request_compression_algorithm=request_form,
        response_compression_algorithm=response_form,
    )
    np.testing.assert_array_equal(found.as_numpy("y"), X)


def test_requests_may_be_sent_at_the_same_time(by_http: Api, calls: Calls) -> None:
    client = http_client(calls, concurrency=4)
    inputs = [[by_http.input("x", X + i)] for i in range(12)]
    sent = [client.async_infer("toy.same", one) for one in inputs]
    for i, one in enumerate(sent):
        np.testing.assert_array_equal(one.get_result().as_numpy("y"), X + i)
    client.close()


async def test_the_asynchronous_client_of_http_works(calls: Calls) -> None:
    async with aio_http.InferenceServerClient(f"127.0.0.1:{calls.http}") as client:
        # Its `is_model_ready` reads no body, and so may leave the connection open.
        assert (await client.get_model_metadata("toy.same"))["name"] == "toy.same"
        tensor = aio_http.InferInput("x", list(X.shape), "FP32")
        tensor.set_data_from_numpy(X)
        found = await client.infer("toy.same", [tensor])
        np.testing.assert_array_equal(found.as_numpy("y"), X)


# --- gRPC alone ---


@pytest.fixture
def stream(calls: Calls) -> Iterator[tuple[Any, "queue.Queue[Any]"]]:
    """A client with an open stream, and what came: (result, error)."""
    client = tritonclient_grpc.InferenceServerClient(calls.grpc)
    found: queue.Queue[Any] = queue.Queue()
    client.start_stream(lambda result, error: found.put((result, error)))
    yield client, found
    client.stop_stream(cancel_requests=True)
    client.close()


def numbers(n: int) -> list[Any]:
    tensor = tritonclient_grpc.InferInput("n", [1], "INT64")
    tensor.set_data_from_numpy(np.array([n]))
    return [tensor]


def test_a_streaming_method_answers_piece_by_piece(stream: Any) -> None:
    client, found = stream
    client.async_stream_infer(
        "toy.count", numbers(3), request_id="a", enable_empty_final_response=True
    )
    pieces = [found.get(timeout=PATIENCE) for _ in range(4)]
    assert [error for _, error in pieces] == [None] * 4
    texts = [result.as_numpy("text") for result, _ in pieces[:3]]
    assert [one.tolist() for one in texts] == [[b"number 0"], [b"number 1"], [b"number 2"]]
    responses = [result.get_response() for result, _ in pieces]
    assert {one.id for one in responses} == {"a"}
    flags = [one.parameters["triton_final_response"].bool_param for one in responses]
    assert flags == [False, False, False, True]
    assert not responses[3].outputs


def test_other_models_answer_once_in_a_stream(stream: Any) -> None:
    client, found = stream
    tensor = tritonclient_grpc.InferInput("x", list(X.shape), "FP32")
    tensor.set_data_from_numpy(X)
    client.async_stream_infer("toy.same", [tensor], enable_empty_final_response=True)
    result, error = found.get(timeout=PATIENCE)
    assert error is None
    np.testing.assert_array_equal(result.as_numpy("y"), X)
    assert result.get_response().parameters["triton_final_response"].bool_param


def test_an_error_in_a_stream_ends_only_its_request(stream: Any) -> None:
    client, found = stream
    client.async_stream_infer("nobody", numbers(1), request_id="wrong")
    _, error = found.get(timeout=PATIENCE)
    assert UNKNOWN in str(error)
    client.async_stream_infer("toy.count", numbers(1), request_id="right")
    result, error = found.get(timeout=PATIENCE)
    assert (error, result.get_response().id) == (None, "right")


def test_many_requests_of_a_stream_are_matched_by_their_ids(stream: Any) -> None:
    client, found = stream
    for number in range(200):
        client.async_stream_infer("toy.count", numbers(1 + number % 3), request_id=str(number))
    ends: dict[str, list[int]] = {}
    for _ in range(sum(1 + number % 3 for number in range(200))):
        result, error = found.get(timeout=PATIENCE)
        assert error is None
        ends.setdefault(result.get_response().id, []).append(result.as_numpy("i").item())
    assert ends == {str(number): list(range(1 + number % 3)) for number in range(200)}


def test_a_leaving_client_ends_its_requests(calls: Calls) -> None:
    client = tritonclient_grpc.InferenceServerClient(calls.grpc)
    found: queue.Queue[Any] = queue.Queue()
    client.start_stream(lambda result, error: found.put((result, error)))
    client.async_stream_infer("toy.endless", numbers(1))
    client.async_stream_infer("toy.endless", numbers(2))
    assert found.get(timeout=PATIENCE)[1] is None
    eventually(lambda: in_flight(calls) == 2)
    client.stop_stream(cancel_requests=True)
    client.close()
    eventually(lambda: in_flight(calls) == 0)


async def test_the_asynchronous_client_of_grpc_works(calls: Calls) -> None:
    async def requests() -> Any:
        for number in (1, 2):
            yield {"model_name": "toy.count", "inputs": numbers(number)}

    async with aio_grpc.InferenceServerClient(calls.grpc) as client:
        tensor = aio_grpc.InferInput("x", list(X.shape), "FP32")
        tensor.set_data_from_numpy(X)
        found = await client.infer("toy.same", [tensor])
        np.testing.assert_array_equal(found.as_numpy("y"), X)
        pieces = [one async for one in client.stream_infer(requests())]
    assert len(pieces) == 3
    assert [error for _, error in pieces] == [None] * 3


def test_health_and_reflection_are_the_standard_services(calls: Calls) -> None:
    with grpc.insecure_channel(calls.grpc) as channel:
        asked = health_pb2.HealthCheckRequest(service="toy")
        state = health_pb2_grpc.HealthStub(channel).Check(asked, timeout=PATIENCE).status
        assert state == health_pb2.HealthCheckResponse.SERVING
        found = ProtoReflectionDescriptorDatabase(channel)
        names = {*found.get_services()}
        assert {"inference.GRPCInferenceService", "grpc.health.v1.Health"} <= names
        file = found.FindFileContainingSymbol("inference.ModelInferRequest")
        assert file.package == "inference"


# --- KServe's protocol v1 ---


def post(calls: Calls, path: str, body: Any) -> tuple[int, Any]:
    status, answer = calls.http_call("POST", path, json.dumps(body))
    return status, json.loads(answer)


def test_protocol_v1_predicts(calls: Calls) -> None:
    assert post(calls, "/v1/models/toy.same:predict", {"instances": [[1.0, 2.0], [3.0, 4.0]]}) == (
        200,
        {"predictions": [[1.0, 2.0], [3.0, 4.0]]},
    )
    missing = {"instances": [[1.5, math.nan], [None, 2.5]]}
    assert post(calls, "/v1/models/toy.same:predict", missing) == (
        200,
        {"predictions": [[1.5, None], [None, 2.5]]},
    )
    both = {"instances": [{"x1": 1, "x2": 2}, {"x1": 3, "x2": 4}]}
    assert post(calls, "/v1/models/toy:predict", both) == (200, {"predictions": [3, 7]})
    one = {"instances": [{"n": 1}]}
    assert post(calls, "/v1/models/toy.count:predict", one) == (
        200,
        {"predictions": [{"i": 0, "text": "number 0"}]},
    )


@pytest.mark.parametrize(
    ("path", "body", "status", "text"),
    [
        ("/v1/models/nobody:predict", {"instances": [1]}, 404, UNKNOWN),
        ("/v1/models/toy:predict", {"instances": [1]}, 400, "the 2 inputs: x1, x2"),
        ("/v1/models/toy:predict", {"instances": []}, 400, "'instances' is missing"),
        ("/v1/models/toy:predict", {"inputs": [1]}, 400, "'inputs' is not available"),
        ("/v1/models/toy:predict", [], 400, "failed to parse"),
        ("/v1/models/toy:predict", {"instances": [0] * 131_073}, 413, "at most 131072 instances"),
        ("/v1/models/toy.picky:predict", {"instances": [[-1.0]]}, 500, "not this one"),
    ],
)
def test_errors_of_protocol_v1_have_its_form(
    calls: Calls, path: str, body: Any, status: int, text: str
) -> None:
    found, answer = post(calls, path, body)
    assert (found, [*answer]) == (status, ["error"])
    assert text in answer["error"]


TABLE = {"columns": ["x2", "x1"], "data": [[1, 2], [3, 4]]}


@pytest.mark.parametrize(
    "body",
    [
        {"dataframe_split": TABLE},
        {"dataframe_records": [{"x1": 2, "x2": 1}, {"x1": 4, "x2": 3}]},
        {"instances": [{"x1": 2, "x2": 1}, {"x1": 4, "x2": 3}]},
    ],
)
def test_dataframes_are_instances_of_protocol_v1_and_mlflow(calls: Calls, body: Any) -> None:
    for path in ("/v1/models/toy:predict", "/invocations"):
        assert post(calls, path, body) == (200, {"predictions": [3, 7]})


@pytest.mark.parametrize(
    "body",
    [
        {"inputs": {"x1": [2, 4], "x2": [1, 3]}},
        {**TABLE, "index": ["a", "b"]},
        [{"x1": 2, "x2": 1}, {"x1": 4, "x2": 3}],
        {"x1": {"a": 2, "b": 4}, "x2": {"a": 1, "b": 3}},
    ],
)
def test_invocations_take_each_orient_of_pandas(calls: Calls, body: Any) -> None:
    assert post(calls, "/invocations", body) == (200, {"predictions": [3, 7]})


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({"dataframe_records": [{"x1": 2, "x3": 1}]}, "misses 'x2' and has unknown 'x3'"),
        ({"instances": [1]}, "an instance is not an object with the 2 inputs: x1, x2"),
        ({"params": {"a": 1}, **TABLE}, "'params' are not available: leave them out"),
        ({"question": 1}, 'the body has no known form, expected {"dataframe_split"'),
        ("x", 'the body is no JSON object, expected {"dataframe_split"'),
    ],
)
def test_errors_of_invocations_have_the_form_of_mlflow(calls: Calls, body: Any, text: str) -> None:
    status, answer = post(calls, "/invocations", body)
    assert (status, answer["error_code"]) == (400, "BAD_REQUEST")
    assert text in answer["message"]


def test_protocol_v1_says_whether_a_model_is_ready(calls: Calls) -> None:
    status, body = calls.http_call("GET", "/v1/models/toy")
    assert (status, json.loads(body)) == (200, {"name": "toy", "ready": True})
    status, body = calls.http_call("GET", "/v1/models/nobody")
    assert (status, list(json.loads(body))) == (404, ["error"])  # its form, without language models
    status, body = calls.http_call("GET", "/v1/models/toy:predict")
    assert (status, list(json.loads(body))) == (405, ["error"])
    assert json.loads(calls.http_call("GET", "/v1/models")[1]) == {"object": "list", "data": []}
