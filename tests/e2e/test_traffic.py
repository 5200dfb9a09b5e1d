"""Traffic split over versions of real servables by REST, gRPC and protocol v2, and shadows."""

import json
import os
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http

from mindspore_serving.core.traffic import choose_by_key
from mindspore_serving.proto import ms_service_pb2 as pb
from tests.e2e.harness import Calls, eventually, serving, workers
from tests.e2e.versions import (
    FACTORS,
    FIRST,
    KEYS,
    OTHER,
    USERS,
    WEIGHTS,
    is_of,
    rest,
    versions,
    write_versions,
)
from tests.waiting import PATIENCE

pytestmark = pytest.mark.onnx


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("traffic")
    write_versions(directory)
    return directory


@pytest.fixture(params=[1, 2], ids=["master", "front-ends"], scope="module")
def calls(request: Any, models: Path) -> Iterator[Calls]:
    keys = models / "keys"
    keys.write_text(KEYS)
    keys.chmod(0o600)
    configs = versions(
        models, traffic=WEIGHTS, sticky="header:X-User", shadow={3: 100}, shadow_tolerance=0.01
    )
    options = {"front_ends": request.param, "api_keys": keys, "allow_loading": True}
    with serving(models, *configs, **options) as served:
        yield served


def by_rest(calls: Calls, user: str) -> tuple[str, float]:
    return rest(calls, {**FIRST, "X-User": user})


def by_asgi(calls: Calls, user: str) -> tuple[str, float]:
    return rest(calls, {**FIRST, "X-User": user, "origin": f"http://127.0.0.1:{calls.http}"})


def by_v2(calls: Calls, user: str) -> tuple[str, float]:
    return _triton(tritonclient.http, f"127.0.0.1:{calls.http}", {**FIRST, "X-User": user})


def by_v2_grpc(calls: Calls, user: str) -> tuple[str, float]:
    return _triton(tritonclient.grpc, calls.grpc, {**FIRST, "x-user": user})


def _triton(library: Any, address: str, headers: dict[str, str]) -> tuple[str, float]:
    tensor = library.InferInput("x", [1, 1], "FP32")
    tensor.set_data_from_numpy(np.float32([[1]]))
    with library.InferenceServerClient(address) as client:
        answer = client.infer("toy", [tensor], headers=headers)
        response: Any = answer.get_response()
        is_http = isinstance(response, dict)
        version = response["model_version"] if is_http else response.model_version
        return version, answer.as_numpy("y").item()


def by_grpc(calls: Calls, user: str) -> tuple[str, float]:
    message = pb.PredictRequest()
    message.servable_spec.name, message.servable_spec.method_name = "toy", "predict"
    tensor = message.instances.add().items["x"]
    tensor.dtype, tensor.data = pb.DataType.MS_FLOAT32, np.float32(1).tobytes()
    tensor.shape.dims.append(1)
    metadata = (*FIRST.items(), ("x-user", user))
    with grpc.insecure_channel(calls.grpc) as channel:
        call = channel.unary_unary(
            "/mindspore.serving.proto.MSService/Predict", None, pb.PredictReply.FromString
        )
        reply, done = call.with_call(
            message.SerializeToString(), metadata=metadata, timeout=PATIENCE
        )
    version = dict(done.trailing_metadata())["x-model-version"]
    return version, np.frombuffer(reply.instances[0].items["y"].data, np.float32).item()


PROTOCOLS = {
    "rest": by_rest,
    "asgi": by_asgi,
    "v2": by_v2,
    "grpc": by_grpc,
    "v2_grpc": by_v2_grpc,
}


def shadows(calls: Calls, version: int = 3) -> dict[str, int]:
    """Results of the comparisons by the metrics."""
    text = calls.http_call("GET", "/metrics", headers=FIRST)[1].decode()
    row = r'serving_shadow_requests_total{result="(.*)",servable="toy",version="%d"} (.*)'
    return {name: int(float(count)) for name, count in re.findall(row % version, text)}


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_user_gets_the_same_version_by_every_protocol(calls: Calls, protocol: str) -> None:
    expected = [choose_by_key(WEIGHTS, "toy", user) for user in USERS]
    assert set(expected) == {1, 2}
    answers = [PROTOCOLS[protocol](calls, user) for user in USERS]
    assert all(map(is_of, expected, answers)), answers


