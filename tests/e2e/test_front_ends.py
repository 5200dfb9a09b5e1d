"""Several front-end processes on one port: one registry, one set of limits, one set of numbers."""

import http.client
import json
import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from mindspore_serving.frontends.v2.service import SERVICE
from mindspore_serving.proto import inference_pb2 as pb
from tests.e2e.harness import Calls, config, eventually, front_ends, serving, write_servable
from tests.waiting import PATIENCE

SOURCE = """
@method("y")
def wait(path):
    open(f"{path}.waits", "w").close()
    while not os.path.exists(str(path)):
        time.sleep(0.005)
    return 1

@method("y")
def double(x):
    return x * 2

@method("y")
def endless(path):
    try:
        while True:
            time.sleep(0.001)
            yield 1
    finally:
        open(str(path), "w").close()
"""
KEYS = "free-key-of-tests free\none-key-of-tests one max_requests=1\n"
FREE = {"authorization": "Bearer free-key-of-tests"}
ONE = {"authorization": "Bearer one-key-of-tests"}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory: Path = tmp_path_factory.mktemp("front_ends")
    write_servable(directory, "toy", SOURCE)
    keys = directory / "keys"
    keys.write_text(KEYS)
    keys.chmod(0o600)
    return directory


@pytest.fixture(scope="module")
def calls(place: Path) -> Iterator[Calls]:
    options: dict[str, Any] = {"use_status_codes": True, "allow_loading": True}
    toy = config(place, "toy", num_parallel_workers=2)
    with serving(place, toy, front_ends=2, api_keys=place / "keys", **options) as found:
        yield found


@contextmanager
def two_connections(calls: Calls) -> Iterator[tuple["AsgiCall", "AsgiCall"]]:
    """Each to a front end of its own."""
    connections = [
        http.client.HTTPConnection("127.0.0.1", calls.http, timeout=PATIENCE) for _ in range(2)
    ]
    with closing(connections[0]), closing(connections[1]):
        first, second = (_asking(one) for one in connections)
        names = {first("GET", "/livez")[2], second("GET", "/livez")[2]}
        assert len(names) == 2
        yield first, second


AsgiCall = Callable[..., tuple[int, bytes, str]]


def _asking(connection: http.client.HTTPConnection) -> AsgiCall:
    def ask(
        verb: str, path: str, body: Any = None, headers: dict[str, str] = FREE
    ) -> tuple[int, bytes, str]:
        """Status, body, and what the ids of all requests to one front end begin with."""
        text = None if body is None else json.dumps(body)
        connection.request(verb, path, text, headers)
        reply = connection.getresponse()
        return reply.status, reply.read(), (reply.getheader("x-request-id") or "")[:-8]

    return ask


def double_of(value: Any) -> dict[str, Any]:
    return {"instances": [{"x": value}]}


def num_of(metrics: bytes, line: str) -> float:
    found = [one for one in metrics.decode().splitlines() if one.startswith(line)]
    return float(found[0].rpartition(" ")[2]) if found else 0.0


def test_every_front_end_answers_and_all_count_together(calls):
    name = 'serving_responses_total{code="200",protocol="rest"}'
    with two_connections(calls) as (first, second):
        before = num_of(first("GET", "/metrics")[1], name)
        for ask, count in ((first, 3), (second, 2)):
            for number in range(count):
                status, body, _ = ask("POST", "/model/toy:double", double_of(number))
                assert (status, json.loads(body)) == (200, {"instances": [{"y": 2 * number}]})
        for ask in (first, second):
            assert num_of(ask("GET", "/metrics")[1], name) == before + 5


def test_a_call_over_grpc_counts_once(calls):
    name = 'serving_responses_total{code="OK",protocol="grpc"}'
    client = calls.client("toy", "double", api_key="free-key-of-tests")
    with two_connections(calls) as (ask, _):
        before = num_of(ask("GET", "/metrics")[1], name)
        for number in range(3):
            assert client.infer({"x": number})[0]["y"] == 2 * number
        assert num_of(ask("GET", "/metrics")[1], name) == before + 3


def test_arrays_of_megabytes_go_through_shared_memory_and_back(calls):
    array = np.arange(1 << 19, dtype=np.float32)
    client = calls.client("toy", "double", api_key="free-key-of-tests")
    for _ in range(3):
        assert np.array_equal(client.infer({"x": array})[0]["y"], 2 * array)


def test_the_master_does_not_parse_bodies_of_protocol_v2(calls):
    tensor = {"name": "x", "datatype": "INT64", "shape": [3, 1], "data": [1, 2, 3]}
    with two_connections(calls) as (first, second):
        for ask in (first, second):
            status, body, _ = ask("POST", "/v2/models/toy.double/infer", {"inputs": [tensor]})
            assert (status, json.loads(body)["outputs"][0]["data"]) == (200, [2, 4, 6])


def test_an_invalid_request_is_answered_as_by_a_single_process(calls):
    with two_connections(calls) as (first, _):
        assert first("POST", "/model/toy:nothing", double_of(1))[0] == 404
        assert first("POST", "/model/toy:double", {})[0] == 400
        assert first("GET", "/nothing")[0] == 404
        status, body, _ = first("POST", "/model/toy:double", double_of(1), {})
        assert (status, b"API key is missing" in body) == (401, True)


