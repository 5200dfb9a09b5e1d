"""Sequences: a state per sequence, by every protocol; wrong requests, limits, deaths of workers."""

import asyncio
import json
import threading
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http

from mindspore_serving.client import AsyncClient
from tests.e2e.harness import Calls, config, serving, write_servable
from tests.waiting import eventually

SOURCE = """
def add(total, x):
    x = np.reshape(x, -1)[0]
    if x < 0:
        raise ValueError("negative")
    if x == 1000:
        return np.zeros(2, "int64"), total
    if x == 2000:
        os._exit(3)
    new = total + np.int64(x)
    return new, new

@register.register_method(output_names=["total"])
def count(x):
    total = register.declare_state("total", (), "int64", initial=10)
    new, shown = register.add_stage(add, total, x, outputs_count=2)
    total.update(new)
    return shown

@method("y")
def stateless(x):
    return x
"""


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory):
    directory = tmp_path_factory.mktemp("sequences")
    write_servable(directory, "toy", SOURCE)
    options = {"max_sequences": 40, "num_parallel_workers": 2}
    with serving(directory, config(directory, "toy", **options)) as served:
        yield served


def headers(number: object, start: bool = False, end: bool = False) -> dict[str, str]:
    flags = {"Sequence-Start": "true" if start else "", "Sequence-End": "true" if end else ""}
    return {"Sequence-Id": str(number)} | {name: text for name, text in flags.items() if text}


def rest(calls: Calls, x: object, *step: Any) -> Any:
    instances = [{"x": value} for value in (x if isinstance(x, list) else [x])]
    answer = calls.post("toy", "count", instances, headers(*step))
    if "error_msg" in answer:
        return answer["error_msg"]
    return [row.get("total", row.get("error_msg")) for row in answer["instances"]]


def active(calls: Calls) -> int:
    return number_of(calls, "serving_sequences{")


def number_of(calls: Calls, name: str, label: str = 'method="count"') -> int:
    text = calls.http_call("GET", "/metrics")[1].decode()
    lines = [line for line in text.splitlines() if line.startswith(name) and label in line]
    return int(float(lines[0].rpartition(" ")[2]))


def infer_v2(calls: Calls, x: int, **parameters: Any) -> Any:
    body = {
        "inputs": [{"name": "x", "datatype": "INT64", "shape": [1], "data": [x]}],
        "parameters": parameters,
    }
    answer = calls.http_call("POST", "/v2/models/toy.count/infer", json.dumps(body))
    decoded = json.loads(answer[1])
    return decoded["outputs"][0]["data"][0] if answer[0] == 200 else (answer[0], decoded["error"])


def test_a_sequence_of_the_python_client_keeps_its_state_and_ends(toy: Calls) -> None:
    client = toy.client("toy", "count")
    with client.sequence() as first, client.sequence() as second:
        assert int(first.infer({"x": 1})[0]["total"]) == 11
        assert int(second.infer({"x": 5})[0]["total"]) == 15
        assert [int(row["total"]) for row in first.infer([{"x": 1}, {"x": 2}])] == [12, 14]
        assert active(toy) == 2
    assert active(toy) == 0


def test_the_asyncio_client_has_sequences(toy: Calls) -> None:
    async def run() -> list[int]:
        async with AsyncClient(toy.grpc, "toy", "count") as client, client.sequence(7) as sequence:
            return [int((await sequence.infer({"x": 2}))[0]["total"]) for _ in range(3)]

    assert asyncio.run(run()) == [12, 14, 16]
    assert active(toy) == 0


def test_headers_of_rest_name_a_sequence(toy: Calls) -> None:
    assert rest(toy, 1, "a", True) == [11]
    assert rest(toy, [1, 1], "a") == [12, 13]
    assert rest(toy, 1, "a", True) == [11]  # begins again
    assert rest(toy, 1, "a", False, True) == [12]
    assert rest(toy, 1, "b", True) == [11]
    assert rest(toy, [], "b", False, True) == []  # ends it, and computes nothing
    assert "sequence 'a' has ended; begin one with sequence_start" in rest(toy, 1, "a")
    assert active(toy) == 0


def test_parameters_of_v2_over_http_name_a_sequence(toy: Calls) -> None:
    with triton_http.InferenceServerClient(f"127.0.0.1:{toy.http}") as client:
        tensor = triton_http.InferInput("x", [1], "INT64")
        tensor.set_data_from_numpy(np.array([3], "int64"))
        flags = [(True, False), (False, False), (False, True)]
        answers = [
            client.infer(
                "toy.count", [tensor], sequence_id=42, sequence_start=start, sequence_end=end
            ).as_numpy("total")[0]
            for start, end in flags
        ]
    assert answers == [13, 16, 19]
    assert active(toy) == 0