def test_requests_without_the_header_are_split_in_turn(calls: Calls) -> None:
    answers = [rest(calls, FIRST) for _ in range(24)]
    counts = Counter(version for version, _ in answers)
    assert counts["1"] + counts["2"] == 24
    assert abs(counts["2"] - 6) <= 2
    assert all(is_of(int(version), (version, y)) for version, y in answers)


def test_a_request_with_a_version_gets_that(calls: Calls) -> None:
    for version in FACTORS:
        path = f"/model/toy/version/{version}:predict"
        assert rest(calls, FIRST, path) == ("", pytest.approx(FACTORS[version]))


def is_idle(calls: Calls, version: int = 3) -> bool:
    """Return whether a version has no request and no copy of one."""
    rows = json.loads(calls.http_call("GET", "/servables", headers=FIRST)[1])["servables"]
    requests = next(row["requests"] for row in rows if row["version"] == version)
    return requests["running"] + requests["waiting"] == 0


def test_answers_of_shadows_are_compared_and_never_shown(calls: Calls) -> None:
    eventually(lambda: is_idle(calls))  # copies of earlier requests are counted
    before = shadows(calls)
    for x in (1.0, 2.0):
        assert rest(calls, FIRST, x=x)[1] < 2.5 * x
    path = "/model/toy/version/1:predict"
    rest(calls, FIRST, path)  # with a version, it has no copy
    rest(calls, FIRST, "/model/toy:once")  # nor has one that must not run twice
    assert rest(calls, FIRST, x=0)[1] == 0
    rest(calls, FIRST, "/model/toy:broken")
    expected = {**before, "different": before["different"] + 2, "equal": before["equal"] + 1}
    expected["failed"] += 1
    eventually(lambda: shadows(calls) == expected)
    text = calls.http_call("GET", "/servables", headers=FIRST)[1]
    rows = {row["version"]: row["traffic"] for row in json.loads(text)["servables"]}
    assert rows[1] == {"weight": 75, "sticky": "header:x-user"}
    shown = {"percent": 100, **{name: int(count) for name, count in expected.items()}}
    assert rows[3] == {"sticky": "header:x-user", "shadow": shown}


def test_a_shadow_that_hangs_delays_no_answer(calls: Calls, models: Path) -> None:
    before = shadows(calls)
    (models / "hold").touch()
    try:
        answers = [rest(calls, FIRST) for _ in range(20)]
        assert all(is_of(int(version), (version, y)) for version, y in answers)
        now = shadows(calls)
        assert now["skipped"] - before["skipped"] >= 20 - 8  # no more are in flight
        assert now["different"] == before["different"]
    finally:
        (models / "hold").unlink()
    eventually(lambda: sum(shadows(calls).values()) == sum(before.values()) + 20)


def load(calls: Calls, **parameters: str) -> tuple[int, bytes]:
    rows = {name: {"string_value": text} for name, text in parameters.items()}
    body = {"parameters": {"config": json.dumps({"parameters": rows})}} if rows else {}
    path = "/v2/repository/models/toy/load"
    return calls.http_call("POST", path, json.dumps(body), FIRST)


def test_weights_change_while_running_without_new_workers(calls: Calls) -> None:
    before = workers(os.getpid())
    assert load(calls, traffic="2=1", sticky="key") == (200, b"")
    assert {rest(calls, FIRST)[0] for _ in range(8)} == {"2"}
    assert load(calls, traffic="1=50,3=50", sticky="key", shadow="2=100")[0] == 200
    for headers, owner in ((FIRST, "first"), (OTHER, "other")):
        chosen = {rest(calls, headers)[0] for _ in range(4)}
        assert len(chosen) == 1, owner
    eventually(lambda: shadows(calls, 2).get("equal", 0) + shadows(calls, 2)["different"] > 0)
    for wrong in ({"traffic": "9=1"}, {"traffic": "1=0"}, {"shadow": "1=200"}, {"sticky": "x"}):
        status, text = load(calls, **wrong)
        assert status in (400, 500), text
        assert next(iter(wrong)).encode() in text
    assert {rest(calls, FIRST)[0] for _ in range(2)} <= {"1", "3"}
    assert load(calls)[0] == 200  # as the operator set it
    assert is_of(choose_by_key(WEIGHTS, "toy", USERS[0]), by_rest(calls, USERS[0]))
    assert workers(os.getpid()) == before
