"""Workers that die: who is told, who is asked instead, what comes back to life, what is left."""

import json
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from mindspore_serving import server
from tests.e2e.harness import (
    Calls,
    children,
    config,
    eventually,
    free_port,
    is_alive,
    serving,
    workers,
    write_servable,
    zombies,
)

SOURCE = """
import signal, subprocess, sys

def log(word):
    with open("calls.txt", "a") as file:
        file.write(f"{word} {os.getpid()}\\n")

def who(x):
    return os.getpid()
@register.register_method(output_names=["pid"])
def pid(x):
    return register.add_stage(who, x, outputs_count=1)

def slow_who(x):
    time.sleep(0.002)
    return os.getpid()
@register.register_method(output_names=["pid"])
def share(x):
    return register.add_stage(slow_who, x, outputs_count=1)

def wait_for_file(x):
    log("wait")
    end = time.monotonic() + 20
    while not os.path.exists("go") and time.monotonic() < end:
        time.sleep(0.005)
    return os.getpid()
@register.register_method(output_names=["pid"])
def wait(x):
    return register.add_stage(wait_for_file, x, outputs_count=1)

def die_now(x):
    log("die")
    os._exit(int(x))
@register.register_method(output_names=["y"])
def die(x):
    return register.add_stage(die_now, x, outputs_count=1)

def start_child(x):
    return subprocess.Popen(["sleep", "600"]).pid
@register.register_method(output_names=["pid"])
def child(x):
    return register.add_stage(start_child, x, outputs_count=1)

def fork_child(x):
    pid = os.fork()
    while not pid:
        time.sleep(600)
    return pid
@register.register_method(output_names=["pid"])
def fork(x):
    return register.add_stage(fork_child, x, outputs_count=1)
"""


def logged(word: str) -> list[int]:
    """The workers in which something that logs `word` was begun."""
    lines = Path("calls.txt").read_text().splitlines() if Path("calls.txt").exists() else []
    return [int(line.split()[1]) for line in lines if line.split()[0] == word]


def go() -> None:
    Path("go").touch()


def ask_wait(calls: Calls, pool: ThreadPoolExecutor):
    """A request that hangs in a worker: the future of its answer, and the worker."""
    before = len(logged("wait"))
    future = pool.submit(calls.client("toy", "wait").infer, {"x": 1})
    eventually(lambda: len(logged("wait")) > before)
    return future, logged("wait")[-1]


def new_worker(old: int) -> int:
    """The worker that replaced `old`, the only one."""
    return eventually(lambda: [pid for pid in workers(os.getpid()) if pid != old and is_alive(pid)])[0]


def is_ready(calls: Calls) -> bool:
    return calls.http_call("GET", "/health")[0] == 200


@pytest.fixture
def pool():
    with ThreadPoolExecutor(8) as threads:
        yield threads
        server.stop()  # whoever still waits in a thread gets an answer


def test_instances_of_one_request_are_shared_by_the_replicas(serve):
    calls = serve(SOURCE, num_parallel_workers=2)
    results = calls.client("toy", "share").infer([{"x": n} for n in range(40)])
    assert {int(r["pid"]) for r in results} == set(workers(os.getpid()))
    by_rest = calls.post("toy", "share", [{"x": n} for n in range(40)])["instances"]
    assert {r["pid"] for r in by_rest} == set(workers(os.getpid()))


def test_a_killed_worker_that_was_alone_fails_its_request_at_once_and_comes_back(serve, pool):
    calls = serve(SOURCE)
    answer, pid = ask_wait(calls, pool)
    queued = [pool.submit(calls.client("toy", "wait").infer, {"x": n}) for n in range(5)]
    killed = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    assert "servable(toy) method(wait)" in answer.result(10)["error"]
    assert "died" in answer.result()["error"]
    for future in queued:
        assert "error" in future.result(10)
    assert time.monotonic() - killed < 1.0
    replacement = new_worker(pid)
    go()
    result = eventually(lambda: works(calls, "wait"))
    assert result["pid"] == replacement
    assert not zombies(os.getpid())


