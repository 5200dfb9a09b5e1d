"""How fast large tensors come in and go out, and what that costs the server.

`python -m benchmarks.large_tensors [--sizes 1,16,64] [--rounds N] [--front-ends N]`

One client of this process sends one float32 tensor after another: over gRPC (our client), over HTTP
in binary (protocol v2), and in shared memory that both ends know (protocol v2).  "in": the answer
has four numbers; "in and out": it has all of them.  The transports take turns within a round.

GB/s are of the tensor, counted once each way, and the median over the rounds.  "copies" is the
processor time of all processes of the server, divided by that of one copy of the tensor into new
memory in the same round: system calls and checks are in it.
"""

import argparse
import http.client
import json
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.contenders import ours
from benchmarks.processes import free_ports, running
from benchmarks.report import print_json, print_table

METHODS = {"in": "take", "in and out": "give_back"}
Array = np.ndarray[Any, Any]
Call = Callable[[], Any]  # sends the tensor; what was answered


def by_grpc(ports: list[int], method: str, x: Array) -> Iterator[Call]:
    from mindspore_serving.client import Client

    with Client(f"127.0.0.1:{ports[1]}", "large_tensor", method) as client:
        yield lambda: client.infer({"x": x})[0]["y"]


def by_http(ports: list[int], method: str, x: Array) -> Iterator[Call]:
    size = {"binary_data_size": x.nbytes}
    head = {
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [1, x.size], "parameters": size}],
        "parameters": {"binary_data_output": True},
    }
    text = json.dumps(head).encode()
    connection = http.client.HTTPConnection("127.0.0.1", ports[0])

    def call() -> Array:
        headers = {
            "Inference-Header-Content-Length": str(len(text)),
            "Content-Length": str(len(text) + x.nbytes),
        }
        path = f"/v2/models/large_tensor.{method}/infer"
        connection.request("POST", path, iter((text, memoryview(x).cast("B"))), headers)
        response = connection.getresponse()
        body = response.read()
        if response.status != 200:
            raise OSError(f"the server answered {body[:200]!r}")
        start = int(response.headers["Inference-Header-Content-Length"])
        return np.frombuffer(body, np.float32, offset=start)

    yield call
    connection.close()


def by_shared_memory(ports: list[int], method: str, x: Array) -> Iterator[Call]:
    count = x.size if method == METHODS["in and out"] else 4
    connection = http.client.HTTPConnection("127.0.0.1", ports[0])
    with ExitStack() as stack:
        regions = [stack.enter_context(region(connection, size)) for size in (x.nbytes, 4 * count)]
        np.frombuffer(regions[0].buf, np.float32, x.size)[:] = x
        places = [
            place(one, size) for one, size in zip(regions, (x.nbytes, 4 * count), strict=True)
        ]
        given = {"name": "x", "datatype": "FP32", "shape": [1, x.size], "parameters": places[0]}
        body = json.dumps({"inputs": [given], "outputs": [{"name": "y", "parameters": places[1]}]})

        def call() -> Array:
            post(connection, f"models/large_tensor.{method}/infer", body)
            return np.frombuffer(regions[1].buf, np.float32, count).copy()

        yield call
    connection.close()


@contextmanager
def region(connection: http.client.HTTPConnection, size: int) -> Iterator[SharedMemory]:
    """Memory that the server knows by its name."""
    memory = SharedMemory(create=True, size=size)
    name = memory.name.removeprefix("/")
    try:
        known = {"key": memory.name, "offset": 0, "byte_size": size}
        post(connection, f"systemsharedmemory/region/{name}/register", json.dumps(known))
        yield memory
        post(connection, f"systemsharedmemory/region/{name}/unregister", "{}")
    finally:
        memory.unlink()


def place(memory: SharedMemory, size: int) -> dict[str, Any]:
    name = memory.name.removeprefix("/")
    return {"shared_memory_region": name, "shared_memory_byte_size": size}


def post(connection: http.client.HTTPConnection, path: str, body: str) -> None:
    connection.request("POST", f"/v2/{path}", body)
    response = connection.getresponse()
    text = response.read()
    if response.status != 200:
        raise OSError(f"the server answered {text[:200]!r}")


TRANSPORTS = {"gRPC": by_grpc, "HTTP, binary": by_http, "shared memory": by_shared_memory}


def descendants(process: str) -> Iterator[str]:
    for children in Path("/proc", process, "task").glob("*/children"):
        for child in children.read_text().split():
            yield child
            yield from descendants(child)


def processor_time() -> float:
    """Seconds that the processes which this one has started have computed."""
    total = 0
    for process in descendants(str(os.getpid())):
        for threads in Path("/proc", process, "task").glob("*/schedstat"):
            total += int(threads.read_text().split()[0])
    return total / 1e9


def copy_time(x: Array) -> float:
    """Processor seconds of a copy into new memory."""
    started = time.thread_time()
    for _ in range(4):
        x.copy()
    return (time.thread_time() - started) / 4


def measure(call: Call, x: Array) -> tuple[float, float]:
    """Seconds of a call, and of the server's processors."""
    count = max(3, min(100, int(3e8 / x.nbytes)))
    before, started = processor_time(), time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - started) / count, (processor_time() - before) / count


def check(found: Array, x: Array) -> None:
    if not np.array_equal(np.ravel(found)[:4], x[:4]):
        raise SystemExit(f"the answer begins with {found[:4]}, expected {x[:4]}")


def of_size(megabytes: float, ports: list[int], rounds: int) -> list[dict[str, Any]]:
    """The rows of tensors of one size."""
    x = np.random.default_rng(1).random(int(megabytes * 1e6 / 4), np.float32)
    found: dict[tuple[str, str], list[tuple[float, float]]] = {}
    with ExitStack() as stack:
        calls = {
            (name, way): stack.enter_context(contextmanager(transport)(ports, method, x))
            for name, transport in TRANSPORTS.items()
            for way, method in METHODS.items()
        }
        for call in calls.values():
            check(call(), x)
        for _ in range(rounds):
            for key, call in calls.items():
                seconds, processors = measure(call, x)
                gigabytes = x.nbytes * (2 if key[1] == "in and out" else 1) / 1e9
                pair = (gigabytes / seconds, processors / copy_time(x))
                found.setdefault(key, []).append(pair)
    return [
        {
            "transport": name,
            "way": way,
            "mb": megabytes,
            "gb_per_s": median(speed for speed, _ in pairs),
            "copies": median(copies for _, copies in pairs),
        }
        for (name, way), pairs in found.items()
    ]


def answers(port: int) -> bool:
    with socket.create_connection(("127.0.0.1", port)):
        return True


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.large_tensors")
    parser.add_argument("--sizes", default="1,16,64", help="of the tensor, in MB")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--front-ends", default="1", help="processes of the server")
    arguments = parser.parse_args()
    ports = free_ports(2)
    command = [sys.executable, *ours("large_tensor", arguments.front_ends)(ports)]
    results = []
    with running("large_tensor", command, lambda: answers(ports[0])):
        for size in map(float, arguments.sizes.split(",")):
            results += of_size(size, ports, arguments.rounds)
    print_table(
        ["transport", "MB", "GB/s", "copies"],
        [
            [f"{one['transport']}, {one['way']}", f"{one['mb']:g}"]
            + [f"{one['gb_per_s']:.2f}", f"{one['copies']:.1f}"]
            for one in results
        ],
    )
    print_json("large_tensors", rounds=arguments.rounds, results=results)


if __name__ == "__main__":
    main()
