"""A cache of answers over every protocol: the header, arrays in arenas, keys and deaths."""

import http.client
import json
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http

from tests.e2e.harness import Calls, config, eventually, serving, workers, write_servable
from tests.waiting import PATIENCE

SOURCE = """
@method("y")
def predict(x):
    with open("calls.txt", "a") as file:
        file.write("+")
    while os.path.exists("wait"):
        time.sleep(0.005)
    return x * 2

@method("y")
def fail(x):
    with open("calls.txt", "a") as file:
        file.write("+")
    raise RuntimeError("no")
"""
KEYS = "first-key-of-tests first\nother-key-of-tests other\n"
FIRST, OTHER = ({"authorization": f"Bearer {name}-key-of-tests"} for name in ("first", "other"))


def num_calls() -> int:
    return len(Path("calls.txt").read_text())


@pytest.fixture(params=[1, 2], ids=["master", "front-ends"], scope="module")
def calls(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Calls]:
    directory = tmp_path_factory.mktemp("cached")
    write_servable(directory, "toy", SOURCE)
    (directory / "calls.txt").touch()
    keys = directory / "keys"
    keys.write_text(KEYS)
    keys.chmod(0o600)
    toy = config(directory, "toy", cache_mb=8, cache_per_key=True)
    with serving(directory, toy, front_ends=request.param, api_keys=keys) as served:
        yield served


def post(
    calls: Calls, path: str, body: object, headers: dict[str, str]
) -> tuple[str | None, dict[str, Any]]:
    """Return the header x-cache of an answer, and its body."""
    connection = http.client.HTTPConnection("127.0.0.1", calls.http, timeout=PATIENCE)
    try:
        connection.request("POST", path, json.dumps(body), headers)
        reply = connection.getresponse()
        return reply.getheader("x-cache"), json.loads(reply.read())
    finally:
        connection.close()


def rest(calls: Calls, x: object, headers: dict[str, str], method: str = "predict") -> str | None:
    state, answer = post(calls, f"/model/toy:{method}", {"instances": [{"x": x}]}, headers)
    assert state is not None, answer
    return state


def test_a_restful_answer_tells_of_the_cache_and_keys_do_not_share(calls: Calls) -> None:
    before = num_calls()
    assert [rest(calls, 1, FIRST) for _ in range(3)] == ["miss", "hit", "hit"]
    assert [rest(calls, 1, OTHER) for _ in range(2)] == ["miss", "hit"]
    assert num_calls() == before + 2


def test_routes_of_other_protocols_tell_too(calls: Calls) -> None:
    path, body = "/v1/models/toy:predict", {"instances": [{"x": 2}]}
    answers = [post(calls, path, body, FIRST) for _ in range(2)]
    assert answers == [("miss", {"predictions": [4]}), ("hit", {"predictions": [4]})]
    path, header = "/model/toy/version/1:predict", {"accept": "*/*", "origin": "http://x"}
    assert post(calls, path, body, {**FIRST, **header})[0] in (None, "hit")  # other sites may not


def test_large_arrays_of_protocol_v2_are_equal_from_the_cache(calls: Calls) -> None:
    image = np.random.default_rng(0).random((2, 100, 100), np.float32)  # in the arena of a worker
    tensor = tritonclient.http.InferInput("x", list(image.shape), "FP32")
    tensor.set_data_from_numpy(image)
    infer = tritonclient.http.InferenceServerClient
    body, length = infer.generate_request_body([tensor])
    headers = {**FIRST, "inference-header-content-length": str(length)}
    for state in ("miss", "hit", "hit"):
        connection = http.client.HTTPConnection("127.0.0.1", calls.http, timeout=PATIENCE)
        connection.request("POST", "/v2/models/toy/infer", body, headers)
        reply = connection.getresponse()
        length = int(reply.headers["inference-header-content-length"])
        answer = infer.parse_response_body(reply.read(), header_length=length)
        connection.close()
        assert reply.headers["x-cache"] == state
        np.testing.assert_array_equal(answer.as_numpy("y"), image * 2)


