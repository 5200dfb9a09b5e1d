"""Large tensors, and what must not grow: memory, open files, shared memory."""

import base64
import http.client
import json
import os
import socket
from pathlib import Path

import numpy as np
import pytest

from mindspore_serving import server
from tests.e2e.harness import (
    Calls,
    check_growth,
    config,
    eventually,
    open_files,
    serving,
    workers,
    write_servable,
)
from tests.ports import free_port
from tests.waiting import PATIENCE

SOURCE = """
@method("y")
def echo(x):
    return x

@method("y")
def add_up(x):
    return x.sum(dtype=np.float64)

@method("y")
def make(x):
    return np.full(int(x), 1.5, np.float32)
"""
MEGABYTES_20 = 5 << 20  # float32 numbers


@pytest.fixture(scope="module")
def calls(tmp_path_factory):
    directory = tmp_path_factory.mktemp("resources")
    write_servable(directory, "toy", SOURCE)
    with serving(directory, config(directory, "toy")) as served:
        yield served


@pytest.fixture
def big():
    return np.arange(MEGABYTES_20, dtype=np.float32)


def to_json(array: np.ndarray) -> str:
    item = {"b64": base64.b64encode(array.tobytes()).decode(), "type": "fp32"}
    return json.dumps({"instances": {"x": {**item, "shape": array.shape}}})


def test_20_megabytes_go_there_and_back_over_grpc(calls, big):
    (result,) = calls.client("toy", "echo").infer({"x": big})
    np.testing.assert_array_equal(result["y"], big)


def test_20_megabytes_in_several_instances_come_back_in_order(calls, big):
    parts = big.reshape(5, -1)
    results = calls.client("toy", "echo").infer([{"x": part} for part in parts])
    np.testing.assert_array_equal([result["y"] for result in results], parts)


def test_20_megabytes_go_there_and_back_over_rest(calls, big):
    _, body = calls.http_call("POST", "/model/toy:add_up", to_json(big))
    assert json.loads(body)["instances"][0]["y"] == big.sum(dtype=np.float64)
    made = calls.post("toy", "make", {"x": 1 << 20})["instances"][0]["y"]
    assert len(made) == 1 << 20
    assert set(made) == {1.5}


SCRIPT = """
import gc
gc.disable()
from mindspore_serving import server
server.start_servables(server.ServableStartConfig({directory!r}, "toy", num_parallel_workers=1))
server.start_grpc_server("{grpc}")
server.start_restful_server("127.0.0.1:{http}")
"""


def test_memory_does_not_grow_with_large_requests(tmp_path, run_script):
    """Nor may it wait for the garbage collector, which counts objects and not their size."""
    write_servable(tmp_path, "toy", SOURCE)
    own = Calls(f"127.0.0.1:{free_port()}", free_port())
    source = SCRIPT.format(directory=str(tmp_path), grpc=own.grpc, http=own.http)
    script = run_script(source, MALLOC_MMAP_THRESHOLD_="131072")  # what is freed is given back
    script.says("RESTful server start success")
    client = own.client("toy", "echo")
    x = np.zeros(1 << 20, np.float32)
    pids = [script.pid, *workers(script.pid)]

    def run(count: int) -> None:
        for number in range(count):
            assert client.infer([{"x": x}, {"x": x}])[1]["y"].size == x.size
            if number % 20 == 0:
                own.http_call("POST", "/model/toy:add_up", to_json(x))

    run(10)
    check_growth(pids, lambda: run(50), 64 << 20)  # 400 MB
    own.close()


def test_memory_does_not_grow_when_large_requests_are_cancelled(calls):
    client = calls.client("toy", "echo")
    x = np.zeros(1 << 20, np.float32)
    pids = [os.getpid(), *workers(os.getpid())]

    def run(count: int) -> None:
        for _ in range(count):
            client.infer([{"x": x}] * 2, timeout=0.002)
        client.infer({"x": x})

    run(75)
    check_growth(pids, lambda: run(150), 192 << 20)  # 1200 MB


def test_open_files_do_not_grow_with_connections(calls):
    body = '{"instances":{"x":1}}'

    def settled() -> int:
        """Once the server has seen the clients leave."""
        counts = [0]

        def look() -> bool:
            counts.append(open_files(os.getpid()))
            return counts[-20:] == [counts[-1]] * 20

        eventually(look)
        return counts[-1]

    calls.http_call("POST", "/model/toy:echo", body)
    before = settled()
    for number in range(200):
        connection = http.client.HTTPConnection("127.0.0.1", calls.http, timeout=PATIENCE)
        connection.request("POST", "/model/toy:echo", body)
        if number % 2:
            connection.getresponse().read()
        connection.close()
        with socket.create_connection(("127.0.0.1", calls.http)) as stream:
            stream.send(b"POST /mo")
    eventually(lambda: open_files(os.getpid()) <= before + 2)
    (worker,) = workers(os.getpid())
    assert open_files(worker) < 40


def shared_memory(pid: int) -> int:
    """Bytes of shared memory that `pid` has touched and that are still there."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (line,) = (line for line in lines if line.startswith("RssShmem:"))
    return int(line.split()[1]) << 10


def test_unused_shared_memory_of_large_tensors_is_freed(calls, big):
    """The worker maps what it writes and what it reads, and other tests' memory is not in it."""
    assert calls.client("toy", "echo").infer({"x": big})[0]["y"].shape == big.shape
    (worker,) = workers(os.getpid())
    assert shared_memory(worker) >= big.nbytes
    eventually(lambda: shared_memory(worker) < big.nbytes // 4)
    assert calls.client("toy", "add_up").infer({"x": big})[0]["y"] == big.sum(dtype=np.float64)


def test_open_files_and_memory_stay_over_restarts(stopped):
    server.stop()  # the module's: this is its last test
    write_servable(stopped, "toy", SOURCE)

    def cycle() -> int:
        with serving(stopped, config(stopped, "toy")) as own:
            assert own.client("toy", "echo").infer({"x": np.zeros(1 << 18)})
            assert own.post("toy", "echo", {"x": 1})
            (pid,) = workers(os.getpid())
            os.kill(pid, 9)
            eventually(lambda: workers(os.getpid()) not in ([], [pid]))
            eventually(lambda: own.http_call("GET", "/health")[0] == 200)
        return open_files(os.getpid())

    counts = [cycle() for _ in range(2)]
    check_growth([os.getpid()], lambda: counts.extend(cycle() for _ in range(3)), 32 << 20)
    assert max(counts[2:]) <= counts[1] + 2, counts