def works(calls: Calls, method: str) -> dict | None:
    """The result of a call if it succeeds."""
    result = calls.client("toy", method).infer({"x": 1})
    return None if "error" in result else result[0]


def test_a_request_of_a_killed_worker_is_answered_by_the_other(serve, pool):
    calls = serve(SOURCE, num_parallel_workers=2)
    answer, pid = ask_wait(calls, pool)
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: len(logged("wait")) == 2)
    other = logged("wait")[1]
    assert other != pid
    go()
    assert answer.result(10)[0]["pid"] == other
    eventually(lambda: is_ready(calls))
    assert len(workers(os.getpid())) == 2
    assert not zombies(os.getpid())


def test_without_retry_a_request_of_a_killed_worker_fails(serve, pool):
    calls = serve(SOURCE, num_parallel_workers=2, retry=False)
    answer, pid = ask_wait(calls, pool)
    os.kill(pid, signal.SIGKILL)
    assert "died" in answer.result(5)["error"]
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
    grandchild = int(works(calls, "fork")["pid"])
    answer, pid = ask_wait(calls, pool)
    os.kill(pid, signal.SIGKILL)
    assert "died" in answer.result(3)["error"]
    eventually(lambda: not is_alive(grandchild))
    go()
    eventually(lambda: works(calls, "wait"))


def test_what_a_worker_started_ends_with_it(serve):
    calls = serve(SOURCE)
    first = [int(works(calls, method)["pid"]) for method in ("child", "fork")]
    os.kill(int(works(calls, "pid")["pid"]), signal.SIGKILL)
    eventually(lambda: not any(map(is_alive, first)))
    eventually(lambda: works(calls, "pid"))
    second = [int(works(calls, method)["pid"]) for method in ("child", "fork")]
    server.stop()
    eventually(lambda: not any(map(is_alive, second)))
    assert not children(os.getpid())


def test_a_worker_that_always_dies_is_given_up_with_the_reason(tmp_path, capfd):
    """While a servable beside it goes on."""
    write_servable(tmp_path, "good", SOURCE)
    write_servable(tmp_path, "toy", SOURCE + "if os.path.exists('doom'): os._exit(9)\n")
    with serving(tmp_path, config(tmp_path, "good"), config(tmp_path, "toy")) as calls:
        Path("doom").touch()
        os.kill(int(works(calls, "pid")["pid"]), signal.SIGKILL)
        client = calls.client("toy", "pid")
        eventually(lambda: "its workers have ended" in client.infer({"x": 1})["error"])
        error = client.infer({"x": 1})["error"]
        assert "servable(toy) method(pid)" in error
        assert "servable is not available" in error
        assert calls.client("good", "pid").infer({"x": 1})[0]["pid"] in workers(os.getpid())
        assert len(children(os.getpid())) == 1
        assert calls.http_call("GET", "/health")[0] == 503
    log = capfd.readouterr().err
    assert "is given up" in log
    assert "exit status 9" in log


def test_requests_go_on_while_a_replica_dies_again_and_again(serve, pool):
    calls = serve(SOURCE, num_parallel_workers=2)
    stop = threading.Event()

    def ask() -> int:
        client, count = calls.client("toy", "pid"), 0
        while not stop.is_set():
            assert "error" not in client.infer({"x": 1})
            count += 1
        return count

    counts = [pool.submit(ask) for _ in range(3)]
    for _ in range(3):
        os.kill(workers(os.getpid())[0], signal.SIGKILL)
        eventually(lambda: len(live_workers()) == 2 and is_ready(calls))
    stop.set()
    assert sum(count.result(10) for count in counts) > 50
    assert not zombies(os.getpid())


def live_workers() -> list[int]:
    return [pid for pid in workers(os.getpid()) if is_alive(pid)]


