"""Requests to a language model that are made to cost much: each costs only itself."""

import json
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mindspore_serving.isolation.pool import PoolLimits
from tests.e2e.harness import Calls, children, config, eventually, serving, workers, zombies
from tests.llm import chatty

# Compiling it takes minutes.
SLOW = 'start: A\nA: /x*/{0,9999} & ~"x" /[ab]+/ | /[ab]+/{0,9999}\n'
# It forces a text that has no end.
ENDLESS = "start: a\na: /x+/ a\n"
# Each token can be read in more ways than the one before.
GROWING = 'start: a\na: a a | "x" a | "x"\n'
NUM_PROCESSES = PoolLimits().num_processes + 1
CHAT = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("hostile")
    chatty.build(directory)
    return directory


@pytest.fixture(scope="module")
def calls(place: Path) -> Iterator[Calls]:
    options = {"dtype": "f32", "preparation_timeout": 1.0}
    with serving(place, config(place, "chatty", llm_options=options)) as found:
        yield found


def chat(calls: Calls, **fields: Any) -> tuple[int, Any]:
    status, body = calls.http_call("POST", "/v1/chat/completions", json.dumps({**CHAT, **fields}))
    return status, json.loads(body)


def with_grammar(source: str) -> dict[str, Any]:
    return {"structured_outputs": {"grammar": source}}


def preparing(pid: int) -> list[int]:
    """The processes that prepare requests for the worker `pid`."""
    return [child for server in children(pid) for child in children(server)]


def test_what_takes_too_long_to_prepare_is_the_fault_of_the_request(calls):
    status, body = chat(calls, **with_grammar(SLOW))
    assert (status, body["error"]["type"]) == (400, "invalid_request_error")
    assert "takes too long, more than 1 s" in body["error"]["message"]
    parameters = {"grammar": {"type": "regex", "value": ".*" * 3000}}
    told = {"inputs": "Hi", "parameters": parameters}
    headers = {"content-type": "application/json"}
    status, answer = calls.http_call("POST", "/generate", json.dumps(told), headers)
    assert (status, json.loads(answer)["error_type"]) == (422, "validation")


def test_clients_that_leave_free_what_prepares_their_requests(calls):
    (pid,) = workers(os.getpid())
    body = json.dumps({**CHAT, **with_grammar(SLOW)}).encode()
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n"
    eventually(lambda: len(preparing(pid)) == NUM_PROCESSES)
    for _ in range(8):
        with socket.create_connection(("127.0.0.1", calls.http)) as stream:
            stream.sendall(head % len(body) + body)
    assert chat(calls)[0] == 200
    assert chat(calls, response_format={"type": "json_object"})[0] == 200
    eventually(lambda: len(preparing(pid)) == NUM_PROCESSES, what="as many processes as before")
    assert zombies(pid) == []


def test_a_text_that_is_forced_and_endless_is_generated_like_any_other(calls):
    status, body = chat(calls, **with_grammar(ENDLESS))
    assert status == 200
    assert set(body["choices"][0]["message"]["content"]) == {"x"}
    assert body["choices"][0]["finish_reason"] == "length"


def test_a_grammar_that_reaches_its_limits_while_it_generates_is_the_fault_of_the_request(calls):
    wanted = {**with_grammar(GROWING), "max_tokens": 400, "ignore_eos": True}
    status, body = chat(calls, **wanted)
    assert (status, body["error"]["type"]) == (400, "invalid_request_error")
    assert "grammar" in body["error"]["message"]


def test_processes_that_prepare_end_with_their_worker(calls):
    (pid,) = workers(os.getpid())
    eventually(lambda: len(preparing(pid)) == NUM_PROCESSES)
    found = preparing(pid) + children(pid)
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: not any(Path(f"/proc/{one}").exists() for one in found))
    eventually(lambda: chat(calls)[0] == 200, 60)
