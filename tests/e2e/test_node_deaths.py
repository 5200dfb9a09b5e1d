"""Workers of other machines that die, hang or lose their machine or their server."""

import http.client
import json
import signal

import pytest

from mindspore_serving import server
from mindspore_serving.master import supervisor
from tests.cli.commands import SERVING, Command
from tests.e2e.fragile import SOURCE, ask_wait, go, logged
from tests.e2e.harness import config, eventually, memory, workers, write_servable
from tests.e2e.machines import TOKEN, all_end, answered, kill, serve, who
from tests.llm import chatty
from tests.ports import free_port
from tests.waiting import PATIENCE


def test_a_worker_of_another_machine_that_is_killed_is_replaced(start_cluster, pool):
    made = start_cluster(local_slots=0)
    machine = made.join("one", "--slots", "2")
    serve(made, num_parallel_workers=2)
    first, victim = ask_wait(made.calls, pool)
    kill(victim)
    eventually(lambda: len(set(logged("wait"))) == 2)  # it runs again, elsewhere
    go()
    assert answered(first) != victim
    eventually(lambda: len(made.pids()) == 2)
    assert victim not in machine.workers()


def test_a_worker_that_stands_still_is_found_by_its_heartbeats(start_cluster):
    made = start_cluster(local_slots=0)
    machine = made.join("one", "--slots", "2")
    serve(made, heartbeat_timeout=1)
    (old,) = machine.workers()
    kill(old, signal.SIGSTOP)
    eventually(lambda: made.pids() not in ([], [old]))
    assert who(made) != old
    all_end([old])


def test_a_stage_that_takes_too_long_is_ended(start_cluster):
    made = start_cluster(local_slots=0)
    made.join("one", "--slots", "2")
    serve(made, stage_timeout=1)
    error = made.calls.client("toy", "wait").infer({"x": 1})["error"]
    assert "stage 1 ran for over 1 s (stage_timeout)" in error
    assert who(made) in eventually(made.pids)


def test_a_request_that_kills_workers_costs_no_other(start_cluster, pool):
    made = start_cluster(local_slots=0)
    made.join("one", "--slots", "4")
    serve(made, num_parallel_workers=2)
    deadly = pool.submit(made.calls.client("toy", "die").infer, {"x": 3})
    share = made.calls.client("toy", "share").infer
    others = [pool.submit(share, [{"x": 1}] * 20) for _ in range(5)]
    assert "died" in deadly.result()["error"]
    assert all("error" not in one.result() for one in others)
    assert len(logged("die")) == 2  # once more, by itself


def test_when_a_machine_is_lost_its_workers_run_elsewhere(start_cluster, pool):
    made = start_cluster(local_slots=0)
    one = made.join("one", "--slots", "2")
    serve(made)
    first, pid = ask_wait(made.calls, pool)
    two = made.join("two", "--slots", "2")
    kill(one.pid)
    eventually(lambda: len(set(logged("wait"))) == 2)
    go()
    assert answered(first) in two.workers()
    assert made.ready() == {"two": 1}
    all_end([pid])


def test_a_stream_ends_with_an_error_when_its_machine_is_lost(start_cluster):
    made = start_cluster(local_slots=0)
    one = made.join("one")
    chatty.build(made.directory, context=65536)
    options = {"dtype": "f32", "kv_cache_memory": 64 << 20, "max_num_seqs": 2}
    server.start_servables(config(made.directory, "chatty", llm_options=options))
    two = made.join("two")  # before the stream, which would be over on a slow machine
    body = {"model": "chatty", "prompt": "Once", "stream": True, "ignore_eos": True}
    connection = http.client.HTTPConnection("127.0.0.1", made.calls.http, timeout=PATIENCE)
    long = json.dumps({**body, "max_tokens": 60_000})
    connection.request("POST", "/v1/completions", long, {"content-type": "application/json"})
    reply = connection.getresponse()
    assert reply.readline().startswith(b"data: {")
    kill(one.pid)
    assert b'"error"' in reply.read()
    connection.close()
    eventually(lambda: made.ready("chatty") == {"two": 1})
    short = json.dumps({**body, "max_tokens": 4})
    _, text = made.calls.http_call(
        "POST", "/v1/completions", short, {"content-type": "application/json"}
    )
    assert text.endswith(b"data: [DONE]\n\n")
    assert two.workers()


def test_requests_that_may_run_only_once_fail_with_their_machine(start_cluster, pool):
    made = start_cluster(local_slots=0)
    one = made.join("one")
    serve(made, retry=False)
    first, _ = ask_wait(made.calls, pool)
    two = made.join("two")
    kill(one.pid)
    assert "died" in first.result()["error"]
    eventually(lambda: made.ready() == {"two": 1})
    assert who(made) in two.workers()
    assert len(logged("wait")) == 1


def test_without_any_place_requests_are_refused_until_a_machine_joins(start_cluster, monkeypatch):
    monkeypatch.setattr(supervisor, "PATIENCE", 0.5)
    made = start_cluster(local_slots=0)
    one = made.join("one")
    serve(made)
    kill(one.pid)
    client = made.calls.client("toy", "pid")
    error = client.infer({"x": 1})["error"]  # the first one may have waited
    assert "its workers have ended (no machine has a place for them)" in error
    assert "no machine has a place for them" in client.infer({"x": 1})["error"]
    assert made.calls.http_call("GET", "/health")[0] == 503
    two = made.join("two")
    eventually(lambda: made.ready() == {"two": 1})
    assert who(made) in two.workers()
    assert made.calls.http_call("GET", "/health")[0] == 200


