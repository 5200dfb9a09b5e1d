"""Conversations made short, by OpenAI's own client."""

import openai
import pytest
from msgspec.structs import replace

from mindspore_serving.core.llm_messages import Chunk, Refused
from tests.frontends.openai.serving import CARD
from tests.waiting import PATIENCE

CONVERSATION = [
    {"role": "user", "content": "Where is the lamp?"},
    {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c", "output": "left"},
    {"role": "assistant", "content": "To the left."},
    {"role": "user", "content": [{"type": "input_text", "text": "Thanks"}]},
]
SUMMARY = "A lamp is to the left. \u00e9"


@pytest.fixture
def client(web):
    web.control.card = replace(CARD, tool_format="hermes", reasoning_format="think")
    web.says(Chunk(0, f"<think>Hm.</think>{SUMMARY}", (1, 2), None, "stop"))
    with openai.OpenAI(base_url=web.url, api_key="none", max_retries=0, timeout=PATIENCE) as one:
        yield one


def test_compacting_keeps_users_messages_and_adds_a_summary(web, client):
    found = client.responses.compact(model="toy", input=CONVERSATION)
    assert found.object == "response.compaction"
    assert [item.type for item in found.output] == ["message", "message", "compaction"]
    texts = [item.content[0].text for item in found.output[:2]]
    assert texts == ["Where is the lamp?", "Thanks"]
    assert found.usage.total_tokens == 5
    assert [one["role"] for one in web.sent.messages] == [
        *("user", "assistant", "tool", "assistant", "user", "user")
    ]
    assert web.sent.messages[-1]["content"].startswith("Sum up this conversation")
    assert web.sent.params.max_tokens == CARD.max_model_len // 4


def test_the_model_reads_a_summary_that_the_client_sends_back(web, client):
    short = client.responses.compact(model="toy", input=CONVERSATION).output
    given = [item.to_dict(warnings=False) for item in short]  # it knows no input_text in an output
    client.responses.create(model="toy", input=[*given, {"role": "user", "content": "And now?"}])
    said = [(one["role"], one["content"]) for one in web.sent.messages]
    assert said[-2:] == [("assistant", SUMMARY), ("user", "And now?")]
    assert len(said) == 4


def test_a_stored_response_is_compacted_with_earlier_responses(web, client):
    first = client.responses.create(model="toy", input="Where is the lamp?")
    found = client.responses.compact(model="toy", previous_response_id=first.id)
    assert [item.type for item in found.output] == ["message", "compaction"]
    assert found.output[0].content[0].text == "Where is the lamp?"
    assert len(web.sent.messages) == 3


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({}, "input"),
        ({"input": []}, "input"),
        ({"input": [{"type": "compaction", "encrypted_content": "gAAAA?"}]},
         "input[0].encrypted_content"),
        ({"previous_response_id": "resp_none"}, "previous_response_id"),
    ],
)  # fmt: skip
def test_invalid_conversations_are_not_compacted(client, given, param):
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.compact(model="toy", **given)
    assert caught.value.param == param


def test_a_conversation_beyond_the_context_is_refused(web, client):
    web.answers(Refused("context", "too long", 200, 128))
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.compact(model="toy", input=CONVERSATION)
    assert (caught.value.param, caught.value.code) == ("input", "context_length_exceeded")
