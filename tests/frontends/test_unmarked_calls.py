"""A call that a model writes as bare JSON or in a fence, read by the clients of each protocol."""

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import ollama
import openai
import pytest
from msgspec.structs import replace

from tests.frontends.mounting import anthropic_routes, ollama_routes, openai_routes
from tests.frontends.openai.serving import Web, serving, spoken

CALL = '{"name": "look", "arguments": {"at": "x"}}'
WRONG = '{"name": "look", "arguments": {"at": 5}}'
WRITTEN = {"bare": CALL, "fence": f"```json\n{CALL}\n```"}
SCHEMA = {"type": "object", "properties": {"at": {"type": "string"}}, "required": ["at"]}
TOOL = {"type": "function", "function": {"name": "look", "parameters": SCHEMA}}
HELLO: list[Any] = [{"role": "user", "content": "hello"}]


def mount(state: Any) -> list[Any]:
    routes = (anthropic_routes, openai_routes, ollama_routes)
    return [route for one in routes for route in one(state)]


@pytest.fixture(scope="module")
def web() -> Iterator[Web]:
    with serving(mount) as running:
        card = running.control.card
        running.control.card = replace(card, tool_format="hermes", unmarked_calls=True)
        yield running


def says(web: Web, text: str) -> None:
    """Piece by piece, each a few characters."""
    web.says(*spoken(*[text[place : place + 3] for place in range(0, len(text), 3)]))


def by_chat(web: Web, *, is_stream: bool, **fields: Any) -> tuple[str, list[Any]]:
    """The text and the calls of an answer, by OpenAI's client."""
    asked = {"model": "toy", "messages": HELLO, "tools": [TOOL], **fields}
    with openai.OpenAI(base_url=web.url, api_key="none", max_retries=0) as client:
        if is_stream:
            with client.chat.completions.stream(**asked) as stream:
                stream.until_done()
                choice = stream.get_final_completion().choices[0]
        else:
            choice = client.chat.completions.create(**asked).choices[0]
    calls = [(one.function.name, one.function.arguments) for one in choice.message.tool_calls or ()]
    assert choice.finish_reason == ("tool_calls" if calls else "stop")
    return choice.message.content or "", calls


def by_responses(web: Web, *, is_stream: bool) -> tuple[str, list[Any]]:
    tool = {"type": "function", **TOOL["function"]}
    with openai.OpenAI(base_url=web.url, api_key="none", max_retries=0) as client:
        if is_stream:
            with client.responses.stream(model="toy", input="hello", tools=[tool]) as stream:
                answer = stream.until_done().get_final_response()
        else:
            answer = client.responses.create(model="toy", input="hello", tools=[tool])
    calls = [one for one in answer.output if one.type == "function_call"]
    return answer.output_text, [(one.name, one.arguments) for one in calls]


def by_messages(web: Web, *, is_stream: bool) -> tuple[str, list[Any]]:
    tool = {"name": "look", "input_schema": SCHEMA}
    asked = {"model": "toy", "max_tokens": 99, "messages": HELLO, "tools": [tool]}
    base = web.url.removesuffix("/v1")
    with anthropic.Anthropic(base_url=base, api_key="none", max_retries=0) as client:
        if is_stream:
            with client.messages.stream(**asked) as stream:
                answer = stream.get_final_message()
        else:
            answer = client.messages.create(**asked)
    text = "".join(one.text for one in answer.content if one.type == "text")
    calls = [one for one in answer.content if one.type == "tool_use"]
    return text, [(one.name, json.dumps(one.input)) for one in calls]


def by_ollama(web: Web, *, is_stream: bool) -> tuple[str, list[Any]]:
    with ollama.Client(host=web.url.removesuffix("/v1")) as client:
        found = client.chat("toy", HELLO, tools=[TOOL], stream=is_stream)
        messages = [part.message for part in (found if is_stream else [found])]
    calls = [call.function for one in messages for call in one.tool_calls or ()]
    text = "".join(one.content or "" for one in messages)
    return text, [(one.name, json.dumps(dict(one.arguments))) for one in calls]


CLIENTS = [by_chat, by_responses, by_messages, by_ollama]


@pytest.mark.parametrize("is_stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("ask", CLIENTS, ids=lambda ask: ask.__name__)
@pytest.mark.parametrize("form", WRITTEN)
def test_a_call_without_markers_is_a_call_of_the_client(web, form, ask, is_stream):
    says(web, WRITTEN[form])
    assert ask(web, is_stream=is_stream) == ("", [("look", '{"at": "x"}')])


@pytest.mark.parametrize("is_stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("ask", CLIENTS, ids=lambda ask: ask.__name__)
def test_a_call_that_fits_no_tool_is_text_of_the_answer(web, ask, is_stream):
    says(web, WRONG)
    assert ask(web, is_stream=is_stream) == (WRONG, [])


@pytest.mark.parametrize("is_stream", [False, True], ids=["whole", "stream"])
def test_a_client_that_wants_no_calls_gets_text(web, is_stream):
    says(web, CALL)
    assert by_chat(web, is_stream=is_stream, tool_choice="none") == (CALL, [])
