"""Workers that die: which requests fail, which another worker runs, what is restarted."""

import os
import resource
import signal
import threading
from pathlib import Path

import pytest

from mindspore_serving import server
from mindspore_serving.core import backoff
from tests.e2e.fragile import SOURCE, ask_wait, go, held, is_ready, logged, new_worker, works
from tests.e2e.harness import (
    Calls,
    config,
    eventually,
    is_alive,
    is_late,
    serving,
    workers,
    write_servable,
)
from tests.waiting import PATIENCE

POISON = (
    SOURCE
    + """
@method("y")
def touchy(x):
    time.sleep(0.005)
    if x == 13:
        os._exit(13)
    return x

@method("y")
def quit(x):
    sys.exit(int(x))
"""
)


def test_instances_of_a_request_are_shared_by_the_replicas(serve):
    calls = serve(SOURCE, num_parallel_workers=2)
    results = calls.client("toy", "share").infer([{"x": n} for n in range(40)])
    assert {int(r["pid"]) for r in results} == set(workers(os.getpid()))
    by_rest = calls.post("toy", "share", [{"x": n} for n in range(40)])["instances"]
    assert {r["pid"] for r in by_rest} == set(workers(os.getpid()))


def test_requests_of_a_killed_only_worker_are_answered_by_the_next(serve, pool, started):
    calls = serve(SOURCE)
    answer, pid = ask_wait(calls, pool)
    queued = [pool.submit(calls.client("toy", "wait").infer, {"x": n}) for n in range(5)]
    with held():
        os.kill(pid, signal.SIGKILL)
        replacement = new_worker(pid)
        queued += [pool.submit(calls.client("toy", "wait").infer, {"x": 9})]
        too_late = calls.client("toy", "wait", timeout=0.3).infer({"x": 1})
        assert is_late(too_late["error"])
        assert not is_ready(calls)
        assert not any(future.done() for future in [answer, *queued])
    go()
    assert {int(future.result(PATIENCE)[0]["pid"]) for future in [answer, *queued]} == {replacement}
    assert all(map(is_alive, started()))


def test_a_request_that_kills_workers_spares_requests_beside_its_own(serve, pool):
    calls = serve(POISON, num_parallel_workers=2)
    ask = calls.client("toy", "touchy").infer
    answers = [pool.submit(ask, {"x": 13 if n == 20 else n + 100}) for n in range(40)]
    failed = [n for n, one in enumerate(answers) if "error" in one.result(PATIENCE)]
    assert failed == [20]
    assert "died" in answers[20].result()["error"]
    eventually(lambda: is_ready(calls))


def test_a_stage_that_exits_fails_its_request_and_keeps_its_worker(serve):
    calls = serve(POISON)
    before = workers(os.getpid())
    assert "SystemExit(7)" in calls.client("toy", "quit").infer({"x": 7})["error"]
    assert works(calls, "pid")["pid"] == before[0]


def test_a_dead_worker_is_restarted_once_descriptors_are_free(serve, capfd):
    calls = serve(SOURCE)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.dup(0)
    os.close(free)
    shown = ""

    def num_failures() -> int:
        nonlocal shown
        shown += capfd.readouterr().err
        return shown.count("Too many open files")

    (pid,) = workers(os.getpid())
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(free, 16), hard))
    try:
        os.kill(pid, signal.SIGKILL)
        eventually(lambda: num_failures() >= 3)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert works(calls, "pid")
    assert "gave up" not in shown


def test_with_restart_policy_never_a_dead_worker_is_not_replaced(serve, pool):
    calls = serve(SOURCE, num_parallel_workers=2, restart_policy="never")
    answer, pid = ask_wait(calls, pool)
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: len(logged("wait")) == 2)
    go()
    assert answer.result(PATIENCE)[0]["pid"] == logged("wait")[1]
    assert workers(os.getpid()) == [logged("wait")[1]]


def test_a_request_of_a_killed_worker_is_answered_by_the_other(serve, pool, started):
    calls = serve(SOURCE, num_parallel_workers=2)
    answer, pid = ask_wait(calls, pool)
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: len(logged("wait")) == 2)
    other = logged("wait")[1]
    assert other != pid
    go()
    assert answer.result(PATIENCE)[0]["pid"] == other
    eventually(lambda: is_ready(calls) and len(workers(os.getpid())) == 2)
    eventually(lambda: all(map(is_alive, started())))


def test_without_retry_a_request_of_a_killed_worker_fails(serve, pool):
    calls = serve(SOURCE, num_parallel_workers=2, retry=False)
    answer, pid = ask_wait(calls, pool)
    os.kill(pid, signal.SIGKILL)
    assert "died" in answer.result(PATIENCE)["error"]
    assert len(logged("wait")) == 1
    assert works(calls, "pid")["pid"] != pid


