"""Anthropic's own client, over a model that says what the test tells it to."""

import asyncio
import json

import anthropic
import pydantic
import pytest

from mindspore_serving.core.llm_messages import Chunk, Refused, Started, Tokenized
from mindspore_serving.errors import DeadlineExceeded, ServableUnavailable, ServingError
from mindspore_serving.frontends.keys import ApiKey
from mindspore_serving.frontends.tenants.limits import Limits
from tests.frontends.anthropic.conftest import mount
from tests.frontends.openai.serving import serving, spoken, token, whole

HELLO = {"model": "toy", "max_tokens": 9, "messages": [{"role": "user", "content": "hello"}]}
ADD = {
    "name": "add",
    "description": "Adds.",
    "input_schema": {
        "type": "object",
        "properties": {"left": {"type": "integer"}, "right": {"type": "integer"}},
        "required": ["left", "right"],
    },
}
CALL = '<tool_call>\n{"name": "add", "arguments": {"left": 1, "right": 2}}\n</tool_call>'


def test_an_answer_has_text_a_reason_usage_and_the_request_id(web, client):
    web.says(Chunk(0, "Hi!", (72, 33), None, "stop"), num_prompt=5, num_generated=3)
    found = client.messages.create(**HELLO)
    assert (found.type, found.role, found.model) == ("message", "assistant", "toy")
    assert [(block.type, block.text) for block in found.content] == [("text", "Hi!")]
    assert (found.stop_reason, found.stop_sequence) == ("end_turn", None)
    usage = found.usage
    assert (usage.input_tokens, usage.cache_read_input_tokens, usage.output_tokens) == (4, 1, 3)
    assert found.id.startswith("msg_")
    assert found._request_id.startswith("req_")
    assert not web.sent.is_stream


def test_the_beta_client_is_answered_too(web, client):
    web.says(*spoken("Hi"))
    found = client.beta.messages.create(**HELLO, betas=["interleaved-thinking-2025-05-14"])
    assert found.content[0].text == "Hi"


BATCH = [{"custom_id": "a", "params": HELLO}]


@pytest.mark.parametrize(
    "ask",
    [
        lambda beta: beta.messages.batches.create(requests=BATCH),
        lambda beta: beta.messages.batches.list(),
        lambda beta: beta.messages.batches.retrieve("x"),
        lambda beta: beta.files.list(),
        lambda beta: beta.files.upload(file=("a.txt", b"a")),
        lambda beta: beta.files.retrieve_metadata("x"),
        lambda beta: beta.skills.list(),
        lambda beta: beta.agents.list(),
        lambda beta: beta.models.retrieve("none"),
    ],
)
def test_the_beta_client_gets_anthropics_errors_for_missing_routes(client, ask):
    with pytest.raises(anthropic.NotFoundError) as caught:
        ask(client.beta)
    body = caught.value.body
    assert (body["type"], body["error"]["type"]) == ("error", "not_found_error")
    assert body["request_id"].startswith("req_")


def test_the_beta_client_lists_models_and_counts_tokens(web, client):
    assert [one.id for one in client.beta.models.list()] == ["toy", "tuned", "vectors"]
    web.answers(Tokenized("", (token("a"),), ((0, 1),)))
    asked = {name: HELLO[name] for name in ("model", "messages")}
    assert client.beta.messages.count_tokens(**asked).input_tokens == 1


def test_a_beta_path_without_a_key_is_refused_in_anthropics_form():
    with serving(mount, [ApiKey("secret")]) as web:
        base = web.url.removesuffix("/v1")
        client = anthropic.Anthropic(base_url=base, api_key="wrong", max_retries=0)
        with client, pytest.raises(anthropic.AuthenticationError) as caught:
            client.beta.files.list()
    assert caught.value.body["error"]["type"] == "authentication_error"


