"""Methods whose stages are methods of other servables of the server, each in its own worker."""

import json
import os
import re
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.harness import Calls, config, eventually, in_flight, serving, write_servable
from tests.e2e.test_streams import stream

WORDS = """
@method("count", "first")
def count(text):
    return len(text.split()), text.split()[0]


def upper(instances):
    for (text,) in instances:
        yield (text.upper(), len(instances))

@register.register_method(output_names=["text", "size"])
def loud(text):
    return register.add_stage(upper, text, outputs_count=2, batch_size=8)

@method("letter")
def spell(word):
    yield from word

@method("y")
def endless(path):
    try:
        while True:
            time.sleep(0.001)
            yield 1
    finally:
        open(path + ".ended", "w").close()

@method("y")
def hold(path):
    open(path + ".begun", "w").close()
    while not os.path.exists(path + ".released"):
        time.sleep(0.001)
    return 1

@method("a", "b")
def pair(x):
    return 1, 2

@method("y")
def dies(x):
    os._exit(9)

@method("y")
def back(x):
    return loop.call(x)

@method("y")
def linked_back(x):
    return linked_loop.call(x)

loop = register.method("chain.loop")
linked_loop = register.method("chain.linked_loop")
loud_there = register.method("chain.loud")

@method("y")
def around(x):
    return loud_there.call(str(x))[0]

@method("y")
def fails(x):
    raise ValueError("no such word")

@method("text")
def known(text):
    if text == "UNKNOWN":
        raise ValueError("no such word")
    return text

@method("text", "length")
def join(a, b):
    return f"{a} {b}", len(a)

@method("path")
def path_after(count, path):
    return path
"""
CHAIN = """
LOUD = register.method("words.loud")
SPELL = register.method("words.spell", streams=True)

@register.register_method(output_names=["text", "size"])
def loud(text):
    return register.add_stage(LOUD, text, outputs_count=2)

def mark(text):
    return text + "!"

@register.register_method(output_names=["count", "text"])
def read(text):
    number, first = register.add_stage(register.method("words.count"), text, outputs_count=2)
    first = register.add_stage(mark, first, outputs_count=1)
    first, _ = register.add_stage(LOUD, first, outputs_count=2)
    return number, first

@register.register_method(output_names=["text", "size"])
def read_again(text):
    return register.add_stage(register.method("chain.loud"), text, outputs_count=2)

@register.register_method(output_names=["letter"])
def spell(word):
    letter = register.add_stage(SPELL, word, outputs_count=1)
    return register.add_stage(mark, letter, outputs_count=1)

@method("text")
def branch(text, times):
    for _ in range(int(times)):
        text = LOUD.call(text)[0] + "?" if len(text) < 9 else text
    return text

@method("texts")
def several(text):
    return str([outputs[0] for outputs in LOUD.call([[word] for word in text.split()])])

@register.register_method(output_names=["y"])
def endless(path):
    stage = register.method("words.endless", streams=True)
    return register.add_stage(stage, path, outputs_count=1)

@register.register_method(output_names=["y"])
def hold(path):
    return register.add_stage(register.method("words.hold"), path, outputs_count=1)

@register.register_method(output_names=["y"])
def dies(x):
    return register.add_stage(register.method("words.dies"), x, outputs_count=1)

@register.register_method(output_names=["y"])
def loop(x):
    return register.add_stage(register.method("words.back"), x, outputs_count=1)

@method("y")
def meets(x):
    return register.method("words.around").call(x)

@register.register_method(output_names=["y"])
def fails(x):
    return register.add_stage(register.method("words.fails"), x, outputs_count=1)

@register.register_method(output_names=["text", "length", "size"])
def linked(text):
    upper, size = register.add_stage(LOUD, text, outputs_count=2)
    upper = register.add_stage(register.method("words.known"), upper, outputs_count=1)
    both, _ = register.add_stage(register.method("words.join"), upper, text, outputs_count=2)
    text, length = register.add_stage(register.method("words.join"), both, upper, outputs_count=2)
    return register.add_stage(mark, text, outputs_count=1), length, size

@register.register_method(output_names=["y"])
def linked_hold(path):
    count, _ = register.add_stage(register.method("words.count"), path, outputs_count=2)
    path = register.add_stage(register.method("words.path_after"), count, path, outputs_count=1)
    return register.add_stage(register.method("words.hold"), path, outputs_count=1)

@register.register_method(output_names=["y"])
def linked_loop(x):
    x = register.add_stage(register.method("words.path_after"), x, x, outputs_count=1)
    return register.add_stage(register.method("words.linked_back"), x, outputs_count=1)

@register.register_method(output_names=["y"])
def linked_dies(x):
    x = register.add_stage(register.method("words.path_after"), x, x, outputs_count=1)
    return register.add_stage(register.method("words.dies"), x, outputs_count=1)

@register.register_method(output_names=["y"])
def linked_too_few(x):
    x = register.add_stage(register.method("words.path_after"), x, x, outputs_count=1)
    return register.add_stage(register.method("words.pair"), x, outputs_count=1)

@register.register_method(output_names=["y"])
def nowhere(x):
    return register.add_stage(register.method("nobody.predict"), x, outputs_count=1)

@register.register_method(output_names=["y"])
def too_few(x):
    return register.add_stage(register.method("words.pair"), x, outputs_count=1)
"""


