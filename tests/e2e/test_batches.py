"""How batches form, with and without a delay."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.harness import (
    Calls,
    config,
    eventually,
    in_flight,
    row_of,
    serving,
    write_servable,
)
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


OPTIONS: dict[str, dict[str, Any]] = {
    "toy": {},
    "hour": {"max_batch_delay_ms": HOUR},
    "pairs": {"max_batch_delay_ms": HOUR, "preferred_batch_size": 2},
    "fours": {"max_batch_delay_ms": HOUR, "preferred_batch_size": 4},
    "late": {"max_batch_delay_ms": HOUR, "preferred_batch_size": 4},
    "moment": {"max_batch_delay_ms": 300, "preferred_batch_size": 8},
    "hasty": {"max_queue_seconds": 0.2},
}


@pytest.fixture(scope="module")
def calls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Calls]:
    """A servable of SOURCE for each row of OPTIONS."""
    directory = tmp_path_factory.mktemp("batches")
    for name in OPTIONS:
        write_servable(directory, name, SOURCE)
    configs = [config(directory, name, **options) for name, options in OPTIONS.items()]
    with serving(directory, *configs) as served:
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


def go() -> None:
    Path("go").touch()


def test_without_a_delay_a_batch_is_whatever_waits(calls, threads):
    first = threads.submit(calls.client("toy", "slow_size").infer, {"x": 0})
    eventually(has_calls)
    rest = [threads.submit(calls.client("toy", "slow_size").infer, {"x": n}) for n in range(8)]
    eventually(lambda: in_flight(calls) == 9)
    go()
    assert first.result(PATIENCE)[0]["n"] == 1
    assert max(int(future.result(PATIENCE)[0]["n"]) for future in rest) > 1
    assert sum(seen()) == 9


def test_a_lone_request_does_not_wait_without_a_delay(calls, threads):
    """While one that waits for company does."""
    waiting = threads.submit(calls.client("pairs", "size").infer, {"x": 1})
    eventually(lambda: in_flight(calls) == 1)
    assert calls.client("toy", "size").infer({"x": 1})[0]["n"] == 1
    assert in_flight(calls) == 1
    assert calls.client("pairs", "size").infer({"x": 1})[0]["n"] == 2
    assert waiting.result(PATIENCE)[0]["n"] == 2


def test_with_a_delay_and_a_preferred_size_full_batches_leave_at_once(calls, threads):
    clients = [calls.client("fours", "size") for _ in range(8)]
    results = [f.result(PATIENCE) for f in [threads.submit(c.infer, {"x": 1}) for c in clients]]
    assert min(int(result[0]["n"]) for result in results) >= 4


def test_a_partial_batch_runs_when_its_delay_is_over(calls):
    results = calls.client("moment", "size").infer([{"x": n} for n in range(3)])
    assert [int(result["n"]) for result in results] == [3] * 3
    assert row_of(calls, "moment")["p99_ms"] >= 300


def test_with_a_delay_alone_the_batch_size_of_the_method_is_preferred(calls, threads):
    clients = [calls.client("hour", "size") for _ in range(8)]
    results = [f.result(PATIENCE) for f in [threads.submit(c.infer, {"x": 1}) for c in clients]]
    assert [int(result[0]["n"]) for result in results] == [8] * 8


def test_instances_of_a_single_request_fill_batches(calls):
    by_grpc = calls.client("fours", "size").infer([{"x": n} for n in range(8)])
    by_rest = calls.post("fours", "size", [{"x": n} for n in range(8)])["instances"]
    assert min(int(result["n"]) for result in [*by_grpc, *by_rest]) >= 4


def test_a_deadline_inside_the_delay_is_kept(calls):
    answer = calls.post("late", "size", {"x": 1}, {"X-Request-Timeout": "0.2"})
    assert answer == {"error_msg": "no answer within 0.2 seconds"}
    assert row_of(calls, "late")["p50_ms"] >= 200  # of the only one answered


def test_requests_queued_too_long_are_refused_and_running_are_answered(calls, threads):
    running = threads.submit(calls.client("hasty", "slow_size").infer, {"x": 0})
    eventually(has_calls)
    rest = [threads.submit(calls.post, "hasty", "slow_size", {"x": n}) for n in range(12)]
    texts = [future.result(PATIENCE)["error_msg"] for future in rest]
    assert {text.partition(": ")[2] for text in texts} == {
        "the request waited for over 0.2 s (max_queue_seconds)"
    }
    go()
    assert running.result(PATIENCE)[0]["n"] == 1
    assert calls.client("hasty", "slow_size").infer({"x": 0})[0]["n"] == 1
