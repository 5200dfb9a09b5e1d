"""Deadlines, cancelled requests, and the limit of requests in flight."""

import http.client
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from mindspore_serving.server.master import context

from mindspore_serving.client import messages
from tests.e2e.harness import (
    Calls,
    config,
    eventually,
    in_flight,
    is_late,
    serving,
    write_servable,
)
from tests.waiting import PATIENCE

SOURCE = """
@method("y")
def wait(x):
    with open("calls.txt", "a") as file:
        file.write(f"{int(x)}\\n")
    end = time.monotonic() + 300
    while not os.path.exists("go") and time.monotonic() < end:
        time.sleep(0.005)
    return x

@method("y")
def double(x):
    return x * 2
"""


def seen() -> list[int]:
    """What the functions have logged."""
    return [int(line) for line in Path("calls.txt").read_text().split()] if has_calls() else []


def has_calls() -> bool:
    return Path("calls.txt").exists()


@pytest.fixture(scope="module")
def calls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Calls]:
    directory = tmp_path_factory.mktemp("deadlines")
    write_servable(directory, "toy", SOURCE)
    with serving(directory, config(directory, "toy")) as served:
        yield served


@pytest.fixture
def threads(calls: Calls) -> Iterator[ThreadPoolExecutor]:
    """For requests, all of which are answered at the end."""
    with ThreadPoolExecutor(40) as pool:
        yield pool
        go()
    eventually(lambda: in_flight(calls) == 0)
    for name in ("go", "calls.txt"):
        Path(name).unlink(missing_ok=True)


@pytest.fixture
def busy(calls: Calls, threads: ThreadPoolExecutor) -> Calls:
    """A server whose only worker of toy hangs in the method wait, with input 0, until `go`."""
    threads.submit(calls.client("toy", "wait").infer, {"x": 0})
    eventually(has_calls)
    return calls


def go() -> None:
    Path("go").touch()


# --- deadlines ----------------------------------------------------------------------------------


def test_queued_requests_past_a_grpc_deadline_never_run(busy):
    error = busy.client("toy", "wait").infer({"x": 1}, timeout=0.2)["error"]
    assert is_late(error)
    eventually(lambda: in_flight(busy) == 1)  # the one that hangs
    go()
    assert busy.client("toy", "double").infer({"x": 2})[0]["y"] == 4
    assert busy.client("toy", "wait").infer({"x": 3})
    assert seen() == [0, 3]


def test_queued_requests_past_x_request_timeout_never_run(busy):
    answer = busy.post("toy", "wait", [{"x": 1}, {"x": 2}], {"X-Request-Timeout": "0.2"})
    assert answer == {"error_msg": "no answer within 0.2 seconds"}
    assert in_flight(busy) == 1  # the one that hangs
    go()
    assert "instances" in busy.post("toy", "wait", {"x": 3}, {"X-Request-Timeout": str(PATIENCE)})
    assert seen() == [0, 3]


def test_a_request_that_runs_is_answered_at_its_deadline_all_the_same(busy):
    error = busy.client("toy", "double").infer({"x": 1}, timeout=0.2)["error"]
    assert is_late(error)
    go()
    assert eventually(lambda: busy.client("toy", "double").infer({"x": 2}))[0]["y"] == 4


@pytest.mark.parametrize("value", ["", "soon", "0", "-1", "nan", "inf", "1e999"])
def test_a_timeout_that_is_none_is_refused(calls, value):
    error = calls.post("toy", "double", {"x": 1}, {"X-Request-Timeout": value})["error_msg"]
    assert "X-Request-Timeout" in error


# --- cancelling ---------------------------------------------------------------------------------


def test_a_cancelled_grpc_request_is_never_run(busy):
    request = messages.to_request("toy", "wait", 0, {"x": 1})
    future = busy.client("toy", "wait").stub.Predict.future(request)
    eventually(lambda: in_flight(busy) == 2)
    future.cancel()
    eventually(lambda: in_flight(busy) == 1)
    go()
    busy.client("toy", "wait").infer({"x": 2})
    assert seen() == [0, 2]


def test_the_request_of_an_http_client_that_left_is_never_run(busy):
    connection = http.client.HTTPConnection("127.0.0.1", busy.http, timeout=PATIENCE)
    connection.request("POST", "/model/toy:wait", '{"instances":[{"x":1},{"x":1}]}')
    eventually(lambda: in_flight(busy) == 2)
    connection.close()
    eventually(lambda: in_flight(busy) == 1)
    go()
    busy.client("toy", "wait").infer({"x": 2})
    assert seen() == [0, 2]


def test_when_a_grpc_channel_closes_its_requests_are_never_run(busy):
    client = busy.client("toy", "wait")
    futures = [client.infer_async({"x": 1}) for _ in range(10)]
    eventually(lambda: in_flight(busy) == 11)
    client.close()
    eventually(lambda: in_flight(busy) == 1)
    go()
    busy.client("toy", "wait").infer({"x": 2})
    assert seen() == [0, 2]
    assert len(futures) == 10


# --- too many -----------------------------------------------------------------------------------


@pytest.fixture
def limit_4():
    context.set_max_enqueued_requests(4)
    yield
    context.set_max_enqueued_requests(10_000)


def test_requests_over_the_limit_are_refused_at_once(limit_4, busy, threads):
    waiting = [threads.submit(busy.client("toy", "wait").infer, {"x": 1}) for _ in range(3)]
    eventually(lambda: in_flight(busy) == 4)
    text = "Serving Error: enqueued requests count exceeds the limit 4"
    for _ in range(20):
        assert busy.client("toy", "double").infer({"x": 1}) == {"error": text}
        assert busy.post("toy", "double", {"x": 1}) == {"error_msg": text}
    go()
    assert [future.result(PATIENCE)[0]["y"] for future in waiting] == [1, 1, 1]
    assert busy.client("toy", "double").infer({"x": 1})[0]["y"] == 2


def test_the_limit_can_be_changed_at_run_time(busy):
    context.set_max_enqueued_requests(1)
    try:
        assert "exceeds the limit 1" in busy.client("toy", "double").infer({"x": 1})["error"]
    finally:
        context.set_max_enqueued_requests(10_000)
    go()
    assert busy.client("toy", "double").infer({"x": 1})[0]["y"] == 2