def test_a_request_that_kills_workers_is_tried_twice_and_no_more(serve):
    calls = serve(SOURCE, num_parallel_workers=2)
    before = workers(os.getpid())
    assert "died" in calls.client("toy", "die").infer({"x": 3})["error"]
    assert sorted(logged("die")) == sorted(before)
    eventually(lambda: is_ready(calls))
    assert works(calls, "pid")


def test_a_worker_whose_child_holds_on_to_everything_is_seen_to_die(serve, pool):
    """A child by fork has the worker's end of the channel, too: it must not count as the worker."""
    calls = serve(SOURCE)
    in_group, elsewhere = (
        int(calls.client("toy", "fork").infer({"x": x})[0]["pid"]) for x in (0, 1)
    )
    answer, pid = ask_wait(calls, pool)
    os.kill(pid, signal.SIGKILL)
    try:
        go()
        assert answer.result(PATIENCE)[0]["pid"] != pid
        eventually(lambda: not is_alive(in_group))
    finally:
        os.kill(elsewhere, signal.SIGKILL)  # it left the group; it is its own business


def start_children(calls: Calls) -> list[int]:
    """By a new program and by fork."""
    answers = [calls.client("toy", method).infer({"x": 0}) for method in ("child", "fork")]
    return [int(answer[0]["pid"]) for answer in answers]


def test_child_processes_of_a_worker_end_with_the_worker(serve, started):
    calls = serve(SOURCE)
    first = start_children(calls)
    os.kill(int(works(calls, "pid")["pid"]), signal.SIGKILL)
    eventually(lambda: not any(map(is_alive, first)))
    eventually(lambda: works(calls, "pid"))
    second = start_children(calls)
    server.stop()
    eventually(lambda: not any(map(is_alive, second)))
    assert not started()


@pytest.fixture
def quickly(monkeypatch):
    """Workers that die again and again are restarted sooner."""
    monkeypatch.setattr(backoff, "FIRST_DELAY", 0.03)


def test_a_worker_that_always_dies_is_given_up_with_the_reason(quickly, tmp_path, capfd, started):
    """While a servable beside it goes on."""
    write_servable(tmp_path, "good", SOURCE)
    write_servable(tmp_path, "toy", SOURCE + "if os.path.exists('doom'): os._exit(9)\n")
    toy = config(tmp_path, "toy", restart_policy="limited")
    with serving(tmp_path, config(tmp_path, "good"), toy) as calls:
        Path("doom").touch()
        os.kill(int(works(calls, "pid")["pid"]), signal.SIGKILL)
        client = calls.client("toy", "pid")
        eventually(lambda: "its workers have ended" in client.infer({"x": 1})["error"])
        error = client.infer({"x": 1})["error"]
        assert "servable(toy) method(pid)" in error
        assert "servable is not available" in error
        assert calls.client("good", "pid").infer({"x": 1})[0]["pid"] in workers(os.getpid())
        assert len(started()) == 1
        assert calls.http_call("GET", "/health")[0] == 503
    log = capfd.readouterr().err
    assert "gave up" in log
    assert "exit status 9" in log


def test_requests_go_on_while_a_replica_dies_again_and_again(quickly, serve, pool, started):
    calls = serve(SOURCE, num_parallel_workers=2)
    stop = threading.Event()

    def ask() -> int:
        client, count = calls.client("toy", "pid"), 0
        while not stop.wait(0.005):  # which leaves the server time for other work
            assert "error" not in client.infer({"x": 1})
            count += 1
        return count

    counts = [pool.submit(ask) for _ in range(3)]
    for _ in range(3):
        pid = workers(os.getpid())[0]
        os.kill(pid, signal.SIGKILL)
        eventually(lambda pid=pid: pid not in started())
        eventually(lambda: len(workers(os.getpid())) == 2 and is_ready(calls))
    stop.set()
    assert all(count.result(PATIENCE) for count in counts)
    assert all(map(is_alive, started()))


def test_a_failed_restart_reports_its_reason_until_repaired(quickly, tmp_path):
    write_servable(tmp_path, "toy", SOURCE)
    good = (tmp_path / "toy" / "servable_config.py").read_text()
    with serving(tmp_path, config(tmp_path, "toy")) as calls:
        (tmp_path / "toy" / "servable_config.py").write_text("raise ValueError('half edited')")
        os.kill(workers(os.getpid())[0], signal.SIGKILL)
        eventually(lambda: "error" in calls.client("toy", "pid").infer({"x": 1}))
        (tmp_path / "toy" / "servable_config.py").write_text(good)
        assert eventually(lambda: works(calls, "pid"))