def test_a_worker_that_is_told_to_end_finishes_and_is_not_restarted(serve, pool):
    calls = serve(SOURCE, num_parallel_workers=2)
    answer, pid = ask_wait(calls, pool)
    os.kill(pid, signal.SIGTERM)
    eventually(lambda: described(calls)["num_workers"] == 1)
    assert int(works(calls, "pid")["pid"]) != pid
    go()
    assert answer.result(10)[0]["pid"] == pid
    eventually(lambda: not is_alive(pid))
    assert works(calls, "pid")
    assert len(workers(os.getpid())) == 1
    assert logged("wait") == [pid]


def described(calls: Calls) -> dict:
    (one,) = json.loads(calls.http_call("GET", "/servables")[1])["servables"]
    return one


def test_when_the_last_worker_is_told_to_end_the_server_ends(serve):
    calls = serve(SOURCE)
    (pid,) = workers(os.getpid())
    os.kill(pid, signal.SIGINT)
    unavailable = "Grpc Error, (14, 'unavailable')"
    client = calls.client("toy", "pid")
    eventually(lambda: unavailable in str(client.infer({"x": 1})), 5)
    eventually(lambda: not children(os.getpid()))


def test_a_stopped_worker_is_ended_after_its_grace(serve, pool):
    """It does not answer the wish to leave: it must not hold up the rest for ever."""
    calls = serve(SOURCE)
    (pid,) = workers(os.getpid())
    os.kill(pid, signal.SIGSTOP)
    answer = pool.submit(calls.client("toy", "pid").infer, {"x": 1})
    server.stop()
    assert not is_alive(pid)
    assert "error" in answer.result(10)


def test_stop_answers_what_is_pending_and_ends_what_restarts(serve, pool):
    """Stopped in the middle of a restart: no worker, no zombie, no open channel is left."""
    slow = "if os.path.exists('slow'): time.sleep(30)\n"
    calls = serve(SOURCE + slow)
    Path("slow").touch()
    (pid,) = workers(os.getpid())
    os.kill(pid, signal.SIGKILL)
    new_worker(pid)
    started = time.monotonic()
    server.stop()
    assert time.monotonic() - started < 5
    eventually(lambda: not children(os.getpid()), 5)
    assert "unavailable" in calls.client("toy", "pid").infer({"x": 1})["error"]


def test_stop_answers_requests_that_run(serve, pool):
    calls = serve(SOURCE)
    answer, _ = ask_wait(calls, pool)
    by_rest = pool.submit(calls.post, "toy", "pid", {"x": 1})
    stopper = threading.Thread(target=server.stop)
    stopper.start()
    assert "servable is not available" in answer.result(5)["error"]
    assert "servable is not available" in by_rest.result(5)["error_msg"]
    go()
    stopper.join(20)
    assert not children(os.getpid())


def test_a_worker_that_leaves_runs_its_exit_handlers(serve):
    serve(SOURCE + "import atexit\natexit.register(lambda: open('bye', 'w').close())\n")
    server.stop()
    assert Path("bye").exists()


def test_a_failed_restart_tells_why_until_it_is_repaired(tmp_path):
    write_servable(tmp_path, "toy", SOURCE)
    good = (tmp_path / "toy" / "servable_config.py").read_text()
    with serving(tmp_path, config(tmp_path, "toy")) as calls:
        (tmp_path / "toy" / "servable_config.py").write_text("raise ValueError('half edited')")
        os.kill(workers(os.getpid())[0], signal.SIGKILL)
        eventually(lambda: "error" in calls.client("toy", "pid").infer({"x": 1}))
        (tmp_path / "toy" / "servable_config.py").write_text(good)
        assert eventually(lambda: works(calls, "pid"))


def test_the_port_is_free_for_others_when_a_server_is_stopped(serve):
    calls = serve(SOURCE)
    server.stop()
    again = f"127.0.0.1:{calls.http}"
    server.start_grpc_server(again)
    server.stop()
    assert free_port()
