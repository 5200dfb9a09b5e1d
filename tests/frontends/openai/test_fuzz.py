"""Whatever is sent, the answer is an answer or the client's error, never the server's."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mindspore_serving.frontends.openai import requests
from tests.frontends.openai.serving import Web, serving

LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-(10**25), 10**25)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5)
    | st.sampled_from(["function", "auto", "json_schema", "user", "text", "toy", "required"])
)
KEYS = st.text(max_size=3) | st.sampled_from(
    ["type", "function", "name", "role", "content", "json_schema", "schema", "text", "tool_calls"]
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)


def bodies(kind, **always):
    names = st.sampled_from([field.name for field in msgspec.structs.fields(kind)])
    return st.dictionaries(names, VALUES, max_size=4).map(lambda some: {**always, **some})


@pytest.fixture(scope="module")
def web():
    with serving() as running:
        yield running


def check(web: Web, path: str, body: object) -> None:
    answer = web.call("POST", path, body)
    if answer.status == 200:
        assert "error" not in answer.json
        return
    assert answer.status in (400, 404), answer.body
    assert set(answer.error) == {"message", "type", "param", "code"}


FEW = settings(max_examples=150)
MESSAGES = [{"role": "user", "content": "x"}]


@FEW
@given(body=bodies(requests.OpenAIChatRequest, messages=MESSAGES, stream=False))
def test_chats(web, body):
    check(web, "/v1/chat/completions", {**body, "stream": None})


@FEW
@given(messages=st.lists(st.dictionaries(KEYS, VALUES, max_size=4), max_size=3))
def test_messages(web, messages):
    whole = [{"role": "assistant", **one} for one in messages]
    check(web, "/v1/chat/completions", {"messages": whole})


@FEW
@given(tools=st.lists(st.dictionaries(KEYS, VALUES, max_size=3), max_size=3), choice=VALUES)
def test_tools(web, tools, choice):
    function = {"name": "f"}
    whole = [{"type": "function", "function": function, **one} for one in tools]
    check(
        web, "/v1/chat/completions", {"messages": MESSAGES, "tools": whole, "tool_choice": choice}
    )


@FEW
@given(body=bodies(requests.CompletionRequest, prompt="x"))
def test_completions(web, body):
    check(web, "/v1/completions", {**body, "stream": None})


@FEW
@given(body=VALUES)
def test_bodies(web, body):
    for path in ("/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize"):
        check(web, path, body)
