"""Workers on other machines, which join by hand: where they run, and who may join."""

import json
import os

import numpy as np
import pytest

from mindspore_serving import server
from tests.cli.commands import SERVING, Command, run
from tests.e2e.authority import Authority
from tests.e2e.harness import config, write_servable
from tests.e2e.machines import TOKEN, serve, who
from tests.llm import chatty
from tests.ports import free_port

WITH_MODEL = """
def add(x1, x2):
    return x1 + x2
model = register.declare_model(add, model_format="Python")

def double(x):
    return x * 2, os.getpid()
@register.register_method(output_names=["y", "pid"])
def staged(x1, x2):
    y = register.add_stage(model, x1, x2, outputs_count=1)
    return register.add_stage(double, y, outputs_count=2)
"""


@pytest.fixture
def ours(tmp_path):
    return Authority(tmp_path, "ours")


# --- where workers run ------------------------------------------------------------------------


def test_workers_are_spread_over_this_machine_and_those_that_joined(start_cluster):
    made = start_cluster()
    machines = [made.join("one"), made.join("two")]
    serve(made, num_parallel_workers=3)
    assert made.ready() == {"": 1, "one": 1, "two": 1}
    for machine in machines:
        assert sorted(machine.workers()) == sorted(
            row["pid"] for row in made.rows() if row["node"] == machine.name
        )
    results = made.calls.client("toy", "share").infer([{"x": n} for n in range(60)])
    assert {int(one["pid"]) for one in results} == set(made.pids())


def test_a_worker_waits_until_a_machine_with_room_joins(start_cluster, pool):
    made = start_cluster(local_slots=0)
    started = pool.submit(serve, made, num_parallel_workers=2)
    made.join("one", "--slots", "1")
    assert not started.done()
    made.join("two", "--slots", "1")
    started.result()
    assert made.ready() == {"one": 1, "two": 1}


def test_large_requests_and_answers_pass(start_cluster):
    made = start_cluster(local_slots=0)
    made.join("one")
    write_servable(
        made.directory,
        "toy",
        "def twice(x):\n    return x * 2\n"
        "@register.register_method(output_names=['y'])\n"
        "def double(x):\n    return register.add_stage(twice, x, outputs_count=1)\n",
    )
    server.start_servables(config(made.directory, "toy"))
    client = made.calls.client("toy", "double")
    for size in (1, 3_000_000, 20, 6_000_000):
        array = np.arange(size, dtype=np.float32)
        (result,) = client.infer({"x": array})
        np.testing.assert_array_equal(result["y"], array * 2)


def test_a_language_model_streams_from_another_machine(start_cluster):
    made = start_cluster(local_slots=0)
    made.join("one")
    chatty.build(made.directory)
    options = {"dtype": "f32", "kv_cache_memory": 64 << 20, "max_num_seqs": 2}
    server.start_servables(config(made.directory, "chatty", llm_options=options))
    body = {"model": "chatty", "prompt": "Once", "max_tokens": 8, "stream": True, "temperature": 0}
    status, text = made.calls.http_call(
        "POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"}
    )
    assert status == 200
    events = [line for line in text.decode().splitlines() if line.startswith("data: ")]
    assert len(events) > 2
    assert events[-1] == "data: [DONE]"
    assert made.ready("chatty") == {"one": 1}


def test_a_machine_has_its_own_directory_of_servables_and_its_own_devices(start_cluster):
    made = start_cluster(local_slots=0)
    source = "def name(x):\n    return {word!r} + os.environ['SERVING_DEVICE_ID']\n" + (
        "@register.register_method(output_names=['y'])\n"
        "def where(x):\n    return register.add_stage(name, x, outputs_count=1)\n"
    )
    write_servable(made.directory, "toy", source.format(word="master's "))
    there = made.directory / "there"
    there.mkdir()
    write_servable(there, "toy", source.format(word="node's "))
    made.join("one", "--servables", str(there), "--device-ids", "5,7")
    server.start_servables(config(made.directory, "toy", device_ids=[0, 1]))
    names = {one["y"] for one in made.calls.client("toy", "where").infer([{"x": 0}] * 20)}
    assert names <= {"node's 5", "node's 7"}
    assert sorted(row["device"] for row in made.rows()) == [5, 7]


def test_workers_run_where_the_labels_are_that_they_ask_for(start_cluster):
    made = start_cluster()
    made.join("one", "--labels", "zone=a,disk=ssd")
    made.join("two", "--labels", "zone=b,disk=ssd")
    serve(made, num_parallel_workers=2, node_labels={"zone": "b"})
    assert made.ready() == {"two": 2}


def test_extra_workers_call_models_on_other_machines(start_cluster):
    made = start_cluster(local_slots=1)
    write_servable(made.directory, "toy", WITH_MODEL, versions=[1])
    made.join("one")
    server.start_servables(config(made.directory, "toy", device_ids=0, num_parallel_workers=3))
    assert made.ready() == {"": 1, "one": 2}
    x = np.arange(40_000, dtype=np.float32)
    client = made.calls.client("toy", "staged")
    results = client.infer([{"x1": x, "x2": x}] * 12)
    assert all(np.array_equal(one["y"], 4 * x) for one in results)
    assert {int(one["pid"]) for one in results} <= set(made.pids())


