"""Workers that are stuck: who notices, what goes on, and what the requests are answered."""

import os
import signal
from contextlib import suppress
from pathlib import Path

import pytest

from mindspore_serving import server
from tests.e2e.fragile import HOLD, SOURCE, is_ready, logged, works
from tests.e2e.harness import config, eventually, in_flight, serving, workers, write_servable
from tests.waiting import PATIENCE

STUCK = (
    SOURCE
    + HOLD
    + """
@method("pid")
def stick(x):
    log("stuck")
    hold()

@method("pid")
def busy(x):
    log("busy")
    end = time.monotonic() + x
    while time.monotonic() < end:
        pass
    return os.getpid()
"""
)


def test_a_worker_that_holds_the_interpreter_gets_no_work_and_is_replaced(serve, pool):
    calls = serve(STUCK, num_parallel_workers=2, heartbeat_timeout=0.8)
    stuck = pool.submit(calls.client("toy", "stick").infer, {"x": 1})
    eventually(lambda: logged("stuck"))
    (victim,) = logged("stuck")
    answers = [pool.submit(calls.client("toy", "pid").infer, {"x": n}) for n in range(6)]
    assert victim not in {int(answer.result(PATIENCE)[0]["pid"]) for answer in answers}
    assert "died" in stuck.result(PATIENCE)["error"]  # it was tried once more, by itself
    assert len(set(logged("stuck"))) == 2
    eventually(lambda: is_ready(calls))
    assert victim not in workers(os.getpid())


@pytest.mark.parametrize("number", [1, 2])
def test_a_stopped_worker_is_replaced_and_queued_requests_answered(serve, pool, number):
    calls = serve(STUCK, num_parallel_workers=number, heartbeat_timeout=0.8)
    victim = int(works(calls, "pid")["pid"])
    os.kill(victim, signal.SIGSTOP)
    answers = [pool.submit(calls.client("toy", "pid").infer, {"x": n}) for n in range(6)]
    assert victim not in {int(answer.result(PATIENCE)[0]["pid"]) for answer in answers}
    eventually(lambda: victim not in workers(os.getpid()))
    eventually(lambda: is_ready(calls))


def test_a_stopped_worker_that_goes_on_in_time_is_kept(serve, pool):
    for timeout in (3, 12):  # a busy machine may not come to let it go on in time
        calls = serve(STUCK, heartbeat_timeout=timeout)
        (pid,) = workers(os.getpid())
        os.kill(pid, signal.SIGSTOP)
        answer = pool.submit(calls.client("toy", "pid").infer, {"x": 1})
        eventually(lambda calls=calls: not is_ready(calls))
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
        assert "error" not in (found := answer.result(PATIENCE))
        eventually(lambda calls=calls: is_ready(calls))
        if int(found[0]["pid"]) == pid and workers(os.getpid()) == [pid]:
            return
        server.stop()
    raise AssertionError(f"the worker {pid} was replaced: {found}")


def test_a_busy_worker_is_not_taken_for_a_hung_worker(serve):
    for timeout in (0.8, 8.0):  # a busy machine may itself hold up its heartbeats
        calls = serve(STUCK, heartbeat_timeout=timeout)
        (pid,) = workers(os.getpid())
        found = calls.client("toy", "busy").infer({"x": 4.5 * timeout})
        if "error" not in found and int(found[0]["pid"]) == pid:
            return
        server.stop()
    raise AssertionError(f"the worker {pid} was taken for a stuck one: {found}")


def test_a_stage_that_runs_too_long_fails_its_request_and_no_other(serve, pool):
    calls = serve(STUCK, stage_timeout=1.0)
    before = workers(os.getpid())
    hung = pool.submit(calls.client("toy", "wait").infer, {"x": 1})
    eventually(lambda: logged("wait"))
    waiting = [pool.submit(calls.client("toy", "pid").infer, {"x": n}) for n in range(6)]
    assert "stage 1 ran for over 1 s (stage_timeout)" in hung.result(PATIENCE)["error"]
    assert {int(one.result(PATIENCE)[0]["pid"]) for one in waiting}.isdisjoint(before)
    assert len(logged("wait")) == 1


def test_a_hung_servable_leaves_other_servables_their_share_of_the_limit(tmp_path, pool):
    write_servable(tmp_path, "good", SOURCE)
    write_servable(tmp_path, "toy", SOURCE)
    toy = config(tmp_path, "toy", max_requests=3)
    with serving(tmp_path, config(tmp_path, "good"), toy) as calls:
        hung = [pool.submit(calls.client("toy", "wait").infer, {"x": n}) for n in range(3)]
        eventually(lambda: in_flight(calls) == 3)
        assert "max_requests is 3" in calls.client("toy", "wait").infer({"x": 9})["error"]
        assert calls.client("good", "pid").infer({"x": 1})[0]["pid"]
        Path("go").touch()
        assert all(one.result(PATIENCE)[0]["pid"] for one in hung)
