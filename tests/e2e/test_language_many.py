"""Several language models with several workers each; a server that is full; one that is told to end
while it streams.
"""

import json
import os
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.e2e.harness import (
    Calls,
    Script,
    children,
    config,
    engine_of,
    eventually,
    is_alive,
    row_of,
    serving,
    workers,
    write_servable,
)
from tests.llm import chatty
from tests.ports import free_port
from tests.waiting import PATIENCE

# The model of `chatty`.  While the file "hold" is there, it waits for three requests, and stops in
# the middle of them.
SOURCE = """
from pathlib import Path
from mindspore_serving.llm.engine.engine import Engine

hold = Path(__file__).parent / "hold"
llm = register.declare_llm("../chatty", dtype="f32", kv_cache_memory=64 << 20)
Engine.step_now = Engine.step

def step(self):
    numbers = self.stats()
    is_early = numbers.num_running + numbers.num_waiting < 3
    if hold.exists() and (is_early or numbers.num_generated_tokens > 60):
        self.started = []
        time.sleep(0.002)
        return []
    return self.step_now()

Engine.step = step

@register.register_method(output_names=["text"])
def generate(prompt, parameters):
    return register.add_stage(llm, prompt, parameters, outputs_count=1)
"""
OPTIONS = {"dtype": "f32", "kv_cache_memory": 64 << 20}
LONG = 60_000  # tokens: half a minute of them, far more than any test waits for
NAMES = {"one": {"num_parallel_workers": 2}, "two": {"device_ids": (0, 1)}}
JSON = {"Content-Type": "application/json"}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("many")
    chatty.build(directory, context=65536)
    write_servable(directory, "held", SOURCE)
    return directory


def start(calls: Calls, name: str, count: int = LONG, seed: int = 1) -> socket.socket:
    """A stream of a completion that has begun to be asked for."""
    body = {"model": name, "prompt": "Hello", "max_tokens": count, "seed": seed}
    sent = json.dumps({**body, "ignore_eos": True, "stream": True}).encode()
    stream = calls.connect()
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(
        sent
    )
    stream.sendall(head + sent)
    return stream


def begin_of(stream: socket.socket) -> None:
    """What comes until there is a piece of the answer."""
    answer = b""
    while b"data:" not in answer:
        received = stream.recv(1 << 16)
        assert received, answer
        answer += received


def rest_of(stream: socket.socket) -> bytes:
    """What comes until the last chunk, or the end of the connection."""
    answer = b""
    while not answer.endswith(b"0\r\n\r\n"):
        received = stream.recv(1 << 16)
        if not received:
            break
        answer += received
    stream.close()
    return answer


@pytest.fixture
def full(place: Path) -> Iterator[Calls]:
    """Two run, two wait, and not over 300 tokens of theirs."""
    limits = {"max_num_seqs": 2, "max_num_waiting": 2, "max_num_waiting_tokens": 300}
    with serving(place, config(place, "chatty", llm_options={**OPTIONS, **limits})) as found:
        yield found


TGI = {"inputs": "Hello", "parameters": {"max_new_tokens": 2}}
REFUSALS = [
    ("/v1/completions", {"prompt": "Hello", "max_tokens": 2}, 429),
    ("/v1/completions", {"prompt": "Hello", "max_tokens": 2, "stream": True}, 429),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]}, 429),
    ("/v1/responses", {"input": "Hello"}, 429),
    ("/generate", TGI, 429),
    ("/generate_stream", TGI, 200),
    ("/models/chatty/generate", TGI, 429),
    ("/model/chatty:generate", {"instances": [{"prompt": "Hello"}]}, 200),
    ("/model/chatty:generate_stream", {"instances": [{"prompt": "Hello"}]}, 200),
]


def check_refusals(calls: Calls, words: str) -> None:
    for path, body, expected in REFUSALS:
        status, answer = calls.http_call("POST", path, json.dumps(body), JSON)
        assert status == expected, (path, answer)
        if path.startswith("/generate"):
            told = json.loads(answer.decode().removeprefix("data:"))
            assert told == {"error": "Model is overloaded", "error_type": "overloaded"}
        else:
            assert words in answer.decode(), (path, answer)
        if path.startswith("/v1/"):
            assert json.loads(answer)["error"]["code"] == "rate_limit_exceeded"
    assert words in str(calls.client("chatty", "generate").infer({"prompt": "Hello"}))
    one = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    head = calls.send(one + b'Content-Length: 14\r\n\r\n{"prompt":"x"}').lower()
    assert head.startswith(b"http/1.1 429 ")
    assert b"\r\nretry-after: 1\r\n" in head


def test_a_full_server_refuses_in_each_protocols_form_and_recovers(full):
    streams = [start(full, "chatty", seed=i) for i in range(2)]
    for stream in streams:
        begin_of(stream)
    waiting = [start(full, "chatty", count=2) for _ in range(2)]
    eventually(lambda: engine_of(full, "chatty")["num_waiting"] == 2)
    check_refusals(full, "2 requests wait already, at most 2 may")
    for stream in waiting:
        stream.close()
    eventually(lambda: engine_of(full, "chatty")["num_waiting"] == 0)
    body = {"prompt": [5] * 300, "max_tokens": 2, "stream": True}
    with socket.create_connection(("127.0.0.1", full.http), timeout=PATIENCE) as stream:
        sent = json.dumps(body).encode()
        head = (
            b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"
            % len(sent)
        )
        stream.sendall(head + sent)
        eventually(lambda: engine_of(full, "chatty")["num_waiting"] == 1)
        check_refusals(full, "requests with 300 tokens wait already, at most 300 may")
    for stream in streams:
        stream.close()
    eventually(lambda: row_of(full, "chatty")["requests"]["running"] == 0)
    for path, body, _ in REFUSALS:
        status, answer = full.http_call("POST", path, json.dumps(body), JSON)
        assert status == 200, (path, answer)
        assert b"overloaded" not in answer
        assert b"wait already" not in answer
    eventually(lambda: row_of(full, "chatty")["requests"]["running"] == 0)


