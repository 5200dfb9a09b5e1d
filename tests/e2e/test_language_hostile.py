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
from tests.waiting import PATIENCE

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
    options = {"dtype": "f32", "preparation_timeout": PATIENCE}
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


@pytest.fixture
def impatient(place: Path) -> Iterator[Calls]:
    """A server before that of the other tests, which must not be refused on a busy machine."""
    options = {"dtype": "f32", "preparation_timeout": 1.0}
    with serving(place, config(place, "chatty", llm_options=options)) as found:
        yield found


def test_a_slow_preparation_is_the_fault_of_the_request(impatient):
    calls = impatient
    status, body = chat(calls, **with_grammar(SLOW))
    assert (status, body["error"]["type"]) == (400, "invalid_request_error")
    assert "takes too long, more than 1 s" in body["error"]["message"]
    parameters = {"grammar": {"type": "regex", "value": ".*" * 3000}}
    told = {"inputs": "Hi", "parameters": parameters}
    headers = {"content-type": "application/json"}
    status, answer = calls.http_call("POST", "/generate", json.dumps(told), headers)
    assert (status, json.loads(answer)["error_type"]) == (422, "validation")


def test_leaving_clients_free_the_processes_of_their_preparation(calls):
    (pid,) = workers(os.getpid())
    body = json.dumps({**CHAT, **with_grammar(SLOW)}).encode()
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"
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


def test_a_grammar_over_its_limits_is_the_fault_of_the_request(calls):
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
    eventually(lambda: chat(calls)[0] == 200)


def ids(count: int) -> bytes:
    return b'{"prompt": [' + b"1," * (count - 1) + b"1]}"


@pytest.mark.parametrize(
    ("path", "body", "status", "text"),
    [
        ("/v1/completions", ids(5_000_000), 413, "bigger than 8388608 bytes"),
        ("/v1/completions", ids(600_000), 400, "over 524288 values"),
        ("/v1/completions", b'{"prompt": [' + b"{}," * 100_000 + b"{}]}", 400, "16384 objects"),
        ("/generate", b'{"inputs": [' + b"1," * 600_000 + b"1]}", 422, "over 524288 values"),
        ("/generate", b'{"inputs": "' + b"x" * (9 << 20) + b'"}', 413, "length limit exceeded"),
        ("/models/chatty", b'{"inputs": [' + b"1," * 600_000 + b"1]}", 422, "524288 values"),
        ("/models/chatty", b'{"inputs": "' + b"x" * (9 << 20) + b'"}', 413, "bigger than"),
    ],
)
def test_bodies_of_too_many_values_are_refused_before_any_is_made(calls, path, body, status, text):
    headers = {"content-type": "application/json"}
    found, answer = calls.http_call("POST", path, body, headers)
    assert (found, text in answer.decode()) == (status, True), answer[:300]


def test_methods_with_a_language_model_have_the_same_limits(calls):
    many = b'{"instances": [{"prompt": [' + b"1," * 600_000 + b"1]}]}"
    _, answer = calls.http_call("POST", "/model/chatty:generate", many)
    assert "the body has over 524288 values" in answer.decode()
    long = b'{"instances": [{"prompt": "' + b"x" * (9 << 20) + b'"}]}'
    _, answer = calls.http_call("POST", "/model/chatty:generate", long)
    assert "bytes, expected at most 8388608" in answer.decode()
    assert chat(calls)[0] == 200


def test_commas_in_a_text_are_no_values(calls):
    prompt = "a, " * 400_000
    status, answer = calls.http_call("POST", "/v1/completions", json.dumps({"prompt": prompt}))
    assert (status, b"context_length_exceeded" in answer) == (400, True)


def tool_body(path: str, schema: Any) -> dict[str, Any]:
    """A request of a protocol with a tool that must be called."""
    function = {"name": "f", "parameters": schema}
    messages = CHAT["messages"]
    if path == "/v1/messages":
        tools: list[Any] = [{"name": "f", "input_schema": schema}]
        return {"messages": messages, "max_tokens": 4, "model": "chatty", "tools": tools}
    if path == "/v1/responses":
        return {"input": messages, "tools": [{"type": "function", **function}]}
    tools = [{"type": "function", "function": function}]
    return {"messages": messages, "model": "chatty", "tools": tools}


def properties(count: int) -> dict[str, Any]:
    return {"type": "object", "properties": {f"p{number}": {} for number in range(count)}}


PROTOCOLS = ("/v1/chat/completions", "/v1/responses", "/v1/messages", "/api/chat")
LOOP = {"properties": {"a": {"$ref": "#/$defs/A"}}, "$defs": {"A": {"$ref": "#/$defs/A"}}}


@pytest.mark.parametrize("path", PROTOCOLS)
@pytest.mark.parametrize(
    ("schema", "status", "text"),
    [
        (properties(100_000), 400, "16384 objects"),
        (properties(2_000), 400, "has 2000 properties in one object, expected at most 1000"),
        ({"type": "object", "description": "x" * 10_000_000}, 413, "8388608 bytes"),
        (LOOP, 200, "chatty"),  # no call can have `a`
    ],
    ids=["properties", "object", "bytes", "recursion"],
)
def test_schemas_of_tools_beyond_limits_are_refused(calls, path, schema, status, text):
    headers = {"content-type": "application/json"}
    found, answer = calls.http_call("POST", path, json.dumps(tool_body(path, schema)), headers)
    assert (found, text in answer.decode()) == (status, True), answer[:500]
    if status != 200:
        assert isinstance(json.loads(answer)["error"], str) == (path == "/api/chat")


HUGE = 10**30
BIASED = [str(token_id) for token_id in range(2000)]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"a": HUGE}}}
WRONG: dict[str, tuple[str, dict[str, Any], int]] = {
    "bad words": ("/v1/completions", {"prompt": "a", "bad_words": ["x" * 1_000_000]}, 400),
    "stops": ("/v1/completions", {"prompt": "a", "stop": ["x" * 5000]}, 400),
    "messages": ("/v1/chat/completions", {"messages": CHAT["messages"] * 2049}, 400),
    "bias": ("/v1/completions", {"prompt": "a", "logit_bias": dict.fromkeys(BIASED, 1)}, 400),
    "tokens": ("/v1/completions", {"prompt": "a", "max_tokens": HUGE}, 400),
    "tools": ("/v1/chat/completions", {**CHAT, "tools": [TOOL]}, 400),
    "tgi tools": ("/chat_tokenize", {**CHAT, "tools": [{"a": HUGE}]}, 422),
    "tgi messages": ("/chat_tokenize", {"messages": [{"role": "user", "content": HUGE}]}, 422),
    "penalty": (
        "/v1/completions",
        {"prompt": "Hello", "repetition_penalty": 1e-308, "max_tokens": 20},
        400,
    ),
    "penalty of tgi": (
        "/generate",
        {"inputs": "Hello", "parameters": {"repetition_penalty": 1e-308, "max_new_tokens": 20}},
        422,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_values_out_of_range_are_the_fault_of_the_request(calls, name):
    path, body, status = WRONG[name]
    headers = {"content-type": "application/json"}
    found, answer = calls.http_call("POST", path, json.dumps(body), headers)
    assert found == status, answer[:500]
