"""A server that stops, or loses a front end, with many calls of gRPC open."""

import os
import signal
import socket
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from mindspore_serving.client.messages import to_request
from mindspore_serving.proto import ms_service_pb2 as pb
from tests.e2e.harness import Script, eventually, front_ends, is_alive, write_servable
from tests.ports import free_port
from tests.waiting import PATIENCE

SERVICE = "/mindspore.serving.proto.MSService"
KEY, FREE = "one-key-of-tests", "free-key-of-tests"
NUM_CONNECTIONS, NUM_CALLS = 10, 50  # and as many streams, on each of two ports
SOURCE = """
def hold():
    while not os.path.exists("go"):
        time.sleep(0.005)

@method("y")
def wait(x):
    hold()
    return x

@method("y")
def count(x):
    yield x
    hold()
    yield x
"""
SCRIPT = """
import pathlib
from mindspore_serving import server
server.start_servables(server.ServableStartConfig({directory!r}, "toy", num_parallel_workers=1))
server.start_grpc_server("127.0.0.1:{grpc}", front_ends={front_ends}, api_keys=pathlib.Path("keys"))
server.start_restful_server("127.0.0.1:{http}", front_ends={front_ends})
"""
Ports = tuple[int, int]


@pytest.fixture
def start(
    tmp_path: Path, run_script: Callable[..., Script]
) -> Iterator[Callable[[int], tuple[Script, Ports]]]:
    """start(n): a script with n front ends that has started, and its ports."""
    write_servable(tmp_path, "toy", SOURCE)
    (tmp_path / "keys").write_text(f"{FREE} free\n{KEY} one max_requests=2000\n")
    (tmp_path / "keys").chmod(0o600)

    def run(number: int) -> tuple[Script, Ports]:
        ports = free_port(), free_port()
        numbers = {"grpc": ports[0], "http": ports[1], "front_ends": number}
        script = run_script(SCRIPT.format(directory=str(tmp_path), **numbers))
        script.says("RESTful server start success")
        return script, ports

    yield run
    (tmp_path / "go").touch()


class Callers:
    """Connections to a port, and calls on all of them."""

    def __init__(self, port: int, key: str) -> None:
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_retries", 0)]
        self.channels = [
            grpc.insecure_channel(f"127.0.0.1:{port}", options) for _ in range(NUM_CONNECTIONS)
        ]
        self._metadata = [("authorization", f"Bearer {key}")]
        self.calls: list[Any] = []
        self.streams: list[Any] = []

    def call(self, x: int) -> None:
        """Send one request and one for a stream on each connection."""
        for channel in self.channels:
            unary = channel.unary_unary(f"{SERVICE}/Predict").future
            request = to_request("toy", "wait", 0, {"x": x})
            options = {"timeout": PATIENCE, "metadata": self._metadata}
            self.calls.append(unary(request, **options))
            stream = channel.unary_stream(f"{SERVICE}/PredictStream")
            request = to_request("toy", "count", 0, {"x": x})
            self.streams.append(stream(request, **options))

    def answers(self) -> Counter[str]:
        """Numbers of calls and streams by how they have ended."""
        counts = Counter(f"call {call.code().name}" for call in self.calls)
        for stream in self.streams:
            try:
                messages = [pb.PredictReply.FromString(message) for message in stream]
                counts[f"stream of {sum(len(each.instances) for each in messages)}"] += 1
            except grpc.RpcError as error:
                counts[f"stream {error.code().name}"] += 1
        return counts

    def close(self) -> None:
        for channel in self.channels:
            channel.close()


def num_open(port: int) -> int:
    """Requests that the server has not answered, by the metrics on its HTTP port."""
    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE) as page:
        for line in page.read().decode().splitlines():
            if line.startswith("serving_requests_in_flight "):
                return int(float(line.split()[-1]))
    raise AssertionError("the page has no such metric")


@pytest.mark.parametrize(
    ("number", "key"),
    [(1, FREE), pytest.param(2, FREE, marks=pytest.mark.long), (2, KEY)],
    ids=["alone", "two front ends", "two that forward"],
)
def test_a_server_that_stops_answers_every_open_call(
    start: Callable[[int], tuple[Script, Ports]], tmp_path: Path, number: int, key: str
) -> None:
    script, ports = start(number)
    callers = [Callers(port, key) for port in ports]
    for x in range(NUM_CALLS // 2):
        for caller in callers:
            caller.call(x)
    total = 2 * NUM_CONNECTIONS * NUM_CALLS
    eventually(lambda: num_open(ports[1]) == total)
    script.send(signal.SIGTERM)
    eventually(lambda: not any(map(listens, ports)))
    (tmp_path / "go").touch()
    for caller in callers:
        assert caller.answers() == {"call OK": total // 4, "stream of 2": total // 4}
        caller.close()
    assert script.status() == 0
    assert "Traceback" not in script.text


def listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), PATIENCE).close()
    except ConnectionRefusedError:
        return False
    return True


def test_calls_that_clients_cancel_leave_front_ends_and_master(
    start: Callable[[int], tuple[Script, Ports]],
) -> None:
    """A key with a limit is counted in the master, so its calls pass through both."""
    _, ports = start(2)
    caller = Callers(ports[0], KEY)
    for x in range(5):
        caller.call(x)
    eventually(lambda: num_open(ports[1]) == 100)
    for call in caller.calls:
        call.cancel()
    eventually(lambda: num_open(ports[1]) == 50)
    caller.close()  # with streams that have begun
    eventually(lambda: num_open(ports[1]) == 0)


def test_a_front_end_that_dies_ends_its_calls_alone(
    start: Callable[[int], tuple[Script, Ports]], tmp_path: Path
) -> None:
    script, ports = start(2)
    callers = [Callers(ports[0], key) for key in (FREE, KEY)]
    for caller in callers:
        caller.call(1)
    eventually(lambda: num_open(ports[1]) == 40)
    died = front_ends(script.pid)[0]
    os.kill(died, signal.SIGKILL)
    eventually(lambda: not is_alive(died))
    eventually(lambda: num_open(ports[1]) == 20)
    eventually(lambda: len(front_ends(script.pid)) == 2)
    (tmp_path / "go").touch()
    for caller in callers:
        assert caller.answers() == {
            "call OK": 5,
            "stream of 2": 5,
            "call UNAVAILABLE": 5,
            "stream UNAVAILABLE": 5,
        }
        caller.close()


def test_watches_of_health_end_when_the_server_stops(
    start: Callable[[int], tuple[Script, Ports]],
) -> None:
    script, ports = start(2)
    with grpc.insecure_channel(f"127.0.0.1:{ports[0]}") as channel:
        request = health_pb2.HealthCheckRequest(service="toy")
        watch = health_pb2_grpc.HealthStub(channel).Watch(request, timeout=PATIENCE)
        states = health_pb2.HealthCheckResponse
        assert next(watch).status == states.SERVING
        script.send(signal.SIGTERM)
        assert [each.status for each in watch] == [states.NOT_SERVING]
    assert script.status() == 0
