"""A user's script and its signals: what runs finishes, what waits outside is refused, all ends."""

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.e2e.fragile import HOLD
from tests.e2e.harness import (
    Calls,
    children,
    eventually,
    is_alive,
    workers,
    write_servable,
)
from tests.ports import free_port
from tests.waiting import PATIENCE

SOURCE = """
@method("y")
def double(x):
    return x * 2

@method("y")
def wait(x):
    open(f"waiting-{os.getpid()}", "w").close()
    while not os.path.exists("go"):
        time.sleep(0.005)
    return x
"""
STUCK = f"""{HOLD}
import subprocess
started = subprocess.Popen(["sleep", "600"])  # every worker's

@method("y")
def stick(x):
    open(f"sticking-{{os.getpid()}}", "w").close()
    hold()
"""
SHORT = """
from mindspore_serving.server.master import context
context.set_shutdown_timeout(3)
"""
LATE = """
from mindspore_serving.server.master import context
context.set_shutdown_delay(20)  # at its end the test has gone on
"""
SCRIPT = """
from mindspore_serving import server
server.start_servables(server.ServableStartConfig({directory!r}, "toy", num_parallel_workers={n}))
server.start_grpc_server("127.0.0.1:{grpc}")
server.start_restful_server("127.0.0.1:{http}")
"""


@pytest.fixture
def start(tmp_path, run_script):
    """start(n, more): a script with n workers that has started; `more` follows in it."""
    opened = []

    def run(n: int = 1, more: str = "", source: str = SOURCE):
        write_servable(tmp_path, "toy", source)
        calls = Calls(f"127.0.0.1:{free_port()}", free_port())
        opened.append(calls)
        text = SCRIPT.format(
            directory=str(tmp_path), n=n, grpc=calls.grpc.partition(":")[2], http=calls.http
        )
        return run_script(text + more), calls

    yield run
    for calls in opened:
        calls.close()


@pytest.fixture
def pool():
    with ThreadPoolExecutor(4) as threads:
        yield threads


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda n: n.name)
def test_a_signal_ends_an_idle_server_with_status_0_and_without_a_trace(start, number):
    script, calls = start(2)
    script.says("RESTful server start success")
    pids = workers(script.pid)
    assert len(pids) == 2
    assert calls.client("toy", "double").infer({"x": 4})[0]["y"] == 8
    script.send(number)
    assert script.status() == 0
    assert not any(map(is_alive, pids))
    assert "Traceback" not in script.text
    assert "unavailable" in calls.client("toy", "double").infer({"x": 4})["error"]


@pytest.mark.parametrize(
    "number",
    [pytest.param(signal.SIGINT, marks=pytest.mark.long), signal.SIGTERM],
    ids=lambda n: n.name,
)
def test_requests_that_run_are_finished_and_new_connections_refused(start, pool, tmp_path, number):
    script, calls = start()
    script.says("RESTful server start success")
    by_grpc = pool.submit(calls.client("toy", "wait").infer, {"x": 1})
    by_rest = pool.submit(calls.post, "toy", "wait", {"x": 1})
    worker_that(tmp_path, "waiting")
    eventually(lambda: b"in_flight" in metrics(calls) and b"in_flight 2.0" in flat(metrics(calls)))
    script.send(number)
    eventually(lambda: refused(calls))
    (tmp_path / "go").touch()
    assert by_grpc.result(PATIENCE)[0]["y"] == 1
    assert by_rest.result(PATIENCE) == {"instances": [{"y": 1}]}
    assert script.status() == 0
    assert "Traceback" not in script.text


def test_requests_that_never_end_are_answered_before_the_end_comes(start, pool, tmp_path):
    source = SOURCE.replace("while not", "while 1 or not")
    script, calls = start(source=source, more=SHORT)
    script.says("RESTful server start success")
    by_grpc = pool.submit(calls.client("toy", "wait").infer, {"x": 1})
    by_rest = pool.submit(calls.http_call, "POST", "/model/toy:wait", b'{"instances":{"x":1}}')
    worker_that(tmp_path, "waiting")
    eventually(lambda: b"in_flight 2.0" in flat(metrics(calls)))
    pids = workers(script.pid)
    script.send(signal.SIGTERM)
    assert "the server is stopping" in by_grpc.result(PATIENCE)["error"]
    assert b"the server is stopping" in by_rest.result(PATIENCE)[1]
    assert script.status() == 0
    assert not any(map(is_alive, pids))


def test_workers_that_are_stuck_do_not_hold_up_the_end(start, pool, tmp_path):
    """One holds the interpreter, and one is stopped."""
    script, calls = start(2, source=SOURCE + STUCK, more=SHORT)
    script.says("RESTful server start success")
    pids = workers_and_children(script.pid)
    holds = pool.submit(calls.client("toy", "stick").infer, {"x": 1})
    (other,) = {*workers(script.pid)} - {worker_that(tmp_path, "sticking")}
    os.kill(other, signal.SIGSTOP)
    stopped = pool.submit(calls.client("toy", "double").infer, {"x": 1})
    eventually(lambda: b"in_flight 2.0" in flat(metrics(calls)))
    script.send(signal.SIGTERM)
    for stuck in (holds, stopped):
        assert "the server is stopping" in stuck.result(PATIENCE)["error"]
    assert script.status() == 0
    eventually(lambda: not any(map(is_alive, pids)))  # children are not the server's to wait for