@pytest.fixture(scope="module")
def calls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Calls]:
    directory = tmp_path_factory.mktemp("pipelines")
    write_servable(directory, "words", WORDS)
    write_servable(directory, "chain", CHAIN)
    with serving(directory, config(directory, "words"), config(directory, "chain")) as served:
        yield served


def test_stages_may_be_methods_of_another_servable(calls):
    answer = calls.post("chain", "read", [{"text": "one two"}, {"text": "three"}])
    assert answer == {"instances": [{"count": 2, "text": "ONE!"}, {"count": 1, "text": "THREE!"}]}


def test_instances_of_a_pipeline_are_batched_in_the_other_servable(calls):
    answer = calls.post("chain", "loud", [{"text": letter} for letter in "abcdefgh"])
    assert [row["text"] for row in answer["instances"]] == list("ABCDEFGH")
    assert {row["size"] for row in answer["instances"]} == {8}


def test_stages_that_follow_each_other_give_values_to_all_later_stages(calls):
    answer = calls.post("chain", "linked", [{"text": "ab"}, {"text": "c"}])
    assert answer["instances"] == [
        {"text": "AB ab AB!", "length": 5, "size": 2},
        {"text": "C c C!", "length": 3, "size": 2},
    ]


def test_an_instance_that_fails_in_a_later_stage_fails_alone(calls):
    answer = calls.post("chain", "linked", [{"text": "a"}, {"text": "unknown"}, {"text": "b"}])
    first, failed, last = answer["instances"]
    assert (first["text"], last["text"]) == ("A a A!", "B b B!")
    assert "Method 'words.known' Failed" in failed["error_msg"]
    assert "stage 2 of 5" in failed["error_msg"]
    assert "no such word" in failed["error_msg"]


def test_a_method_of_the_same_servable_lends_its_stages(calls):
    assert calls.post("chain", "read_again", [{"text": "a"}]) == {
        "instances": [{"text": "A", "size": 1}]
    }


def test_a_function_calls_other_servables_in_loops_and_branches(calls):
    assert calls.post("chain", "branch", [{"text": "abcdef", "times": 5}]) == {
        "instances": [{"text": "ABCDEF???"}]
    }
    answer = calls.post("chain", "several", [{"text": "a b"}])
    assert answer == {"instances": [{"texts": "['A', 'B']"}]}


def test_pieces_of_another_servable_are_streamed(calls):
    pieces = stream(calls, "spell_stream", {"word": "abc"}, servable="chain")
    assert pieces == [{"instances": [{"letter": letter + "!"}]} for letter in "abc"]
    assert calls.post("chain", "spell", [{"word": "abc"}]) == {"instances": [{"letter": "abc!"}]}


def ask(calls: Calls, method: str, path: Path) -> socket.socket:
    """Send a request to the servable chain, and return the connection."""
    connection = calls.connect()
    body = json.dumps({"instances": [{"path": str(path)}]})
    head = f"POST /model/chain:{method} HTTP/1.1\r\nHost: localhost\r\n"
    connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())
    return connection


