"""Responses: what the model is asked, what the client is told."""

import asyncio
import json

import msgspec
import pytest
from msgspec.structs import replace

from mindspore_serving.core.llm_messages import Chunk, Grammar, Refused, Started
from mindspore_serving.errors import ServableUnavailable
from mindspore_serving.frontends.openai.response_input import to_messages
from tests.frontends.openai.disconnecting import leave
from tests.frontends.openai.serving import CARD, spoken, token
from tests.growth import growth

WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather now.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    "strict": True,
}
SAID = {"role": "user", "content": "a"}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'


@pytest.fixture
def thinker(web):
    """A model that reasons, and calls tools as Hermes does."""
    web.control.card = replace(CARD, tool_format="hermes", reasoning_format="think")
    return web


def respond(web, given="hello", **fields):
    return web.call("POST", "/v1/responses", {"input": given, "model": "toy", **fields})


def events(answer):
    """(name, data) of each event of a stream."""
    found = []
    for block in answer.body.decode().split("\n\n")[:-1]:
        name, data = block.split("\n")
        found.append((name.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
    return found


def streamed(web, **fields):
    answer = respond(web, stream=True, **fields)
    assert answer.status == 200
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    found = events(answer)
    assert [name for name, _ in found] == [data["type"] for _, data in found]
    assert [data["sequence_number"] for _, data in found] == list(range(len(found)))
    return [data for _, data in found]


# --- the answer as a whole --------------------------------------------------------------------


def test_an_answer_is_an_object_with_a_message_and_usage(web):
    web.says(Chunk(0, "Hi!", (72, 33, 2), None, "stop"), num_prompt=5, num_generated=3)
    answer = respond(web, instructions="Be kind.", metadata={"a": "b"}, max_output_tokens=9)
    assert answer.status == 200
    found = answer.json
    assert found.pop("id").startswith("resp_")
    assert found.pop("created_at") <= found.pop("completed_at")
    (message,) = found.pop("output")
    assert message.pop("id").startswith("msg_")
    assert message == {
        "type": "message",
        "status": "completed",
        "role": "assistant",
        "content": [{"type": "output_text", "text": "Hi!", "annotations": [], "logprobs": []}],
    }
    assert found.pop("usage") == {
        "input_tokens": 5,
        "input_tokens_details": {"cached_tokens": 1, "cache_write_tokens": 0},
        "output_tokens": 3,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 8,
    }
    assert found == {
        "object": "response",
        "status": "completed",
        "background": False,
        "error": None,
        "incomplete_details": None,
        "instructions": "Be kind.",
        "max_output_tokens": 9,
        "metadata": {"a": "b"},
        "model": "toy",
        "parallel_tool_calls": True,
        "previous_response_id": None,
        "conversation": None,
        "reasoning": {"effort": None, "summary": None},
        "service_tier": "default",
        "store": True,
        "temperature": 1.0,
        "text": {"format": {"type": "text"}},
        "tool_choice": "auto",
        "tools": [],
        "top_logprobs": 0,
        "top_p": 1.0,
        "truncation": "disabled",
        "user": None,
    }
    assert not web.sent.is_stream


def test_an_answer_that_is_cut_off_is_incomplete(web):
    web.says(Chunk(0, "Hi", (72,), None, "length"))
    found = respond(web, max_output_tokens=1).json
    assert found["status"] == found["output"][0]["status"] == "incomplete"
    assert found["incomplete_details"] == {"reason": "max_output_tokens"}
    assert found["completed_at"] is None


def test_an_answer_that_says_nothing_is_an_empty_message(web):
    web.says(Chunk(0, "", (2,), None, "stop"))
    assert respond(web).json["output"][0]["content"][0]["text"] == ""


def test_reasoning_and_calls_are_items_before_and_behind_the_text(thinker):
    thinker.says(
        Chunk(0, "<think>", (1,)),
        Chunk(0, "Hm, Paris.", (2, 3)),
        Chunk(0, "</think>", (4,)),
        Chunk(0, "Let me look.", (5, 6)),
        Chunk(0, CALL, (7, 8, 9), None, "stop"),
        num_generated=9,
    )
    found = respond(thinker, tools=[WEATHER]).json
    reasoning, message, call = found["output"]
    assert reasoning["content"] == [{"type": "reasoning_text", "text": "Hm, Paris."}]
    assert (reasoning["type"], reasoning["summary"]) == ("reasoning", [])
    assert reasoning["id"].startswith("rs_")
    assert message["content"][0]["text"].strip() == "Let me look."
    assert call["id"].startswith("fc_")
    assert call["call_id"].startswith("call_")
    assert (call["type"], call["name"]) == ("function_call", "get_weather")
    assert json.loads(call["arguments"]) == {"city": "Paris"}
    assert {item["status"] for item in found["output"]} == {"completed"}
    assert found["usage"]["output_tokens_details"] == {"reasoning_tokens": 4}
    assert found["tools"] == [WEATHER]


def test_logprobs_are_of_the_text_they_belong_to(web):
    web.says(Chunk(0, "Hi", (1, 2), (token("H", -1.0, token("J", -2.0)), token("i", -0.5)), "stop"))
    fields = {"include": ["message.output_text.logprobs"], "top_logprobs": 1}
    (part,) = respond(web, **fields).json["output"][0]["content"]
    assert [entry["token"] for entry in part["logprobs"]] == ["H", "i"]
    assert part["logprobs"][0] == {
        "token": "H",
        "logprob": -1.0,
        "bytes": [72],
        "top_logprobs": [{"token": "J", "logprob": -2.0, "bytes": [74]}],
    }
    assert web.sent.params.logprobs == 1
    assert web.sent.has_tokens


# --- the answer as a stream -------------------------------------------------------------------


def test_a_stream_has_the_events_of_a_message(web):
    web.says(*spoken("Hi", " \u00e9"))
    found = streamed(web)
    assert [event["type"].removeprefix("response.") for event in found] == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]
    created, added, part, deltas, done, item, last = (
        found[0], found[2], found[3], found[4:6], found[6], found[8], found[9]
    )  # fmt: skip
    assert (created["response"]["status"], created["response"]["output"]) == ("in_progress", [])
    assert (added["item"]["status"], added["item"]["content"]) == ("in_progress", [])
    assert part["part"] == {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
    assert [delta["delta"] for delta in deltas] == ["Hi", " \u00e9"]
    place = {"item_id": added["item"]["id"], "output_index": 0, "content_index": 0}
    assert {name: deltas[1][name] for name in place} == place
    assert done["text"] == "Hi \u00e9"
    assert last["response"]["output"] == [item["item"]]
    assert item["item"]["content"][0]["text"] == "Hi \u00e9"
    assert last["response"]["usage"]["total_tokens"] == 5
    assert last["response"]["id"] == created["response"]["id"]
    assert web.sent.is_stream


def test_a_stream_tells_of_every_item_and_ends_with_all(thinker):
    text = f"<think>Hm.</think>Well.{CALL}"
    thinker.says(*spoken(*[text[i : i + 7] for i in range(0, len(text), 7)]))
    found = streamed(thinker, tools=[WEATHER])
    added = [event for event in found if event["type"] == "response.output_item.added"]
    assert [(event["output_index"], event["item"]["type"]) for event in added] == [
        (0, "reasoning"),
        (1, "message"),
        (2, "function_call"),
    ]
    done = [event["item"] for event in found if event["type"] == "response.output_item.done"]
    assert found[-1]["response"]["output"] == done
    for kind, index, whole in (
        ("reasoning_text", 0, done[0]["content"][0]["text"]),
        ("output_text", 1, done[1]["content"][0]["text"]),
        ("function_call_arguments", 2, done[2]["arguments"]),
    ):
        deltas = [event for event in found if event["type"] == f"response.{kind}.delta"]
        assert "".join(event["delta"] for event in deltas) == whole
        assert {event["output_index"] for event in deltas} == {index}
        assert {event["item_id"] for event in deltas} == {done[index]["id"]}
    assert json.loads(done[2]["arguments"]) == {"city": "Paris"}


def test_a_stream_that_is_cut_off_ends_with_incomplete(web):
    web.says(*spoken("Hi", reason="length"))
    last = streamed(web)[-1]
    assert last["type"] == "response.incomplete"
    assert last["response"]["incomplete_details"] == {"reason": "max_output_tokens"}


def test_a_stream_whose_model_is_lost_ends_with_failed(web):
    def script(request):
        asyncio.get_running_loop().call_soon(
            lambda: web.inference.calls[-1].say(whole_but_lost, is_last=False)
        )
        asyncio.get_running_loop().call_soon(
            lambda: web.inference.calls[-1].say(ServableUnavailable("the worker died"))
        )

    whole_but_lost = [Started(3, 7), Chunk(0, "Hi", (72,))]
    web.inference.script = script
    last = streamed(web)[-1]
    assert last["type"] == "response.failed"
    assert last["response"]["status"] == "failed"
    assert last["response"]["error"] == {"code": "server_error", "message": "the worker died"}


def test_a_model_that_fails_is_an_error_in_its_form(web):
    web.says(Chunk(0, "", (), None, "error", "out of memory"))
    answer = respond(web)
    assert (answer.status, answer.error["type"]) == (500, "server_error")
    assert "out of memory" in answer.error["message"]
    assert streamed(web)[-1]["type"] == "response.failed"


def test_who_leaves_a_stream_frees_the_model(web):
    web.inference.script = lambda request: None
    body = {"input": "hello", "stream": True}
    said = [Started(3, 7), Chunk(0, "Hi", (72,))]
    leave(web, "/v1/responses", body, said=said, until=b"output_text.delta")
    web.inference.wait(lambda: web.inference.calls[-1].is_cancelled)
    assert web.inference.calls[-1].is_cancelled


# --- what the model is asked ------------------------------------------------------------------


def test_a_text_input_is_a_users_message_after_the_instructions(web):
    respond(web, "hello", instructions="Be kind.")
    assert web.sent.messages == [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "hello"},
    ]


def test_items_of_a_turn_become_a_single_message(web):
    respond(
        web,
        [
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": [{"type": "input_text", "text": "Weather?"}]},
            {
                "type": "reasoning",
                "id": "rs_1",
                "summary": [],
                "content": [{"type": "reasoning_text", "text": "Hm."}],
            },
            {
                "type": "message",
                "id": "msg_1",
                "status": "completed",
                "role": "assistant",
                "content": [{"type": "output_text", "text": "I look.", "annotations": []}],
            },
            {"type": "function_call", "id": "fc_1", "call_id": "a", "name": "f", "arguments": "{}"},
            {"type": "function_call", "call_id": "b", "name": "g", "arguments": '{"x":1}'},
            {"type": "function_call_output", "call_id": "a", "output": "sun"},
            {
                "type": "function_call_output",
                "call_id": "b",
                "output": [{"type": "input_text", "text": "rain"}],
            },
            {"role": "assistant", "content": "Sun."},
            {"role": "user", "content": "Thanks."},
        ],
        instructions="Be kind.",
    )
    assert web.sent.messages == [
        {"role": "system", "content": "Be kind.\n\nBe brief."},
        {"role": "user", "content": "Weather?"},
        {
            "role": "assistant",
            "content": "I look.",
            "reasoning_content": "Hm.",
            "tool_calls": [
                {"type": "function", "id": "a", "function": {"name": "f", "arguments": {}}},
                {"type": "function", "id": "b", "function": {"name": "g", "arguments": {"x": 1}}},
            ],
        },
        {"role": "tool", "content": "sun", "tool_call_id": "a", "name": "f"},
        {"role": "tool", "content": "rain", "tool_call_id": "b", "name": "g"},
        {"role": "assistant", "content": "Sun."},
        {"role": "user", "content": "Thanks."},
    ]


def test_consecutive_turns_stay_separate_messages(web):
    call = {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"}
    thought = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm."}]}
    said = {"role": "assistant", "content": "One."}
    respond(web, [said, said, call, thought, call])
    assert [sorted(message) for message in web.sent.messages] == [
        ["content", "role"],
        ["content", "role", "tool_calls"],
        ["content", "reasoning_content", "role", "tool_calls"],
    ]


def test_each_item_is_looked_at_once():
    def read(count):
        items = [
            {"role": "user", "content": "a"},
            *[{"role": role, "content": "a"} for role in ("system", "user", "assistant")] * count,
        ]
        raw = [msgspec.Raw(msgspec.json.encode(item)) for item in items]
        return lambda: to_messages(raw, "Be kind.")

    assert growth(read, 100) < 5


def test_output_items_are_accepted_as_input(thinker):
    thinker.says(Chunk(0, f"<think>Hm.</think>Well.{CALL}", (1,), None, "stop"))
    output = respond(thinker, tools=[WEATHER]).json["output"]
    result = {"type": "function_call_output", "call_id": output[-1]["call_id"], "output": "sun"}
    answer = respond(thinker, [{"role": "user", "content": "x"}, *output, result], tools=[WEATHER])
    assert answer.status == 200
    assert [message["role"] for message in thinker.sent.messages] == ["user", "assistant", "tool"]
    assert thinker.sent.messages[1]["reasoning_content"] == "Hm."


def test_sampling_is_as_asked(web):
    respond(web, temperature=0.5, top_p=0.9, max_output_tokens=7)
    params = web.sent.params
    assert (params.temperature, params.top_p, params.max_tokens) == (0.5, 0.9, 7)


def test_without_a_limit_the_answer_may_fill_the_context(web):
    respond(web)
    assert web.sent.params.max_tokens is None


@pytest.mark.parametrize(
    ("form", "grammar"),
    [
        ({"type": "text"}, None),
        ({"type": "json_object"}, Grammar("json_object")),
        (
            {"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": True},
            Grammar("json_schema", '{"type":"object"}'),
        ),
    ],
)
def test_the_form_of_the_text_is_a_grammar(web, form, grammar):
    assert respond(web, text={"format": form}).json["text"] == {"format": form}
    assert web.sent.grammar == grammar


def test_effort_is_told_to_the_template(web):
    found = respond(web, reasoning={"effort": "low"}).json
    assert web.sent.template_options == {"reasoning_effort": "low"}
    assert found["reasoning"] == {"effort": "low", "summary": None}


def test_reasoning_of_a_response_is_limited_by_max_tokens(web):
    respond(web, reasoning={"max_tokens": 64})
    assert web.sent.params.thinking_token_budget == 64


def test_tools_are_told_to_the_template(thinker):
    respond(thinker, tools=[WEATHER], parallel_tool_calls=False)
    assert thinker.sent.tools == [
        {
            "type": "function",
            "function": {key: WEATHER[key] for key in ("name", "description", "parameters")},
        }
    ]
    assert thinker.sent.grammar is None


@pytest.mark.parametrize(
    "choice",
    [
        "required",
        {"type": "function", "name": "get_weather"},
        {
            "type": "allowed_tools",
            "mode": "required",
            "tools": [{"type": "function", "name": "get_weather"}],
        },
    ],
)
def test_a_call_that_must_be_is_a_grammar(thinker, choice):
    found = respond(thinker, tools=[WEATHER], tool_choice=choice).json
    assert found["tool_choice"] == choice
    assert thinker.answer_format.grammar is not None


def test_no_tools_are_told_of_if_none_may_be_called(thinker):
    respond(thinker, tools=[WEATHER], tool_choice="none")
    assert thinker.answer_format.tools == []


def test_fields_without_a_meaning_here_are_taken(web):
    fields = {
        "store": True,
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "k",
        "service_tier": "auto",
        "safety_identifier": "s",
        "stream_options": {"include_obfuscation": False},
    }
    found = respond(web, **fields)
    assert (found.status, found.json["store"]) == (200, True)


def test_reasoning_goes_back_as_encoded_content(thinker):
    """As Codex sends it: without the text of the reasoning."""
    fields = {"include": ["reasoning.encrypted_content"], "store": False}
    thinker.says(*spoken("<think>", "Hm", ".", "</think>", "Hi"))
    item, message = respond(thinker, **fields).json["output"]
    streamed = [data for _, data in events(respond(thinker, **fields, stream=True))]
    done = [data["item"] for data in streamed if data["type"] == "response.output_item.done"]
    assert done[0]["encrypted_content"] == item["encrypted_content"] != "Hm."
    sent = {name: item[name] for name in ("type", "id", "summary", "encrypted_content")}
    turns = [{"role": "user", "content": "a"}, sent, message, {"role": "user", "content": "b"}]
    assert respond(thinker, turns).status == 200
    expected = {"role": "assistant", "content": "Hi", "reasoning_content": "Hm."}
    assert thinker.sent.messages[1] == expected
    assert "encrypted_content" not in respond(thinker).json["output"][0]


@pytest.mark.parametrize("content", ["gAAAAABpZtK3", "ms1.?", "ms1./w==", None])
@pytest.mark.parametrize("summary", [[], [{"type": "summary_text", "text": "In short."}]])
def test_reasoning_that_another_server_encrypted_is_left_out(thinker, content, summary):
    item = {"type": "reasoning", "id": "rs_1", "summary": summary, "encrypted_content": content}
    turns = [{"role": "user", "content": "a"}, item, {"role": "user", "content": "b"}]
    assert respond(thinker, turns).status == 200
    texts = [one.get("reasoning_content") for one in thinker.sent.messages]
    assert texts == [None, *[part["text"] for part in summary], None]


# --- what is refused --------------------------------------------------------------------------

FUNCTION = {"type": "function", "name": "f"}


@pytest.mark.parametrize(
    ("fields", "param", "text"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id", "is no longer stored"),
        ({"prompt": {"id": "pmpt_1"}}, "prompt", "no stored prompts"),
        ({"background": True, "store": False}, "background", "expected store: true"),
        ({"truncation": "auto"}, "truncation", 'is "auto", expected disabled'),
        ({"input": None}, "input", "null"),
        ({"input": []}, "input", "at least one item"),
        ({"input": [5]}, "input[0]", "input[0] is 5, expected an object"),
        ({"input": [{"role": "user"}]}, "input[0].content", "input[0].content is missing"),
        ({"input": [{"role": "user", "content": 5}]}, "input[0].content", "is 5, expected"),
        ({"input": [{"role": "judge", "content": "x"}]}, "input[0].role", 'is "judge", expected'),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].id", "previous_response_id"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
            "input[0].content[0].type",
            "the model reads no images",
        ),
        (
            {
                "instructions": "i",
                "input": [
                    {"role": "system", "content": "s"},
                    {"role": "user", "content": [{"type": "input_file"}]},
                ],
            },
            "input[1].content[0].type",
            'input[1].content[0].type is "input_file"',
        ),
        ({"input": [{"type": "function_call", "name": "f"}]}, "input[0].call_id", "is missing"),
        ({"tools": [{"type": 5}]}, "tools[0].type", "expected a string"),
        ({"tools": [{"type": "web_search"}], "tool_choice": "required"}, "tool_choice", "tools"),
        ({"tools": [{"type": "function"}]}, "tools[0].name", "tools[0].name is missing"),
        ({"tools": [{**FUNCTION, "name": "a b"}]}, "tools[0].name", 'tools[0].name is "a b"'),
        ({"tools": [{**FUNCTION, "parameters": 5}]}, "tools[0].parameters", "is 5, expected"),
        ({"tools": [FUNCTION], "tool_choice": "maybe"}, "tool_choice", 'is "maybe"'),
        (
            {"tools": [FUNCTION], "tool_choice": {"type": "function", "name": "g"}},
            "tool_choice.name",
            'tool_choice.name is "g", expected one of the tools: f',
        ),
        (
            {"tools": [FUNCTION], "tool_choice": {"type": "allowed_tools", "mode": "x"}},
            "tool_choice.mode",
            'tool_choice.mode is "x"',
        ),
        ({"tool_choice": {"type": "file_search"}}, "tool_choice.type", "file_search"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type", 'is "xml", expected text'),
        (
            {"text": {"format": {"type": "json_schema", "name": "n"}}},
            "text.format.schema",
            "text.format.schema is missing",
        ),
        (
            {"text": {"format": {"type": "json_schema", "name": "a b", "schema": {}}}},
            "text.format.name",
            'text.format.name is "a b"',
        ),
        (
            {"input": [{"role": "user", "content": "a"}] * 2049},
            "input",
            "input has 2049 entries, expected at most 2048",
        ),
        ({"max_output_tokens": 0}, "max_output_tokens", "max_output_tokens is 0, expected"),
        ({"temperature": 3}, "temperature", "temperature is 3"),
        ({"top_p": 0}, "top_p", "top_p is 0"),
        ({"top_logprobs": 21}, "top_logprobs", "top_logprobs is 21, expected 0 to 20"),
        ({"model": "vectors"}, "model", "embeds texts and cannot generate"),
    ],
)
def test_errors_use_the_field_names_of_responses(web, fields, param, text):
    body = {"input": "hello", "model": "toy", **fields}
    answer = web.call("POST", "/v1/responses", body)
    assert (answer.status, answer.error["param"]) == (400, param)
    assert text in answer.error["message"]
    assert not web.inference.calls


@pytest.mark.parametrize(
    ("refused", "expected"),
    [
        (Refused("context", "too long"), (400, "input", "context_length_exceeded")),
        (Refused("template", "roles must alternate"), (400, "input", None)),
        (Refused("grammar", "no such type"), (400, "text.format", None)),
        (Refused("overloaded", "too many wait"), (429, None, "rate_limit_exceeded")),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_refusals_of_the_model_are_status_400(web, refused, expected, stream):
    web.answers(refused)
    answer = respond(web, stream=stream)
    assert (answer.status, answer.error["param"], answer.error["code"]) == expected
    assert refused.text in answer.error["message"]


@pytest.mark.parametrize(
    ("verb", "path"),
    [
        ("GET", "/v1/responses/resp_1"),
        ("DELETE", "/v1/responses/resp_1"),
        ("POST", "/v1/responses/resp_1/cancel"),
        ("GET", "/v1/responses/resp_1/input_items"),
    ],
)
def test_an_earlier_response_is_not_there(web, verb, path):
    answer = web.call(verb, path)
    assert answer.status == 404
    assert answer.error["message"].startswith("The response 'resp_1' does not exist")