def test_a_machine_that_stands_still_is_lost_within_seconds_and_comes_back(start_cluster):
    made = start_cluster(local_slots=0)
    one = made.join("one")
    serve(made)
    old = one.workers()
    two = made.join("two")
    kill(one.pid, signal.SIGSTOP)
    eventually(lambda: made.ready() == {"two": 1})
    assert who(made) in two.workers()
    kill(one.pid, signal.SIGCONT)
    all_end(old)
    kill(two.pid)
    eventually(lambda: made.ready() == {"one": 1})
    assert who(made) in one.workers()


def test_a_machine_that_is_told_to_go_finishes_and_its_workers_move(start_cluster, pool):
    made = start_cluster(local_slots=0)
    one = made.join("one")
    serve(made)
    first, pid = ask_wait(made.calls, pool)
    two = made.join("two")
    one.send(signal.SIGTERM)
    one.says("Leaving")
    go()
    assert answered(first) == pid  # it was not run a second time
    assert one.status() == 0
    eventually(lambda: made.ready() == {"two": 1})
    assert who(made) in two.workers()
    all_end([pid])


@pytest.fixture
def commands(stopped):
    """The command lines of a machine, and of the server that it joins on an address that stays."""
    write_servable(stopped, "toy", SOURCE)
    (stopped / "token").write_text(TOKEN)
    (stopped / "token").chmod(0o600)
    where, port = f"127.0.0.1:{free_port()}", str(free_port())
    secret = ["--token-file", "token", "--insecure"]
    serve = ["serve", "toy", "--worker-address", where, *secret, "--local-slots", "0"]
    serve += ["--http-port", port, "--no-grpc"]
    join = ["worker", "--join", where, "--name", "one", *secret]
    return [*SERVING, *join], [*SERVING, *serve]


def test_workers_end_with_a_killed_server_and_their_node_joins_the_next(commands, stopped):
    join, serve = commands
    with Command(join, stopped) as machine:
        with Command(serve, stopped) as first:
            first.says("Ready")
            old = workers(machine.pid)
            assert old
            kill(first.pid)
            all_end(old)
        with Command(serve, stopped) as second:
            second.says("Ready")
            assert workers(machine.pid)
            second.send(signal.SIGTERM)
            assert second.status() == 0
        eventually(lambda: not workers(machine.pid))
        machine.send(signal.SIGTERM)
        assert machine.status() == 0


def test_a_node_of_a_stopped_server_ends_its_workers_and_rejoins(commands, stopped):
    join, serve = commands
    with Command(join, stopped) as machine, Command(serve, stopped) as master:
        master.says("Ready")
        old = workers(machine.pid)
        kill(master.pid, signal.SIGSTOP)
        machine.says("lost the master: no sign of life for 8 s")
        all_end(old)
        kill(master.pid, signal.SIGCONT)
        eventually(lambda: workers(machine.pid))
        eventually(lambda: machine.text.count("Joined ") == 2)


def test_nothing_stays_behind_when_the_server_stops(start_cluster, started):
    made = start_cluster()
    one = made.join("one")
    serve(made, num_parallel_workers=4)
    pids = made.pids()
    assert len(pids) == 4
    server.stop()
    all_end(pids)
    one.send(signal.SIGTERM)
    assert one.status() == 0


def test_a_worker_that_cannot_load_on_a_node_starts_on_another(start_cluster):
    made = start_cluster(local_slots=0)
    one = made.join("one", "--slots", "1")
    serve(made)
    empty = made.directory / "empty"
    empty.mkdir()
    made.join("two", "--servables", str(empty))
    made.join("three")
    kill(one.pid)
    eventually(lambda: made.ready() == {"three": 1})


def test_autoscaled_workers_are_added_on_other_machines(start_cluster, pool):
    made = start_cluster(local_slots=1)
    made.join("one")
    serve(made, num_parallel_workers=0, max_workers=2, requests_per_worker=1)
    requests = [pool.submit(made.calls.client("toy", "wait").infer, {"x": 1}) for _ in range(2)]
    eventually(lambda: made.ready() == {"": 1, "one": 1})
    go()
    assert all("error" not in one.result() for one in requests)


def test_a_large_answer_is_not_collected_on_its_way(start_cluster):
    made = start_cluster(local_slots=0)
    one = made.join("one")
    write_servable(
        made.directory,
        "toy",
        "def grow(x):\n    return np.zeros(int(x), np.uint8)\n"
        "@register.register_method(output_names=['y'])\n"
        "def zeros(x):\n    return register.add_stage(grow, x, outputs_count=1)\n",
    )
    server.start_servables(config(made.directory, "toy"))
    client = made.calls.client("toy", "zeros")
    client.infer({"x": 1})
    before = memory(one.pid)
    (result,) = client.infer({"x": 90_000_000})
    assert result["y"].nbytes == 90_000_000
    assert memory(one.pid) - before < 30_000_000