def test_a_client_that_leaves_ends_a_stream_of_another_servable(calls, tmp_path):
    with ask(calls, "endless_stream", tmp_path / "left") as connection:
        assert connection.recv(1 << 16).startswith(b"HTTP/1.1 200")
    eventually((tmp_path / "left.ended").exists, what="the end of the stage")


@pytest.mark.parametrize("method", ["hold", "linked_hold"])
def test_calls_of_a_client_that_leaves_are_not_begun(calls, tmp_path, method):
    first = ask(calls, method, tmp_path / "first")
    eventually((tmp_path / "first.begun").exists, what="the stage of the other servable")
    with ask(calls, method, tmp_path / "second"):
        eventually(lambda: in_flight(calls) == 4)
    eventually(lambda: in_flight(calls) == 2)
    (tmp_path / "first.released").touch()
    assert first.recv(1 << 16).endswith(b'{"instances":[{"y":1}]}')
    assert not (tmp_path / "second.begun").exists()


@pytest.mark.parametrize("method", ["hold", "linked_hold"])
def test_the_deadline_of_a_request_is_that_of_its_calls(calls, tmp_path, method):
    body = json.dumps({"instances": [{"path": str(tmp_path / "late")}]})
    headers = {"X-Request-Timeout": "0.3"}
    try:
        _, answer = calls.http_call("POST", f"/model/chain:{method}", body, headers)
        # The time of the request, or what was left of it for the call.
        assert re.search(r"no answer within 0\.[0-3]\d* s", json.loads(answer)["error_msg"])
        eventually(lambda: in_flight(calls) == 0)
    finally:
        (tmp_path / "late.released").touch()


@pytest.mark.parametrize("method", ["hold", "linked_hold"])
def test_a_calling_worker_that_is_killed_loses_no_request(calls, tmp_path, method):
    """Another worker gets the request and calls again; the first call ends."""
    (first,) = pids_of(calls, "chain")
    held = ask(calls, method, tmp_path / "killed")
    eventually((tmp_path / "killed.begun").exists, what="the stage of the other servable")
    os.kill(first, signal.SIGKILL)
    eventually(lambda: pids_of(calls, "chain") not in ([], [first]), what="another worker")
    (tmp_path / "killed.released").touch()
    assert held.recv(1 << 16).endswith(b'{"instances":[{"y":1}]}')
    assert in_flight(calls) == 0


def pids_of(calls: Calls, name: str) -> list[int]:
    """Return the process ids of the workers of a servable that are ready."""
    _, text = calls.http_call("GET", "/servables")
    (row,) = (row for row in json.loads(text)["servables"] if row["name"] == name)
    return [worker["pid"] for worker in row["workers"] if worker["state"] == "ready"]


@pytest.mark.parametrize(
    ("method", "text"),
    [
        ("fails", "no such word"),
        ("nowhere", "nobody"),
        ("too_few", "it returned 2 outputs, 1 are registered"),
        (
            "loop",
            "a method cannot call itself: servable(chain) method(loop) -> "
            "servable(words) method(back) -> servable(chain) method(loop)",
        ),
        ("meets", "use add_stage in place of call, which does not occupy a worker"),
        ("dies", "the worker process that had the request died"),
        (
            "linked_loop",
            "a method cannot call itself: servable(chain) method(linked_loop) -> "
            "servable(words) method(linked_back) -> servable(chain) method(linked_loop)",
        ),
        ("linked_dies", "stage 2 of 2, error msg: servable(words) method(dies): the worker"),
        ("linked_too_few", "stage 2 of 2, error msg: it returned 2 outputs, 1 are registered"),
    ],
)
def test_a_failed_call_fails_its_request_alone(calls, method, text):
    answer = calls.post("chain", method, [{"x": 1}])
    (instance,) = answer.get("instances", [answer])
    assert text in instance["error_msg"]
    eventually(lambda: "instances" in calls.post("chain", "loud", [{"text": "a"}]))
