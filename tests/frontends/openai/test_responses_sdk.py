"""Responses by OpenAI's own client, over a model that says what the test tells it to."""

import json

import openai
import pydantic
import pytest
from msgspec.structs import replace

from mindspore_serving.core.llm_messages import Chunk
from tests.frontends.openai.serving import CARD, spoken
from tests.waiting import PATIENCE

CALL = '<tool_call>\n{"name": "add", "arguments": {"left": 1, "right": 2}}\n</tool_call>'


class Sum(pydantic.BaseModel):
    left: int
    right: int


@pytest.fixture
def client(web):
    web.control.card = replace(CARD, tool_format="hermes", reasoning_format="think")
    with openai.OpenAI(base_url=web.url, api_key="none", max_retries=0, timeout=PATIENCE) as one:
        yield one


def test_an_answer_has_text_usage_and_a_typed_output(web, client):
    web.says(Chunk(0, "<think>Hm.</think>Hi!", (1, 2), None, "stop"))
    found = client.responses.create(model="toy", input="hello")
    assert found.output_text == "Hi!"
    assert [item.type for item in found.output] == ["reasoning", "message"]
    assert found.output[0].content[0].text == "Hm."
    assert found.usage.total_tokens == 5
    assert found.usage.input_tokens_details.cached_tokens == 1
    assert found.error is None


CODEX = [  # what the agent sends beside its functions
    {"type": "function", "name": "add", "parameters": {"type": "object"}, "strict": False},
    {"type": "code_interpreter", "container": {"type": "auto"}},
    {"type": "web_search", "external_web_access": False},
    {"type": "image_generation", "output_format": "png"},
    {"type": "namespace", "name": "mcp", "tools": [{"type": "tool_search"}]},
]


@pytest.mark.parametrize("is_stream", [False, True], ids=["whole", "stream"])
def test_tools_of_openais_server_are_left_out_and_named(web, client, is_stream):
    web.says(*spoken("Hi"))
    asked = {"model": "toy", "input": "hello", "tools": CODEX, "tool_choice": "auto"}
    more = {"store": False, "include": ["reasoning.encrypted_content"], "prompt_cache_key": "k"}
    raw = client.responses.with_raw_response.create(**asked, **more, stream=is_stream)
    assert raw.headers["x-ignored-fields"] == "tools[1], tools[2], tools[3], tools[4].tools[0]"
    assert [one["function"]["name"] for one in web.sent.tools] == ["add"]
    assert web.sent.tool_choice.mode == "auto"


def test_with_tools_of_openais_server_alone_there_are_none(web, client):
    web.says(*spoken("Hi"))
    found = client.responses.create(model="toy", input="hello", tools=CODEX[1:])
    assert (found.output_text, web.sent.tools) == ("Hi", None)


def test_a_stream_is_of_typed_events_that_add_up(web, client):
    web.says(*spoken("<think>", "Hm.", "</think>", "Hi", " there"))
    events = list(client.responses.create(model="toy", input="hello", stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert type(events[0]).__name__ == "ResponseCreatedEvent"
    texts = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(texts) == "Hi there" == events[-1].response.output_text
    thoughts = [event.delta for event in events if event.type == "response.reasoning_text.delta"]
    assert "".join(thoughts) == "Hm."


def test_the_stream_helper_builds_the_same_answer(web, client):
    web.says(*spoken("Hi", " there"))
    with client.responses.stream(model="toy", input="hello") as stream:
        snapshots = [e.snapshot for e in stream if e.type == "response.output_text.delta"]
        found = stream.get_final_response()
    assert snapshots == ["Hi", "Hi there"]
    assert found.output_text == "Hi there"


def test_the_stream_helper_adds_up_calls(web, client):
    text = f"Well.{CALL}"
    web.says(*spoken(*[text[i : i + 9] for i in range(0, len(text), 9)]))
    tool = openai.pydantic_function_tool(Sum, name="add")["function"]
    with client.responses.stream(
        model="toy", input="1 + 2?", tools=[{"type": "function", **tool}]
    ) as stream:
        kinds = {event.type for event in stream}
        found = stream.get_final_response()
    assert "response.function_call_arguments.delta" in kinds
    call = found.output[-1]
    assert (call.name, json.loads(call.arguments)) == ("add", {"left": 1, "right": 2})
    assert call.parsed_arguments == {"left": 1, "right": 2}


def test_an_answer_is_parsed_as_a_pydantic_model(web, client):
    web.says(Chunk(0, '{"left":1,"right":2}', (1,), None, "stop"))
    found = client.responses.parse(model="toy", input="1 + 2?", text_format=Sum)
    assert found.output_parsed == Sum(left=1, right=2)
    assert web.sent.grammar is not None


def test_a_conversation_continues_with_the_output_items(web, client):
    web.says(Chunk(0, CALL, (1,), None, "stop"))
    tool = {"type": "function", **openai.pydantic_function_tool(Sum, name="add")["function"]}
    said = [{"role": "user", "content": "1 + 2?"}]
    first = client.responses.create(model="toy", input=said, tools=[tool])
    said += [item.to_dict() for item in first.output]
    said.append({"type": "function_call_output", "call_id": first.output[0].call_id, "output": "3"})
    web.says(Chunk(0, "3", (1,), None, "stop"))
    assert client.responses.create(model="toy", input=said, tools=[tool]).output_text == "3"
    assert web.sent.messages[-1]["content"] == "3"


def test_an_answer_that_failed_is_told_in_its_stream(web, client):
    web.says(Chunk(0, "", (), None, "error", "out of memory"))
    *_, last = client.responses.create(model="toy", input="hello", stream=True)
    assert last.type == "response.failed"
    assert "out of memory" in last.response.error.message
