"""Custom tools of chats, whose input is text."""

import json

import openai
import pytest
from msgspec.structs import replace

from mindspore_serving.frontends.chat.custom_tools import InputReader
from tests.frontends.openai.serving import CARD, spoken

PATCH = {
    "type": "custom",
    "custom": {
        "name": "patch",
        "description": "Edit.",
        "format": {"type": "grammar", "grammar": {"syntax": "regex", "definition": "[a-z\\n]+"}},
    },
}
LOOK = {"type": "function", "function": {"name": "look"}}
INPUT = 'one "quoted"\n\\two\U0001f600'


@pytest.fixture
def client(web):
    """OpenAI's client of a model that calls both tools."""
    web.control.card = replace(CARD, tool_format="hermes", max_model_len=4096)
    written = [("patch", {"input": INPUT}), ("look", {})]
    calls = [json.dumps({"name": name, "arguments": value}) for name, value in written]
    web.says(*spoken(*"\n".join(f"<tool_call>\n{call}\n</tool_call>" for call in calls)))
    with openai.OpenAI(base_url=web.url, api_key="x", max_retries=0) as client:
        yield client


def ask(client, **fields):
    said = [{"role": "user", "content": "hello"}]
    return client.chat.completions.create(
        model="toy", messages=said, tools=[PATCH, LOOK, {"type": "web_search"}], **fields
    )


def test_a_call_of_a_custom_tool_has_its_input(web, client):
    first, second = ask(client).choices[0].message.tool_calls
    assert (first.type, first.custom.name, first.custom.input) == ("custom", "patch", INPUT)
    assert (second.type, second.function.arguments) == ("function", "{}")
    assert '"pattern": "^(?:[a-z\\\\n]+)$"' in web.answer_format.grammar.source


def test_the_input_of_a_custom_tool_streams(client):
    deltas = [
        call
        for chunk in ask(client, stream=True)
        for call in (chunk.choices[0].delta.tool_calls or ())
    ]
    of_first = [delta for delta in deltas if delta.index == 0]
    assert [bool(delta.id) for delta in of_first] == [True] + [False] * (len(of_first) - 1)
    assert of_first[0].type == "custom"
    assert "".join(delta.custom["input"] for delta in of_first) == INPUT
    assert "".join(d.function.arguments or "" for d in deltas if d.index == 1) == "{}"


def test_tools_of_other_kinds_are_left_out_and_named(web, client):
    raw = client.chat.completions.with_raw_response.create(
        model="toy", messages=[{"role": "user", "content": "a"}], tools=[{"type": "web_search"}]
    )
    assert raw.headers["x-ignored-fields"] == "tools[0]"
    assert web.sent.tools is None


def test_a_past_call_of_a_custom_tool_is_that_of_its_function(web, client):
    call = {"id": "1", "type": "custom", "custom": {"name": "patch", "input": "x"}}
    turns = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "done"},
    ]
    client.chat.completions.create(model="toy", messages=turns, tools=[PATCH])
    (sent,) = web.sent.messages[1]["tool_calls"]
    assert sent["function"] == {"name": "patch", "arguments": {"input": "x"}}
    assert web.sent.messages[2]["name"] == "patch"


def test_a_custom_tool_can_be_required(web, client):
    ask(client, tool_choice={"type": "custom", "custom": {"name": "patch"}})
    assert (web.sent.tool_choice.mode, web.sent.tool_choice.name) == ("required", "patch")


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_an_input_does_not_depend_on_how_the_arguments_are_cut(size):
    for arguments in (json.dumps({"input": INPUT}), json.dumps({"input": INPUT}, indent=1)):
        reader = InputReader()
        cuts = range(0, len(arguments), size)
        pieces = [reader.feed(arguments[start : start + size]) for start in cuts]
        assert "".join(pieces) + reader.finish() == INPUT


def test_half_a_surrogate_pair_and_a_cut_escape_are_dropped():
    reader = InputReader()
    assert reader.feed('{"input": "a\\ud83d') + reader.feed('x"}') + reader.finish() == "a"
    reader = InputReader()
    assert reader.feed('{"input": "a\\u00') + reader.finish() == "a"
