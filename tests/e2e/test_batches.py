"""How batches form, with and without a delay."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from mindspore_serving import server
from tests.e2e.harness import config, eventually, in_flight, serving, write_servable
from tests.waiting import PATIENCE

HOUR = 3_600_000  # milliseconds

SOURCE = """
@method("y")
def double(x):
    return x * 2

def count(batch):
    return [np.int32(len(batch))] * len(batch)
@register.register_method(output_names=["n"])
def size(x):
    return register.add_stage(count, x, outputs_count=1, batch_size=8)

def count_slowly(batch):
    with open("calls.txt", "a") as file:
        file.write(f"{len(batch)}\\n")
    while not os.path.exists("go"):
        time.sleep(0.005)
    return [np.int32(len(batch))] * len(batch)
@register.register_method(output_names=["n"])
def slow_size(x):
    return register.add_stage(count_slowly, x, outputs_count=1, batch_size=8)
"""


def seen() -> list[int]:
    """What the functions have logged."""
    return [int(line) for line in Path("calls.txt").read_text().split()] if has_calls() else []


def has_calls() -> bool:
    return Path("calls.txt").exists()


@pytest.fixture
def threads(serve) -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(40) as pool:
        yield pool
        go()
        server.stop()


def go() -> None:
    Path("go").touch()


def test_without_a_delay_a_batch_is_whatever_waits(serve, threads):
    calls = serve(SOURCE)
    first = threads.submit(calls.client("toy", "slow_size").infer, {"x": 0})
    eventually(has_calls)
    rest = [threads.submit(calls.client("toy", "slow_size").infer, {"x": n}) for n in range(8)]
    eventually(lambda: in_flight(calls) == 9)
    go()
    assert first.result(PATIENCE)[0]["n"] == 1
    assert max(int(future.result(PATIENCE)[0]["n"]) for future in rest) > 1
    assert sum(seen()) == 9


def test_a_lone_request_does_not_wait_without_a_delay(tmp_path, pool):
    """While one that waits for company does."""
    write_servable(tmp_path, "delayed", SOURCE)
    write_servable(tmp_path, "toy", SOURCE)
    delayed = config(tmp_path, "delayed", max_batch_delay_ms=HOUR, preferred_batch_size=2)
    with serving(tmp_path, delayed, config(tmp_path, "toy")) as calls:
        waiting = pool.submit(calls.client("delayed", "size").infer, {"x": 1})
        eventually(lambda: in_flight(calls) == 1)
        assert calls.client("toy", "size").infer({"x": 1})[0]["n"] == 1
        assert in_flight(calls) == 1
        assert calls.client("delayed", "size").infer({"x": 1})[0]["n"] == 2
        assert waiting.result(PATIENCE)[0]["n"] == 2


def test_with_a_delay_and_a_preferred_size_full_batches_leave_at_once(serve, threads):
    calls = serve(SOURCE, max_batch_delay_ms=HOUR, preferred_batch_size=4)
    clients = [calls.client("toy", "size") for _ in range(8)]
    results = [f.result(PATIENCE) for f in [threads.submit(c.infer, {"x": 1}) for c in clients]]
    assert min(int(result[0]["n"]) for result in results) >= 4


def test_a_partial_batch_runs_when_its_delay_is_over(serve):
    calls = serve(SOURCE, max_batch_delay_ms=300, preferred_batch_size=8)
    results = calls.client("toy", "size").infer([{"x": n} for n in range(3)])
    assert [int(result["n"]) for result in results] == [3] * 3
    ((toy,),) = json.loads(calls.http_call("GET", "/servables")[1]).values()
    assert toy["p99_ms"] >= 300


def test_with_a_delay_alone_the_batch_size_of_the_method_is_preferred(serve, threads):
    calls = serve(SOURCE, max_batch_delay_ms=HOUR)
    clients = [calls.client("toy", "size") for _ in range(8)]
    results = [f.result(PATIENCE) for f in [threads.submit(c.infer, {"x": 1}) for c in clients]]
    assert [int(result[0]["n"]) for result in results] == [8] * 8


def test_instances_of_a_single_request_fill_batches(serve):
    calls = serve(SOURCE, max_batch_delay_ms=HOUR, preferred_batch_size=4)
    by_grpc = calls.client("toy", "size").infer([{"x": n} for n in range(8)])
    by_rest = calls.post("toy", "size", [{"x": n} for n in range(8)])["instances"]
    assert min(int(result["n"]) for result in [*by_grpc, *by_rest]) >= 4


def test_a_deadline_inside_the_delay_is_kept(serve):
    calls = serve(SOURCE, max_batch_delay_ms=HOUR, preferred_batch_size=4)
    answer = calls.post("toy", "size", {"x": 1}, {"X-Request-Timeout": "0.2"})
    assert answer == {"error_msg": "no answer within 0.2 seconds"}


def test_requests_queued_too_long_are_refused_and_running_are_answered(serve, threads):
    calls = serve(SOURCE, max_queue_seconds=0.2)
    running = threads.submit(calls.client("toy", "slow_size").infer, {"x": 0})
    eventually(has_calls)
    rest = [threads.submit(calls.post, "toy", "slow_size", {"x": n}) for n in range(12)]
    texts = [future.result(PATIENCE)["error_msg"] for future in rest]
    assert {text.partition(": ")[2] for text in texts} == {
        "the request waited for over 0.2 s (max_queue_seconds)"
    }
    go()
    assert running.result(PATIENCE)[0]["n"] == 1
    assert calls.client("toy", "slow_size").infer({"x": 0})[0]["n"] == 1