SCRIPT = """
from mindspore_serving import server
from mindspore_serving.server.master import context
context.set_shutdown_timeout(600)  # for what runs
options = {{"dtype": "f32", "kv_cache_memory": 64 << 20}}
server.start_servables(server.ServableStartConfig({directory!r}, "chatty", llm_options=options))
server.start_grpc_server("127.0.0.1:{grpc}")
server.start_restful_server("127.0.0.1:{http}")
"""


@pytest.fixture
def scripted(place: Path, run_script: Callable[..., Script]) -> Iterator[tuple[Script, Calls]]:
    """SCRIPT, which has started, and how to call it."""
    with closing(Calls(f"127.0.0.1:{free_port()}", free_port())) as calls:
        port = calls.grpc.partition(":")[2]
        script = run_script(SCRIPT.format(directory=str(place), grpc=port, http=calls.http))
        script.says("RESTful server start success")
        yield script, calls


def test_a_server_that_is_told_to_end_lets_streams_finish(scripted):
    script, calls = scripted
    pids = workers(script.pid)
    stream = start(calls, "chatty", count=600)
    pieces = calls.client("chatty", "generate").infer_stream(
        {"prompt": "Hello", "parameters": '{"ignore_eos": true, "max_tokens": 600}'}
    )
    first = [next(pieces)]
    assert stream.recv(1)
    left = start(calls, "chatty")
    assert left.recv(1)
    script.send(signal.SIGTERM)
    left.close()
    assert b"[DONE]" in rest_of(stream)
    assert (first + list(pieces))[-1]["finish_reason"] == "length"
    assert script.status() == 0
    assert "Traceback" not in script.text
    assert not any(map(is_alive, pids))
    assert not children(script.pid)


def test_a_second_signal_ends_streams_at_once(scripted):
    script, calls = scripted
    pids = workers(script.pid)
    streams = [start(calls, "chatty", seed=i) for i in range(4)]
    for stream in streams:
        assert stream.recv(1)

    def ended() -> bool:
        script.send(signal.SIGTERM)
        return script.process.poll() is not None

    eventually(ended)
    assert script.status() == 128 + signal.SIGTERM
    for stream in streams:
        assert b"[DONE]" not in rest_of(stream)
    eventually(lambda: not any(map(is_alive, pids)))


@pytest.fixture(scope="module")
def calls(place: Path) -> Iterator[Calls]:
    """One model under two aliases, with two workers each; tests of it come last."""
    both = [config(place, "held", alias=name, **more) for name, more in NAMES.items()]
    with serving(place, *both) as found:
        yield found


def test_a_repeated_prompt_goes_to_the_worker_with_its_cache(calls):
    for number in range(4):  # a prompt of its own each, so that both workers have some
        prompt = f"{number} " + "the sea and the sky " * 40
        body = json.dumps({"model": "two", "prompt": prompt, "max_tokens": 1}).encode()
        for is_first in (True, False):
            queries, hits = cache_numbers(calls)
            assert calls.http_call("POST", "/v1/completions", body)[0] == 200
            eventually(lambda queries=queries: cache_numbers(calls)[0] > queries)
            assert (cache_numbers(calls)[1] == hits) == is_first


def cache_numbers(calls: Calls) -> tuple[int, int]:
    """How many tokens of prompts were looked for in the caches of "two", and how many found."""
    found = engine_of(calls, "two")
    return found["num_cache_queries"], found["num_cache_hits"]


def test_requests_are_shared_and_a_death_ends_only_its_own(calls, place):
    hold = place / "held" / "hold"
    hold.touch()
    pids = sorted(workers(os.getpid()))
    assert len(pids) == 4
    assert [row_of(calls, name)["num_workers"] for name in NAMES] == [2, 2]
    streams = {name: [start(calls, name, 200, seed=i) for i in range(6)] for name in NAMES}
    for stream in streams["one"] + streams["two"]:
        begin_of(stream)
    eventually(lambda: [engine_of(calls, name)["num_running"] for name in NAMES] == [6, 6])
    os.kill(pids[0], signal.SIGKILL)  # of "one", which was started first
    eventually(lambda: len(set(workers(os.getpid())) - set(pids)) == 1, what="a new worker")
    hold.unlink()
    answers = {name: [rest_of(one) for one in found] for name, found in streams.items()}
    died = {
        name: sum(b"worker process that had the request died" in one for one in found)
        for name, found in answers.items()
    }
    ended = {name: sum(b"[DONE]" in one for one in found) for name, found in answers.items()}
    assert sorted(died.values()) == [0, 3], died
    assert sorted(ended.values()) == [3, 6], ended
    for name in NAMES:
        eventually(lambda name=name: row_of(calls, name)["requests"]["running"] == 0)
        eventually(lambda name=name: engine_of(calls, name)["num_running"] == 0)
