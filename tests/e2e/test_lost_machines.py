"""Machines that workers run on, and servers, that are lost, stand still or go."""

import http.client
import json
import signal

import pytest

from mindspore_serving import server
from mindspore_serving.cluster import node_connection
from mindspore_serving.master import supervisor
from tests.cli.commands import SERVING, Command
from tests.e2e.fragile import SOURCE, ask_wait, go, logged
from tests.e2e.harness import config, eventually, workers, write_servable
from tests.e2e.machines import TOKEN, all_end, answered, kill, serve, who
from tests.llm import chatty
from tests.ports import free_port
from tests.waiting import PATIENCE


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


def test_a_machine_that_stands_still_is_lost_within_seconds_and_comes_back(
    start_cluster, monkeypatch
):
    monkeypatch.setattr(node_connection, "SILENCE_SECONDS", 4.0)  # the server's, not a machine's
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
    serve(made, num_parallel_workers=2)
    pids = made.pids()
    assert len(pids) == 2
    server.stop()
    all_end(pids)
    one.send(signal.SIGTERM)
    assert one.status() == 0
