"""A call that breaks off as the worker dies: the error of each protocol, in a stream and whole."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from msgspec.structs import replace

from mindspore_serving.core.llm_messages import Started
from mindspore_serving.errors import ServableUnavailable
from tests.frontends.openai.serving import Call, Web, serving, spoken
from tests.frontends.test_unmarked_calls import HELLO, SCHEMA, TOOL, mount

BEGUN = spoken("<tool_call>\n", '{"name": "look", "arguments": {"at', '": "x')[:-1]
NATIVE = {"name": "look", "input_schema": SCHEMA}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": HELLO, "tools": [TOOL]},
    "/v1/responses": {"input": "hello", "tools": [{"type": "function", **TOOL["function"]}]},
    "/v1/messages": {"messages": HELLO, "tools": [NATIVE], "max_tokens": 99},
    "/api/chat": {"messages": HELLO, "tools": [TOOL]},
}


class _Dying:
    """Begins a call of a tool, and fails."""

    def __init__(self, web: Web) -> None:
        self._web = web

    def __call__(self, call: Call) -> None:
        call.parse(self._web.control.card)
        call.say([Started(3, 7), *BEGUN], is_last=False)
        call.say(ServableUnavailable("the worker died"))


@pytest.fixture(scope="module")
def web() -> Iterator[Web]:
    with serving(mount) as running:
        running.control.card = replace(running.control.card, tool_format="hermes")
        running.inference.received = _Dying(running)  # type: ignore[method-assign]
        yield running


def error_of(path: str, body: bytes) -> Any:
    """The error that ends a stream."""
    text = body.decode()
    assert "[DONE]" not in text
    assert "message_stop" not in text
    assert "response.completed" not in text
    last = text.strip().splitlines()[-1]
    event = json.loads(last.removeprefix("data: "))
    assert event.get("done") is not True
    return event["response"]["error"] if path == "/v1/responses" else event["error"]


@pytest.mark.parametrize("path", BODIES)
def test_stream_that_is_cut_in_a_call_ends_with_an_error(web: Web, path: str) -> None:
    answer = web.call("POST", path, {"model": "toy", "stream": True, **BODIES[path]})
    assert answer.status == 200
    assert b"look" in answer.body or path == "/api/chat"  # which sends a call when it is complete
    assert "the worker died" in json.dumps(error_of(path, answer.body))


@pytest.mark.parametrize("path", BODIES)
def test_answer_that_is_cut_in_a_call_is_an_error(web: Web, path: str) -> None:
    answer = web.call("POST", path, {"model": "toy", "stream": False, **BODIES[path]})
    assert answer.status == 503
    assert "the worker died" in json.dumps(answer.error)