def test_a_stream_has_every_event_in_order(web, client):
    web.says(*spoken("<think>", "Hm.", "</think>", "Hi", " there"))
    found = list(client.messages.create(**HELLO, stream=True))
    assert [event.type for event in found] == [
        "message_start",
        *("content_block_start", "content_block_delta", "content_block_delta"),
        "content_block_stop",
        *("content_block_start", "content_block_delta", "content_block_delta"),
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    assert [event.delta.type for event in found if event.type == "content_block_delta"] == [
        "thinking_delta",
        "signature_delta",
        "text_delta",
        "text_delta",
    ]
    assert [event.index for event in found if event.type == "content_block_start"] == [0, 1]
    assert found[0].message.usage.input_tokens == 3
    assert found[-2].usage.output_tokens == 2
    assert web.sent.is_stream


def test_the_stream_helper_builds_the_same_message(web, client):
    text = f"<think>Hm.</think>Well.{CALL}"
    web.says(*spoken(*[text[i : i + 7] for i in range(0, len(text), 7)]))
    with client.messages.stream(**HELLO, tools=[ADD]) as stream:
        kinds = {event.type for event in stream}
        found = stream.get_final_message()
    assert {"thinking", "text", "input_json", "signature"} <= kinds
    thinking, said, use = found.content
    assert (thinking.thinking, said.text) == ("Hm.", "Well.")
    assert (use.name, use.input) == ("add", {"left": 1, "right": 2})
    assert use.id.startswith("toolu_")
    assert found.stop_reason == "tool_use"
    assert (found.usage.input_tokens, found.usage.cache_read_input_tokens) == (2, 1)


def test_a_conversation_continues_with_the_output_items(web, client):
    web.says(Chunk(0, f"<think>Hm.</think>{CALL}{CALL}", (1,), None, "stop"))
    said = [{"role": "user", "content": "1 + 2?"}]
    first = client.messages.create(**{**HELLO, "messages": said}, tools=[ADD])
    results = [
        {"type": "tool_result", "tool_use_id": use.id, "content": "3", "is_error": bool(index)}
        for index, use in enumerate(first.content[1:])
    ]
    said += [
        {"role": "assistant", "content": first.content},
        {"role": "user", "content": [*results, {"type": "text", "text": "So?"}]},
    ]
    web.says(*spoken("3"))
    client.messages.create(**{**HELLO, "messages": said}, tools=[ADD])
    assert [message["role"] for message in web.sent.messages] == [
        *("user", "assistant", "tool", "tool", "user")
    ]
    asked, *told, last = web.sent.messages[1:]
    assert asked["reasoning_content"] == "Hm."
    assert [call["function"]["arguments"] for call in asked["tool_calls"]] == [
        {"left": 1, "right": 2}
    ] * 2
    assert [one["name"] for one in told] == ["add", "add"]
    assert [one["content"] for one in told] == ["3", "Error: 3"]
    assert [one["tool_call_id"] for one in told] == [use.id for use in first.content[1:]]
    assert last["content"] == "So?"


class Sum(pydantic.BaseModel):
    left: int
    right: int


def test_an_answer_is_parsed_as_a_pydantic_model(web, client):
    web.says(Chunk(0, '{"left":1,"right":2}', (1,), None, "stop"))
    found = client.messages.parse(**HELLO, output_format=Sum)
    assert found.parsed_output == Sum(left=1, right=2)
    assert web.sent.grammar.kind == "json_schema"


def test_tokens_are_counted(web, client):
    web.inference.script = lambda request: [Tokenized("abc", (token("a"),) * 3, ((0, 1),) * 3)]
    found = client.messages.count_tokens(
        model="toy", system="Be brief.", messages=HELLO["messages"], tools=[ADD]
    )
    assert found.input_tokens == 3
    assert [one["role"] for one in web.sent.messages] == ["system", "user"]
    assert web.sent.tools[0]["function"]["parameters"] == ADD["input_schema"]


def test_models_are_listed_and_found_in_the_form_of_who_asks(web, client):
    assert [model.id for model in client.models.list()] == ["toy", "tuned", "vectors"]
    found = client.models.retrieve("toy")
    assert (found.id, found.type, found.max_input_tokens) == ("toy", "model", 128)
    assert found.created_at.year == 2023
    assert web.call("GET", "/v1/models").json["object"] == "list"
    with pytest.raises(anthropic.NotFoundError) as caught:
        client.models.retrieve("none")
    assert caught.value.type == "not_found_error"


@pytest.mark.parametrize(
    ("said", "kind", "name"),
    [
        (Refused("context", "x", 9, 8), anthropic.BadRequestError, "invalid_request_error"),
        (Refused("overloaded", "x"), anthropic.APIStatusError, "overloaded_error"),
        (ServableUnavailable("x"), anthropic.APIStatusError, "api_error"),
        (DeadlineExceeded("x"), anthropic.APIStatusError, "timeout_error"),
        (ServingError("x"), anthropic.InternalServerError, "api_error"),
    ],
)
def test_errors_are_the_clients_exceptions(web, client, said, kind, name):
    web.inference.script = lambda request: said if isinstance(said, ServingError) else [said]
    with pytest.raises(kind) as caught:
        client.messages.create(**HELLO)
    assert caught.value.type == name
    assert caught.value.request_id.startswith("req_")
    assert caught.value.body["type"] == "error"
    assert caught.value.body["request_id"] == caught.value.request_id


def test_a_long_prompt_is_refused_with_the_text_agents_search_for(web, client):
    web.answers(Refused("context", "the prompt has 9 tokens", 9, 8))
    with pytest.raises(anthropic.BadRequestError, match="prompt is too long: "):
        client.messages.create(**HELLO)


def test_an_overloaded_server_has_its_own_status(web, client):
    web.answers(Refused("overloaded", "x", retry_after=2.5))
    with pytest.raises(anthropic.APIStatusError) as caught:
        client.messages.create(**HELLO)
    assert caught.value.status_code == 529
    assert caught.value.response.headers["retry-after"] == "3"


def test_an_error_in_a_stream_is_raised(web, client):
    web.says(Chunk(0, "Hi", (1,)), Chunk(0, "", (), None, "error", "out of memory"))
    stream = client.messages.create(**HELLO, stream=True)
    with pytest.raises(anthropic.APIStatusError, match="out of memory"):
        list(stream)


def test_keys_come_in_the_header_of_either_kind():
    key, spent = "a-key-that-is-long-enough", "a-key-that-may-do-nothing"
    with serving(mount, [ApiKey(key), ApiKey(spent, limits=Limits(max_requests=0))]) as web:

        def ask(**given):
            base = web.url.removesuffix("/v1")
            with anthropic.Anthropic(base_url=base, max_retries=0, **given) as client:
                return client.messages.create(**HELLO).content[0].text

        assert ask(api_key=key) == "Hi!"
        assert ask(api_key=None, auth_token=key) == "Hi!"
        with pytest.raises(anthropic.RateLimitError) as limited:
            ask(api_key=spent)
        assert limited.value.type == "rate_limit_error"
        with pytest.raises(anthropic.AuthenticationError) as wrong:
            ask(api_key="wrong")
        assert wrong.value.type == "authentication_error"


async def test_the_asynchronous_client_streams_and_leaves(web):
    web.inference.script = lambda request: None
    base = web.url.removesuffix("/v1")
    async with anthropic.AsyncAnthropic(base_url=base, api_key="none", max_retries=0) as client:

        async def read_one() -> str:
            async with client.messages.stream(**HELLO) as stream:
                async for text in stream.text_stream:
                    return text
            return ""

        reading = asyncio.ensure_future(read_one())
        await asyncio.to_thread(web.inference.wait, lambda: web.inference.calls)
        call = web.inference.calls[-1]
        call.say([Started(1, 0), Chunk(0, "Hi", (1,))], is_last=False)
        assert await reading == "Hi"
        await asyncio.to_thread(web.inference.wait, lambda: call.is_cancelled)


def test_a_tool_runner_calls_a_function_of_the_clients(web, client):
    @anthropic.beta_tool
    def add(left: int, right: int) -> str:
        """Adds.

        Args:
            left: one
            right: the other
        """
        return json.dumps(left + right)

    answers = [Chunk(0, CALL, (1,), None, "stop"), Chunk(0, "It is 3.", (1,), None, "stop")]
    web.inference.script = lambda request: whole(answers.pop(0))
    runner = client.beta.messages.tool_runner(**HELLO, tools=[add])
    assert runner.until_done().content[0].text == "It is 3."
    assert web.sent.messages[-1]["content"] == "3"