def test_status_shows_a_line_for_each_worker(start_cluster):
    made = start_cluster(local_slots=1)
    made.join("one")
    serve(made, num_parallel_workers=2)
    shown = run([*SERVING, "status", f"127.0.0.1:{made.calls.http}"], made.directory)
    header, *lines = [line.split() for line in shown.stdout.splitlines()]
    assert header == ["servable", "version", "node", "pid", "device", "state", "python"]
    assert lines == [
        ["toy", "1", row["node"] or "(here)", str(row["pid"]), "-", "ready", "-"]
        for row in made.rows()
    ]
    assert {line[2] for line in lines} == {"(here)", "one"}
    assert shown.returncode == 0


# --- who may join -----------------------------------------------------------------------------


def test_with_tls_and_the_token_a_machine_joins(start_cluster, ours):
    made = start_cluster(ssl_config=server.SSLConfig(*ours.issue("server")), local_slots=0)
    made.join("one", "--tls-ca", ours.ca)
    serve(made)
    assert made.ready() == {"one": 1}
    assert who(made) == made.pids()[0]


def test_with_mutual_tls_no_token_is_needed(start_cluster, ours):
    tls = server.SSLConfig(*ours.issue("server"), ours.ca, verify_client=True)
    made = start_cluster(ssl_config=tls, token_file=None)
    made.join_options = []
    certificate, key = ours.issue("node")
    made.join("one", "--tls-ca", ours.ca, "--tls-cert", certificate, "--tls-key", key)


def refusal(machine: Command) -> str:
    """What a machine says that cannot join."""
    assert machine.status() == 1, machine.text
    return machine.text


def test_a_machine_with_a_wrong_token_is_told_so(start_cluster, ours):
    made = start_cluster(ssl_config=server.SSLConfig(*ours.issue("server")))
    wrong = made.directory / "wrong"
    wrong.write_text("x" * 32)
    wrong.chmod(0o600)
    made.join_options = ["--token-file", str(wrong)]
    text = refusal(made.machine("one", "--tls-ca", ours.ca))
    assert "the master refused this node: the token is wrong or missing" in text


def test_a_machine_that_does_not_trust_the_server_does_not_join(start_cluster, ours, tmp_path):
    (tmp_path / "theirs").mkdir()
    theirs = Authority(tmp_path / "theirs", "theirs")
    made = start_cluster(ssl_config=server.SSLConfig(*ours.issue("server")))
    text = refusal(made.machine("one", "--tls-ca", theirs.ca))
    assert f"the certificate of the master at {made.where} is not trusted" in text


def test_a_machine_without_the_certificate_that_is_demanded_does_not_join(start_cluster, ours):
    tls = server.SSLConfig(*ours.issue("server"), ours.ca, verify_client=True)
    made = start_cluster(ssl_config=tls)
    text = refusal(made.machine("one", "--tls-ca", ours.ca, "--join-timeout", "1"))
    assert "the master" in text
    assert "certificate" in text.lower()


def test_a_second_machine_of_the_same_name_is_refused(start_cluster):
    made = start_cluster()
    made.join("one")
    text = refusal(made.machine("one"))
    assert "a node with the name 'one' has joined already" in text


def test_a_server_that_is_not_there_is_given_up(stopped):
    where = f"127.0.0.1:{free_port()}"
    words = [*SERVING, "worker", "--join", where, "--insecure", "--join-timeout", "1"]
    ended = run(words, stopped)
    assert ended.returncode == 1
    assert f"the master at {where} cannot be reached: Connection refused" in ended.stderr


def test_a_servable_that_is_not_on_the_machine_is_named_at_the_start(start_cluster):
    made = start_cluster(local_slots=0)
    empty = made.directory / "empty"
    empty.mkdir()
    made.join("one", "--servables", str(empty))
    with pytest.raises(RuntimeError, match=rf"node one: .*{empty}/toy' not exist"):
        serve(made)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"insecure": True}, "needs a token"),
        ({}, "needs certificates"),
        (
            {"insecure": True, "address": "0.0.0.0:6200"},
            "where other machines could read the traffic",
        ),
        ({"insecure": True, "token_file": "readable"}, "every user may read the token"),
        ({"insecure": True, "token_file": "short"}, "cannot be used: expected at least 16"),
    ],
)
def test_a_node_server_with_an_unsafe_token_does_not_start(stopped, monkeypatch, options, words):
    monkeypatch.delenv("MINDSPORE_SERVING_TOKEN", raising=False)
    (stopped / "readable").write_text(TOKEN)
    (stopped / "readable").chmod(0o644)
    (stopped / "short").write_text("short")
    (stopped / "short").chmod(0o600)
    address = options.pop("address", f"127.0.0.1:{free_port()}")
    with pytest.raises(RuntimeError, match=words):
        server.start_node_server(address, **options)


def test_the_token_is_not_in_the_environment_of_workers(start_cluster, monkeypatch):
    monkeypatch.setenv("MINDSPORE_SERVING_TOKEN", TOKEN)
    made = start_cluster(token_file=None)
    made.join("one")
    serve(made, num_parallel_workers=2)
    for pid in made.pids():
        with open(f"/proc/{pid}/environ", "rb") as file:
            assert TOKEN.encode() not in file.read()
    assert os.environ["MINDSPORE_SERVING_TOKEN"] == TOKEN