def test_the_limit_of_a_key_holds_over_all_front_ends(calls, place):
    with two_connections(calls) as (first, second), ThreadPoolExecutor(1) as pool:
        waiting = {"instances": [{"path": str(place / "limit")}]}
        running = pool.submit(first, "POST", "/model/toy:wait", waiting, ONE)
        eventually((place / "limit.waits").exists)
        status, body, _ = second("POST", "/model/toy:double", double_of(1), ONE)
        assert (status, b"which is its limit" in body) == (429, True)
        assert second("POST", "/model/toy:double", double_of(1), FREE)[0] == 200
        (place / "limit").touch()
        assert running.result(PATIENCE)[0] == 200
        assert second("POST", "/model/toy:double", double_of(1), ONE)[0] == 200


def test_a_servable_loaded_by_a_front_end_is_served_by_all_at_once(calls):
    tensor = {"name": "x", "datatype": "INT64", "shape": [1, 1], "data": [4]}
    with two_connections(calls) as (first, second):
        path = "/v2/models/toy.double/infer"
        assert first("POST", "/v2/repository/models/toy/unload", {})[0] == 200
        assert second("POST", path, {"inputs": [tensor]})[0] in (400, 404, 503)
        assert first("POST", "/v2/repository/models/toy/load", {})[0] == 200
        assert second("POST", path, {"inputs": [tensor]})[0] == 200


def test_a_deadline_passes_in_the_master(calls, place):
    with two_connections(calls) as (first, _):
        headers = {**FREE, "x-request-timeout": "0.05"}
        waiting = {"instances": [{"path": str(place / "late")}]}
        assert first("POST", "/model/toy:wait", waiting, headers)[0] == 504
    (place / "late").touch()


def test_a_stream_ends_when_its_client_leaves(calls, place):
    end = place / "stream.ended"
    body = json.dumps({"instances": [{"path": str(end)}]}).encode()
    head = (
        "POST /model/toy:endless_stream HTTP/1.1\r\nhost: localhost\r\n"
        f"authorization: {FREE['authorization']}\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    stream = calls.connect()
    stream.sendall(head.encode() + body)
    assert stream.recv(1 << 12)
    stream.close()
    eventually(end.exists)


def test_a_request_that_waits_is_dropped_when_its_client_leaves(calls, place):
    with two_connections(calls) as (first, second):
        waiting = {"instances": [{"path": str(place / name)} for name in ("held", "held")]}
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(first, "POST", "/model/toy:wait", waiting)
            eventually((place / "held.waits").exists)
            stream = calls.connect()
            body = json.dumps({"instances": [{"path": str(place / "left")}]}).encode()
            head = (
                "POST /model/toy:wait HTTP/1.1\r\nhost: localhost\r\n"
                f"authorization: {FREE['authorization']}\r\ncontent-length: {len(body)}\r\n\r\n"
            )
            stream.sendall(head.encode() + body)
            eventually(lambda: num_in_flight(second) == 2)
            stream.close()
            eventually(lambda: num_in_flight(second) == 1)
            (place / "held").touch()
            assert running.result(PATIENCE)[0] == 200


def num_in_flight(ask: AsgiCall) -> float:
    return num_of(ask("GET", "/metrics")[1], "serving_requests_in_flight ")


def test_a_dead_front_end_loses_its_connections_and_is_replaced(calls):
    with two_connections(calls) as (first, second):
        before = front_ends(os.getpid())
        os.kill(before[0], signal.SIGKILL)
        eventually(lambda: set(front_ends(os.getpid())) != set(before))
        answers = []
        for ask in (first, second):
            try:
                answers.append(ask("POST", "/model/toy:double", double_of(1))[0])
            except (ConnectionError, http.client.HTTPException):
                answers.append(0)
        assert sorted(answers) == [0, 200]
    eventually(lambda: len(front_ends(os.getpid())) == 2)
    eventually(lambda: has_two(calls))


def has_two(calls: Calls) -> bool:
    """Whether new connections go to two front ends, each of which answers."""
    try:
        with two_connections(calls) as asks:
            return all(ask("POST", "/model/toy:double", double_of(1))[0] == 200 for ask in asks)
    except AssertionError:
        return False


def test_grpc_is_served_by_front_ends_or_forwarded_to_the_master(calls):
    client = calls.client("toy", "double", api_key="one-key-of-tests")  # a key with a limit
    assert client.infer({"x": 4})[0]["y"] == 8
    wrong = calls.client("toy", "double", api_key="no-key")
    assert "API key" in wrong.infer({"x": 4})["error"]


def test_a_servable_loaded_over_grpc_is_served_by_all_front_ends_at_once(calls):
    tensor = {"name": "x", "datatype": "INT64", "shape": [1, 1], "data": [2]}
    request = pb.RepositoryModelLoadRequest(model_name="toy").SerializeToString()
    with grpc.insecure_channel(calls.grpc) as channel, two_connections(calls) as asks:
        for verb, statuses in (("Unload", (400, 404, 503)), ("Load", (200,))):
            call = channel.unary_unary(f"/{SERVICE}/RepositoryModel{verb}")
            call(request, metadata=list(FREE.items()), timeout=PATIENCE)
            for ask in asks:
                path = "/v2/models/toy.double/infer"
                assert ask("POST", path, {"inputs": [tensor]})[0] in statuses
