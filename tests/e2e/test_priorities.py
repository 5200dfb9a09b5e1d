"""Requests name the level of their priority, by header, metadata or parameter of each protocol."""

import json
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http

from tests.e2e.harness import Calls, config, eventually, in_flight, serving, write_servable
from tests.waiting import PATIENCE

SOURCE = """
def wait(x):
    with open("calls.txt", "a") as file:
        file.write(f"{int(x.ravel()[0])} ")
    while not os.path.exists("go"):
        time.sleep(0.005)
    return x

@register.register_method(output_names=["y"], retry=False)  # a worker has one request at a time
def predict(x):
    return register.add_stage(wait, x, outputs_count=1)
"""

Send: TypeAlias = Callable[[Calls, int, int], None]


@pytest.fixture(params=[1, 2], ids=["master", "front-ends"], scope="module")
def calls(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Calls]:
    directory = tmp_path_factory.mktemp("priorities")
    write_servable(directory, "toy", SOURCE)
    toy = config(directory, "toy", priority_levels=3, level_queue_sizes={"3": 1})
    with serving(directory, toy, front_ends=request.param, use_status_codes=True) as served:
        yield served


def by_rest(calls: Calls, x: int, priority: int) -> None:
    calls.post("toy", "predict", [{"x": x}], {"x-request-priority": str(priority)})


def by_triton(library: Any, port: str) -> Send:
    def call(calls: Calls, x: int, priority: int) -> None:
        tensor = library.InferInput("x", [1, 1], "INT32")
        tensor.set_data_from_numpy(np.array([[x]], np.int32))
        address = calls.grpc if port == "grpc" else f"127.0.0.1:{calls.http}"
        with library.InferenceServerClient(address) as client:
            client.infer("toy", [tensor], priority=priority)

    return call


PROTOCOLS = {
    "rest": by_rest,
    "v2": by_triton(tritonclient.http, "http"),
    "v2_grpc": by_triton(tritonclient.grpc, "grpc"),
}


def send_all(calls: Calls, send: Send, pool: ThreadPoolExecutor) -> "Iterator[Future[None]]":
    """Send requests 0 to 3, each when the server has the one before; the first one runs."""
    for number, priority in enumerate((2, 3, 2, 1)):
        yield pool.submit(send, calls, number, priority)
        if number == 0:
            eventually(lambda: Path("calls.txt").exists() and Path("calls.txt").read_text())
        eventually(lambda count=number + 1: in_flight(calls) == count)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_the_first_level_overtakes_earlier_requests(calls: Calls, protocol: str) -> None:
    for name in ("go", "calls.txt"):
        Path(name).unlink(missing_ok=True)
    with ThreadPoolExecutor(4) as pool:
        try:
            answers = list(send_all(calls, PROTOCOLS[protocol], pool))
            body, header = '{"instances": [{"x": 9}]}', {"x-request-priority": "3"}
            status, problem = calls.http_call("POST", "/model/toy:predict", body, header)
        finally:
            Path("go").touch()
        for answer in answers:
            answer.result(PATIENCE)
    assert (status, b"1 requests of priority 3 are queued" in problem) == (429, True)
    assert Path("calls.txt").read_text().split() == ["0", "3", "2", "1"]


def test_a_level_that_is_no_number_is_refused(calls: Calls) -> None:
    body = '{"instances": [{"x": 9}]}'
    for header in ("-1", "high", "1234567890"):
        answer = calls.http_call("POST", "/model/toy:predict", body, {"x-request-priority": header})
        assert answer[0] == 400
        assert b"expected a level of the queue, 1 for the first" in answer[1]
    inputs = [{"name": "x", "datatype": "INT32", "shape": [1, 1], "data": [1]}]
    parameters = {"priority": "high"}
    text = json.dumps({"inputs": inputs, "parameters": parameters})
    status, problem = calls.http_call("POST", "/v2/models/toy/infer", text)
    assert (status, b"parameter priority is high, expected a level" in problem) == (400, True)