def test_parameters_of_v2_over_grpc_and_its_stream_name_sequences(toy: Calls) -> None:
    client = triton_grpc.InferenceServerClient(toy.grpc)
    tensor = triton_grpc.InferInput("x", [1], "INT64")
    tensor.set_data_from_numpy(np.array([3], "int64"))
    assert client.infer("toy.count", [tensor], sequence_id="text", sequence_start=True).as_numpy(
        "total"
    ) == [13]
    results: list[Any] = []
    client.start_stream(lambda result, error: results.append(error or result))
    for index in range(20):  # all are sent at once, and run in order
        options = {"sequence_start": index == 0, "sequence_end": index == 19}
        client.async_stream_infer("toy.count", [tensor], sequence_id=42, **options)
    eventually(lambda: len(results) == 20)
    assert [result.as_numpy("total")[0] for result in results] == list(range(13, 73, 3))
    client.stop_stream()
    assert client.infer("toy.count", [tensor], sequence_id="text", sequence_end=True).as_numpy(
        "total"
    ) == [16]
    client.close()
    assert active(toy) == 0


def test_a_stream_of_v2_is_a_sequence_of_its_own(toy: Calls) -> None:
    clients = [triton_grpc.InferenceServerClient(toy.grpc) for _ in range(2)]
    tensor = triton_grpc.InferInput("x", [1], "INT64")
    tensor.set_data_from_numpy(np.array([2], "int64"))
    bad = triton_grpc.InferInput("x", [1], "INT64")
    bad.set_data_from_numpy(np.array([-1], "int64"))
    for client in clients:
        results: list[Any] = []
        client.start_stream(lambda result, error, to=results: to.append(error or result))
        client.async_stream_infer("toy.count", [bad])
        eventually(lambda to=results: len(to) == 1)
        assert "negative" in str(results.pop())
        for _ in range(3):
            client.async_stream_infer("toy.count", [tensor])
        eventually(lambda to=results: len(to) == 3)
        assert [result.as_numpy("total")[0] for result in results] == [12, 14, 16]
    assert active(toy) == 2
    for client in clients:
        client.stop_stream()
        client.close()
    eventually(lambda: active(toy) == 0)


def test_many_sequences_at_once_keep_apart(toy: Calls) -> None:
    results: dict[int, list[int]] = {}

    def run(number: int) -> None:
        with toy.client("toy", "count").sequence(number) as sequence:
            rows = [sequence.infer({"x": number})[0] for _ in range(10)]
            results[number] = [int(row["total"]) for row in rows]

    threads = [threading.Thread(target=run, args=(n,)) for n in range(1, 25)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {n: [10 + n * i for i in range(1, 11)] for n in range(1, 25)}


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        ({}, "has a state: name the sequence of the request by sequence_id"),
        ({"sequence_id": 0, "sequence_start": True}, "name the sequence of the request"),
        ({"sequence_id": 77}, "sequence 77 is not known; begin one with sequence_start"),
        ({"sequence_id": "x", "sequence_end": True}, "sequence 'x' is not known"),
        ({"sequence_id": -1}, "sequence_id is -1, expected a number of 0 to 2**64 - 1"),
        ({"sequence_id": 1.5}, "sequence_id is 1.5, expected a number"),
        ({"sequence_id": "x" * 129}, "or a text of at most 128 characters"),
        ({"sequence_id": 1, "sequence_start": 1}, "sequence_start is 1, expected true or false"),
    ],
)
def test_a_wrong_request_is_refused_with_its_reason(
    toy: Calls, parameters: dict[str, Any], text: str
) -> None:
    status, error = infer_v2(toy, 1, **parameters)
    assert (status, text in error) == (400, True), error
    assert active(toy) == 0


def test_a_number_and_a_text_are_different_ids(toy: Calls) -> None:
    assert infer_v2(toy, 1, sequence_id=5, sequence_start=True) == 11
    assert infer_v2(toy, 1, sequence_id="5", sequence_start=True, sequence_end=True) == 11
    assert infer_v2(toy, 1, sequence_id=5, sequence_end=True) == 12


def test_a_method_without_a_state_ignores_sequences(toy: Calls) -> None:
    answer = toy.post("toy", "stateless", [{"x": 3}], headers(9))
    assert answer == {"instances": [{"y": 3}]}


def test_an_instance_that_fails_leaves_the_state_as_before(toy: Calls) -> None:
    assert rest(toy, 1, "f", True) == [11]
    first, second, third = rest(toy, [1, -1, 1], "f")
    assert first == 12
    assert "negative" in second
    assert "instance 1 of the request failed before" in third
    assert rest(toy, 1, "f", False, True) == [13]


def test_a_start_that_fails_begins_nothing(toy: Calls) -> None:
    assert "negative" in rest(toy, -1, "g", True)
    assert "has not begun: its start failed" in rest(toy, 1, "g")
    assert "no instances" not in rest(toy, 1, "g", True)
    assert "negative" in rest(toy, -1, "g", False, True)  # it ends all the same
    assert active(toy) == 0


def test_a_state_that_changes_its_shape_is_an_error(toy: Calls) -> None:
    assert rest(toy, 1, "h", True) == [11]
    text = rest(toy, 1000, "h")
    assert "state 'total' became int64 [2], it is declared as int64 []" in text
    assert rest(toy, 1, "h", False, True) == [12]


def test_a_sequence_over_the_limit_is_refused(toy: Calls) -> None:
    for number in range(40):
        assert rest(toy, 1, f"many{number}", True) == [11]
    assert "there are 40 sequences, which is the limit (max_sequences)" in rest(toy, 1, "m", True)
    assert rest(toy, 1, "many0", True) == [11]
    for number in range(40):
        assert len(rest(toy, 1, f"many{number}", False, True)) == 1
    assert active(toy) == 0