def test_trailing_metadata_of_grpc_tell_of_the_cache(calls: Calls) -> None:
    metadata = tuple(FIRST.items())
    with grpc.insecure_channel(calls.grpc) as channel:
        for service, message in (_classic(), _v2()):
            call = channel.unary_unary(service, None, None)
            states = []
            for _ in range(2):
                _, done = call.with_call(message, metadata=metadata, timeout=PATIENCE)
                states.append(dict(done.trailing_metadata()).get("x-cache"))
            assert states == ["miss", "hit"], service


@pytest.mark.parametrize("protocol", ["rest", "grpc"])
def test_statistics_of_protocol_v2_count_hits_and_misses(calls: Calls, protocol: str) -> None:
    def counts() -> list[tuple[int, int]]:
        if protocol == "rest":
            url = f"127.0.0.1:{calls.http}"
            client = tritonclient.http.InferenceServerClient(url)
            answer = client.get_inference_statistics("toy.predict", headers=FIRST)
        else:
            client = tritonclient.grpc.InferenceServerClient(calls.grpc)
            answer = client.get_inference_statistics("toy.predict", headers=FIRST, as_json=True)
        (found,) = answer["model_stats"]
        parts = [found["inference_stats"][name] for name in ("cache_hit", "cache_miss", "success")]
        rows = [(int(part.get("count", 0)), int(part.get("ns", 0))) for part in parts]
        client.close()
        return [*rows, (int(found["execution_count"]), 0)]

    before = counts()
    states = [rest(calls, f"counted by {protocol}", FIRST) for _ in range(4)]
    assert states == ["miss", "hit", "hit", "hit"]
    rows = zip(before, counts(), strict=True)
    (hits, hit_ns), (misses, miss_ns), (succeeded, _), (run, _) = (
        (new[0] - old[0], new[1] - old[1]) for old, new in rows
    )
    assert (hits, misses, succeeded, run) == (3, 1, 4, 1)
    assert min(hit_ns, miss_ns) > 0


def _classic() -> tuple[str, bytes]:
    from mindspore_serving.proto import ms_service_pb2 as pb

    message = pb.PredictRequest()
    message.servable_spec.name, message.servable_spec.method_name = "toy", "predict"
    tensor = message.instances.add().items["x"]
    tensor.dtype, tensor.data = pb.DataType.MS_INT32, np.int32(5).tobytes()
    return "/mindspore.serving.proto.MSService/Predict", message.SerializeToString()


def _v2() -> tuple[str, bytes]:
    from mindspore_serving.proto import inference_pb2 as pb

    message = pb.ModelInferRequest(model_name="toy")
    message.inputs.add(name="x", datatype="INT32", shape=[1, 1]).contents.int_contents.append(6)
    return "/inference.GRPCInferenceService/ModelInfer", message.SerializeToString()


def test_equal_requests_at_once_run_once_though_their_worker_dies(calls: Calls) -> None:
    before = num_calls()
    Path("wait").touch()
    with ThreadPoolExecutor(4) as pool:
        answers = [pool.submit(rest, calls, 77, FIRST) for _ in range(4)]
        eventually(lambda: num_calls() == before + 1)
        for pid in workers(os.getpid()):
            os.kill(pid, signal.SIGKILL)
        eventually(lambda: num_calls() == before + 2)
        Path("wait").unlink()
        assert [answer.result(PATIENCE) for answer in answers] == ["miss"] * 4
    assert rest(calls, 77, FIRST) == "hit"
    assert num_calls() == before + 2


def test_errors_are_computed_again(calls: Calls) -> None:
    before = num_calls()
    assert [rest(calls, 1, FIRST, "fail") for _ in range(2)] == ["miss", "miss"]
    assert num_calls() == before + 2


def test_metrics_count_hits_and_bytes(calls: Calls) -> None:
    for _ in range(2):
        rest(calls, 1000, FIRST)
    text = calls.http_call("GET", "/metrics", headers=FIRST)[1].decode()
    rows = [line.rpartition(" ") for line in text.splitlines() if not line.startswith("#")]
    values = {name: float(value) for name, _, value in rows}
    for result in ("hit", "miss"):
        labels = f'method="predict",result="{result}",servable="toy",version="1"'
        assert values[f"serving_cache_requests_total{{{labels}}}"] >= 1
    labels = 'method="predict",servable="toy",version="1"'
    assert values[f"serving_cache_bytes{{{labels}}}"] > 0