def workers_and_children(pid: int) -> list[int]:
    """The workers of the server `pid`, and what each of them started."""
    found = workers(pid)
    started = [child for worker in found for child in children(worker)]
    assert len(started) == len(found)
    return found + started


def worker_that(directory: Path, word: str) -> int:
    """The only worker that has left a file of this word, once there is one."""
    (file,) = eventually(lambda: [*directory.glob(f"{word}-*")])
    return int(file.name.rpartition("-")[2])


def metrics(calls: Calls) -> bytes:
    return calls.http_call("GET", "/metrics")[1]


def flat(text: bytes) -> bytes:
    import re

    return re.sub(rb"\{[^}]*\}", b"", text)


def refused(calls: Calls) -> bool:
    try:
        calls.http_call("GET", "/health")
    except ConnectionRefusedError:
        return True
    except ConnectionError:
        return False
    return False


def test_a_later_second_signal_ends_the_server_at_once(start, pool, tmp_path):
    script, calls = start()
    script.says("RESTful server start success")
    answer = pool.submit(calls.client("toy", "wait").infer, {"x": 1})
    worker_that(tmp_path, "waiting")
    pids = workers(script.pid)
    script.send(signal.SIGTERM)
    eventually(lambda: refused(calls))

    def ended() -> bool:
        script.send(signal.SIGTERM)
        return script.process.poll() is not None

    eventually(ended)
    assert script.status() == 128 + signal.SIGTERM
    assert "error" in answer.result(PATIENCE)
    eventually(lambda: not any(map(is_alive, pids)))


def test_a_killed_master_leaves_no_worker_and_none_of_their_children(start, pool, tmp_path):
    """One waits, one holds the interpreter, and one is stopped."""
    script, calls = start(3, source=SOURCE + STUCK)
    script.says("RESTful server start success")
    pids = workers_and_children(script.pid)
    pool.submit(calls.client("toy", "stick").infer, {"x": 1})
    holds = worker_that(tmp_path, "sticking")
    answer = pool.submit(calls.client("toy", "wait").infer, {"x": 1})
    waits = worker_that(tmp_path, "waiting")
    (other,) = {*workers(script.pid)} - {holds, waits}
    os.kill(other, signal.SIGSTOP)
    assert all(map(is_alive, pids))
    script.send(signal.SIGKILL)
    eventually(lambda: not any(map(is_alive, pids)))
    assert "error" in answer.result(PATIENCE)


def test_a_signal_during_start_up_leaves_no_worker(start, tmp_path):
    source = SOURCE + "open('loading', 'w').close()\ntime.sleep(600)\n"
    for number in (signal.SIGTERM, signal.SIGINT):
        script, _ = start(source=source)
        eventually((tmp_path / "loading").exists)
        pids = children(script.pid)
        script.send(number)
        assert script.status() in (0, 1, 128 + number, -number)
        assert not any(map(is_alive, pids))
        assert "success" not in script.text
        (tmp_path / "loading").unlink()


def test_ending_a_worker_during_loading_is_a_start_error(start, tmp_path):
    script, _ = start(source=SOURCE + "open('loading', 'w').close()\ntime.sleep(600)\n")
    eventually((tmp_path / "loading").exists)
    os.kill(workers(script.pid)[0], signal.SIGTERM)
    assert script.status() == 1
    assert "RuntimeError" in script.text or "StartError" in script.text
    assert "ended by SIGINT or SIGTERM" in script.text


def test_a_script_that_still_runs_is_interrupted(start):
    more = """
import time
try:
    print("busy", flush=True)
    time.sleep(600)
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""
    script, _ = start(more=more)
    script.says("busy")
    script.send(signal.SIGINT)
    script.says("interrupted")
    assert script.status() == 0


def test_a_script_that_calls_stop_ends_by_itself(start):
    script, _ = start(more="server.stop()\nprint('done', flush=True)\n")
    assert script.status() == 0
    assert script.text.endswith("done\n")


def test_a_script_that_fails_afterwards_still_serves_until_a_signal(start):
    """As always: the servables were started, and they run until somebody ends them."""
    script, calls = start(more="raise ValueError('later')\n")
    script.says("ValueError: later")
    assert calls.client("toy", "double").infer({"x": 4})[0]["y"] == 8
    script.send(signal.SIGTERM)
    assert script.status() in (0, 1)


@pytest.mark.parametrize("path", ["/readyz", "/readyz/toy", "/v2/health/ready"])
def test_with_a_delay_a_stopping_server_reports_not_ready_and_answers(start, path):
    script, calls = start(more=LATE + "print('started', flush=True)\n")
    script.says("started")
    eventually(lambda: calls.http_call("GET", path)[0] == 200)
    script.send(signal.SIGTERM)
    eventually(lambda: calls.http_call("GET", path)[0] != 200)
    assert calls.client("toy", "double").infer({"x": 4})[0]["y"] == 8
    assert calls.post("toy", "double", [{"x": 4}])["instances"] == [{"y": 8}]
    assert calls.http_call("GET", "/livez")[0] == 200


def test_a_script_whose_start_fails_ends_with_a_readable_error(start):
    script, _ = start(source="raise ValueError('no such luck')")
    assert script.status() == 1
    assert script.text.rstrip().splitlines()[-1].count("no such luck") == 1
