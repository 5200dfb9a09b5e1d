"""Workers that are told to end, and `stop` while they work, hang or restart."""

import json
import os
import signal
import threading
from pathlib import Path

from mindspore_serving import server
from tests.e2e.fragile import SOURCE, ask_wait, go, is_ready, logged, metrics, new_worker, works
from tests.e2e.harness import (
    Calls,
    eventually,
    is_alive,
    workers,
)
from tests.ports import free_port
from tests.waiting import PATIENCE


def test_a_worker_that_is_told_to_end_finishes_and_is_not_restarted(serve, pool):
    calls = serve(SOURCE, num_parallel_workers=2)
    answer, pid = ask_wait(calls, pool)
    os.kill(pid, signal.SIGTERM)
    eventually(lambda: described(calls)["num_workers"] == 1)
    assert int(works(calls, "pid")["pid"]) != pid
    go()
    assert answer.result(PATIENCE)[0]["pid"] == pid
    eventually(lambda: not is_alive(pid))
    assert works(calls, "pid")
    assert len(workers(os.getpid())) == 1
    assert is_ready(calls)
    assert logged("wait") == [pid]


def described(calls: Calls) -> dict:
    (one,) = json.loads(calls.http_call("GET", "/servables")[1])["servables"]
    return one


def test_when_the_last_worker_is_told_to_end_the_server_ends(serve, started):
    calls = serve(SOURCE)
    (pid,) = workers(os.getpid())
    os.kill(pid, signal.SIGINT)
    unavailable = "Grpc Error, (14, 'unavailable')"
    client = calls.client("toy", "pid")
    eventually(lambda: unavailable in str(client.infer({"x": 1})))
    eventually(lambda: not started())


def test_a_stopped_worker_is_ended_after_its_grace(serve, pool):
    """It does not answer the wish to leave: it must not hold up the rest for ever."""
    calls = serve(SOURCE)
    (pid,) = workers(os.getpid())
    os.kill(pid, signal.SIGSTOP)
    answer = pool.submit(calls.client("toy", "pid").infer, {"x": 1})
    server.stop()
    assert not is_alive(pid)
    assert "error" in answer.result(PATIENCE)


def test_stop_answers_pending_requests_and_ends_restarting_workers(serve, pool, started):
    """Stopped in the middle of a restart: no worker, no zombie, no open channel is left."""
    slow = "if os.path.exists('slow'): time.sleep(600)\n"
    calls = serve(SOURCE + slow)
    Path("slow").touch()
    (pid,) = workers(os.getpid())
    os.kill(pid, signal.SIGKILL)
    new_worker(pid)
    server.stop()
    eventually(lambda: not started())
    assert "unavailable" in calls.client("toy", "pid").infer({"x": 1})["error"]


def test_stop_answers_requests_that_run(serve, pool, started):
    calls = serve(SOURCE)
    answer, _ = ask_wait(calls, pool)
    by_rest = pool.submit(calls.post, "toy", "pid", {"x": 1})
    eventually(lambda: b"_in_flight 2.0" in metrics(calls))
    stopper = threading.Thread(target=server.stop)
    stopper.start()
    assert "servable is not available" in answer.result(PATIENCE)["error"]
    assert "servable is not available" in by_rest.result(PATIENCE)["error_msg"]
    go()
    stopper.join(PATIENCE)
    assert not started()


def test_a_worker_that_leaves_runs_its_exit_handlers(serve):
    serve(SOURCE + "import atexit\natexit.register(lambda: open('bye', 'w').close())\n")
    server.stop()
    assert Path("bye").exists()


def test_the_port_is_free_after_a_server_is_stopped(serve):
    calls = serve(SOURCE)
    server.stop()
    again = f"127.0.0.1:{calls.http}"
    server.start_grpc_server(again)
    server.stop()
    assert free_port()
