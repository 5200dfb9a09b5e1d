"""Large tensors through front-end processes: in memory that both know, which nobody keeps."""

import http.client
import json
import os
import signal
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.e2e.harness import (
    Calls,
    check_growth,
    config,
    eventually,
    front_ends,
    memory,
    serving,
    write_servable,
)
from tests.waiting import PATIENCE

SOURCE = """
@method("y")
def double(x):
    return x * 2

@method("y")
def die_once(x, path):
    x *= 3
    if not os.path.exists(str(path)):
        open(str(path), "w").close()
        os.kill(os.getpid(), 9)
    return x

@method("y")
def wait(x, path):
    open(f"{path}.waits", "w").close()
    while not os.path.exists(str(path)):
        time.sleep(0.005)
    return x
"""
Array = np.ndarray[Any, Any]


@pytest.fixture(scope="module")
def calls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Calls]:
    directory: Path = tmp_path_factory.mktemp("large")
    write_servable(directory, "toy", SOURCE)
    toy = config(directory, "toy", num_parallel_workers=2)
    with serving(directory, toy, front_ends=2) as found:
        yield found


def connected(calls: Calls) -> http.client.HTTPConnection:
    return http.client.HTTPConnection("127.0.0.1", calls.http, timeout=PATIENCE)


def numbers(size: int, seed: int = 1) -> Array:
    found: Array = np.random.default_rng(seed).random(size, np.float32)
    return found


def body_of(x: Array, path: Path | None = None) -> tuple[bytes, dict[str, str]]:
    """A request of one instance, and its headers."""
    size = {"binary_data_size": x.nbytes}
    inputs: list[dict[str, Any]] = [
        {"name": "x", "datatype": "FP32", "shape": [1, x.size], "parameters": size}
    ]
    if path is not None:
        own = {"shape": [1], "data": [str(path)], "parameters": {"content_type": "str"}}
        inputs.append({"name": "path", "datatype": "BYTES", **own})
    head = json.dumps({"inputs": inputs, "parameters": {"binary_data_output": True}}).encode()
    return head + x.tobytes(), {"Inference-Header-Content-Length": str(len(head))}


def infer(
    connection: http.client.HTTPConnection, method: str, x: Array, path: Path | None = None
) -> Array:
    connection.request("POST", f"/v2/models/toy.{method}/infer", *body_of(x, path))
    reply = connection.getresponse()
    answer = reply.read()
    assert reply.status == 200, answer[:500]
    start = int(reply.headers["Inference-Header-Content-Length"])
    return np.frombuffer(answer, np.float32, offset=start)


def pids() -> list[int]:
    return [os.getpid(), *front_ends(os.getpid())]


@pytest.mark.parametrize("size", [7_000, 70_000, 700_000, 7_000_000])
def test_tensors_of_any_size_come_back_right_from_requests_at_once(calls: Calls, size: int) -> None:
    def ask(seed: int) -> None:
        with closing(connected(calls)) as connection:
            for one in range(3):
                x = numbers(size, 10 * seed + one)
                assert np.array_equal(infer(connection, "double", x), 2 * x)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(ask, range(4)))


def test_memory_does_not_grow_with_requests(calls: Calls) -> None:
    x = numbers(2_000_000)
    with closing(connected(calls)) as first, closing(connected(calls)) as second:
        check_growth(pids(), lambda: [infer(one, "double", x) for one in (first, second)], 4 << 20)


def test_clients_that_leave_in_the_middle_leave_no_memory_behind(calls: Calls) -> None:
    body, headers = body_of(numbers(2_000_000))
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    head = (
        f"POST /v2/models/toy.double/infer HTTP/1.1\r\nHost: x\r\n{lines}"
        f"Content-Length: {len(body)}\r\n\r\n"
    )

    before = [memory(pid) for pid in pids()]
    for _ in range(24):
        with socket.create_connection(("127.0.0.1", calls.http), timeout=PATIENCE) as stream:
            stream.sendall(head.encode() + body[:-1000])

    def is_back() -> bool:
        """What was received in is given back within seconds."""
        after = [memory(pid) for pid in pids()]
        return all(now < was + (32 << 20) for was, now in zip(before, after, strict=True))

    eventually(is_back)  # without the garbage collector, which comes rarely


def test_bodies_that_are_announced_and_do_not_come_keep_nobody_out(calls: Calls) -> None:
    """More of them than fit into the memory that front ends share with the master."""
    head = (
        "POST /v2/models/toy.double/infer HTTP/1.1\r\nHost: x\r\n"
        f"Content-Length: {100 << 20}\r\n\r\n"
    )
    streams = [calls.connect() for _ in range(64)]
    for stream in streams:
        stream.sendall(head.encode())
    x = numbers(1_000_000)
    for _ in range(4):
        with closing(connected(calls)) as connection:
            assert np.array_equal(infer(connection, "double", x), 2 * x)
    for stream in streams:
        stream.close()
    with closing(connected(calls)) as connection:
        assert np.array_equal(infer(connection, "double", x), 2 * x)


def test_a_retry_gets_the_original_tensors_after_a_worker_changed_them(
    calls: Calls, tmp_path: Path
) -> None:
    x = numbers(1_000_000)
    with closing(connected(calls)) as connection:
        assert np.array_equal(infer(connection, "die_once", x, tmp_path / "died"), 3 * x)
    assert (tmp_path / "died").exists()


def test_a_front_end_dying_with_a_large_request_harms_no_process(
    calls: Calls, tmp_path: Path
) -> None:
    go, x = tmp_path / "go", numbers(1_000_000)
    before = front_ends(os.getpid())
    with closing(connected(calls)) as connection, ThreadPoolExecutor(1) as threads:
        asked = threads.submit(infer, connection, "wait", x, go)
        eventually((tmp_path / "go.waits").exists)
        for pid in before:
            os.kill(pid, signal.SIGKILL)
        with pytest.raises((http.client.HTTPException, OSError)):
            asked.result(PATIENCE)
    eventually(lambda: len({*front_ends(os.getpid())} - {*before}) == 2)
    with closing(connected(calls)) as connection:
        assert np.array_equal(infer(connection, "double", x), 2 * x)
        go.touch()
        for _ in range(2):  # one of them after what the dead front end had asked for
            assert np.array_equal(infer(connection, "wait", x, go), x)
