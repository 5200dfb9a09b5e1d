"""Messages as bytes: what the model is asked, what the client is told, what is refused."""

import json

import pytest
from msgspec.structs import replace

from mindspore_serving.core.llm_messages import Chunk, Refused, Tokenized, ToolChoice
from tests.frontends.openai.serving import CARD, MAX_BODY, spoken, token

TOOLS = [
    {"name": name, "input_schema": {"type": "object", "properties": {}}} for name in ("look", "go")
]
CALL = '<tool_call>\n{"name": "look", "arguments": {"x": 1}}\n</tool_call>'
ANONYMOUS = b'{"model":"x","max_tokens":1,"messages":[]}'
CUT = '<tool_call>\n{"name": "look", "arguments": {"x": '


def ask(web, messages="hello", path="/v1/messages", headers=None, **fields):
    if isinstance(messages, str):
        messages = [{"role": "user", "content": messages}]
    body = {"model": "toy", "max_tokens": 16, "messages": messages, **fields}
    return web.call("POST", path, body, headers)


def block(kind, **fields):
    return {"type": kind, **fields}


def said(*blocks, role="user"):
    return [{"role": "user", "content": "hello"}, {"role": role, "content": [*blocks]}]


# --- what the model reads -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "system", ["Be kind.\nBe brief.", [block("text", text=t) for t in ("Be kind.", "Be brief.")]]
)
def test_the_system_prompt_is_a_text_or_blocks(system, web):
    assert ask(web, system=system).status == 200
    assert web.sent.messages[0] == {"role": "system", "content": "Be kind.\nBe brief."}


def test_consecutive_messages_of_a_role_are_joined(web):
    turns = [("user", "a"), ("user", "b"), ("assistant", "c"), ("assistant", "d"), ("user", "e")]
    assert ask(web, [{"role": role, "content": text} for role, text in turns]).status == 200
    assert [(one["role"], one["content"]) for one in web.sent.messages] == [
        ("user", "a\nb"),
        ("assistant", "c\nd"),
        ("user", "e"),
    ]


def test_a_tools_result_is_a_text_blocks_or_nothing(web):
    use = [block("tool_use", id=str(i), name="look", input={}) for i in range(3)]
    contents = [{"content": "sun"}, {"content": [block("text", text="rain")]}, {}]
    results = [block("tool_result", tool_use_id=str(i), **one) for i, one in enumerate(contents)]
    turns = [*said(*use, role="assistant"), {"role": "user", "content": results}]
    assert ask(web, turns, tools=TOOLS).status == 200
    assert [one["content"] for one in web.sent.messages[2:]] == ["sun", "rain", ""]
    assert [one["role"] for one in web.sent.messages[2:]] == ["tool"] * 3


def test_thinking_goes_back_with_its_signature(web):
    web.control.card = replace(CARD, reasoning_format="think")
    web.says(*spoken("<think>", "Hm", ".", "</think>", "Hi"))
    thinking, text = ask(web).json["content"]
    assert (thinking["type"], thinking["thinking"]) == ("thinking", "Hm.")
    hidden = block("redacted_thinking", data="x")
    turns = [*said(thinking, hidden, text, role="assistant"), {"role": "user", "content": "?"}]
    answer = ask(web, turns)
    expected = {"role": "assistant", "content": "Hi", "reasoning_content": "Hm."}
    assert (answer.status, web.sent.messages[1]) == (200, expected)
    assert "x-ignored-fields" not in answer.headers


@pytest.mark.parametrize("signature", [{}, {"signature": ""}, {"signature": "EqoBCkgIARABGAI="}])
def test_thinking_of_another_server_is_left_out(signature, web):
    thinking = block("thinking", thinking="Hm.", **signature)
    use = block("tool_use", id="1", name="look", input={})
    turns = said(thinking, use, role="assistant")
    result = block("tool_result", tool_use_id="1", content="sun")
    answer = ask(web, [*turns, {"role": "user", "content": [result]}], tools=TOOLS)
    assert answer.status == 200
    assert "reasoning_content" not in web.sent.messages[1]
    assert answer.headers["x-ignored-fields"] == "messages.content.thinking"


def test_sampling_has_anthropics_names_and_ours(web):
    ask(web, temperature=0.5, top_k=3, top_p=0.9, stop_sequences=["x"], min_p=0.1, seed=5)
    params = web.sent.params
    assert (params.max_tokens, params.temperature, params.top_k, params.top_p) == (16, 0.5, 3, 0.9)
    assert (params.stop, params.min_p, params.seed) == (["x"], 0.1, 5)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, ToolChoice()),
        ({"type": "auto"}, ToolChoice()),
        ({"type": "any"}, ToolChoice(mode="required")),
        ({"type": "tool", "name": "go"}, ToolChoice(mode="required", name="go")),
        ({"type": "none"}, ToolChoice(mode="none")),
        ({"type": "auto", "disable_parallel_tool_use": True}, ToolChoice(parallel=False)),
    ],
)
def test_a_choice_of_tools(given, expected, web):
    assert ask(web, tools=TOOLS, **({"tool_choice": given} if given else {})).status == 200
    assert web.sent.tool_choice == expected
    assert [tool["function"]["name"] for tool in web.sent.tools] == ["look", "go"]


@pytest.mark.parametrize(
    ("fields", "options"),
    [
        ({}, {}),
        ({"thinking": {"type": "adaptive"}}, {}),
        (
            {"thinking": {"type": "enabled", "budget_tokens": 1024}},
            {"enable_thinking": True, "thinking": True},
        ),
        ({"thinking": {"type": "disabled"}}, {"enable_thinking": False, "thinking": False}),
        ({"output_config": {"effort": "low"}}, {"reasoning_effort": "low"}),
    ],
)
def test_thinking_is_an_option_of_the_template(fields, options, web):
    assert ask(web, **fields).status == 200
    assert web.sent.template_options == options


def test_an_answer_that_was_begun_is_gone_on_with(web):
    web.says(*spoken(" is blue."))
    answer = ask(web, said(block("text", text="The sea"), role="assistant"))
    assert answer.json["content"] == [{"type": "text", "text": " is blue."}]
    off = {"enable_thinking": False, "thinking": False}
    assert web.sent.template_options == {"continue_final_message": True, **off}
    assert web.sent.messages[-1] == {"role": "assistant", "content": "The sea"}


def test_tokens_are_counted_as_tools_are_to_be_called(web):
    web.inference.script = lambda request: [Tokenized("a", (token("a"),), ((0, 1),))]
    path = "/v1/messages/count_tokens?beta=true"
    found = ask(web, path=path, tools=TOOLS, tool_choice={"type": "none"})
    assert found.json == {"input_tokens": 1}
    assert web.sent.tool_choice == ToolChoice(mode="none")


# --- what the client reads ----------------------------------------------------------------------


def test_a_stream_is_named_events_and_a_ping(web):
    web.says(*spoken("Hi"))
    answer = ask(web, stream=True, path="/v1/messages?beta=true")
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert answer.headers["request-id"] == answer.headers["x-request-id"]
    blocks = answer.body.decode().split("\n\n")[:-1]
    events = [dict(line.split(": ", 1) for line in one.split("\n")) for one in blocks]
    data = [json.loads(event["data"]) for event in events]
    assert [event["event"] for event in events] == [one["type"] for one in data]
    assert [one["type"] for one in data] == [
        *("message_start", "ping", "content_block_start", "content_block_delta"),
        *("content_block_stop", "message_delta", "message_stop"),
    ]
    assert data[0]["message"] == {
        **data[0]["message"],
        "type": "message",
        "role": "assistant",
        "content": [],
        "stop_reason": None,
    }
    assert data[2]["content_block"] == {"type": "text", "text": ""}
    assert data[3]["delta"] == {"type": "text_delta", "text": "Hi"}
    assert data[5]["delta"] == {"stop_reason": "end_turn", "stop_sequence": None}


@pytest.mark.parametrize(
    ("chunk", "reason", "sequence"),
    [
        (Chunk(0, "a", (1,), None, "stop", "END"), "stop_sequence", "END"),
        (Chunk(0, "a", (1,), None, "stop", "<model's own>"), "end_turn", None),
        (Chunk(0, "a", (1,), None, "stop", 2), "end_turn", None),
        (Chunk(0, CALL, (1,), None, "stop"), "tool_use", None),
    ],
)
def test_why_an_answer_ended(chunk, reason, sequence, web):
    web.says(chunk)
    found = ask(web, stop_sequences=["END"], tools=TOOLS).json
    assert (found["stop_reason"], found["stop_sequence"]) == (reason, sequence)


def test_an_answer_is_cut_off_by_its_limit_or_by_the_context(web):
    web.says(Chunk(0, "a", (1,), None, "length"), num_generated=16)
    assert ask(web).json["stop_reason"] == "max_tokens"
    assert ask(web, max_tokens=17).json["stop_reason"] == "model_context_window_exceeded"


def test_a_use_of_a_tool_that_was_cut_off_is_not_in_the_whole_answer(web):
    web.says(Chunk(0, f"{CALL}\n{CUT}", (1,), None, "length"))
    blocks = [one for one in ask(web, tools=TOOLS).json["content"] if one["type"] == "tool_use"]
    assert [one["input"] for one in blocks] == [{"x": 1}]


def test_ignored_fields_are_named_wherever_they_are(web):
    control = {"cache_control": {"type": "ephemeral"}}
    answer = ask(web, system=[block("text", text="Be kind.", **control)], metadata={"user_id": "x"})
    assert answer.headers["x-ignored-fields"] == "cache_control"
    result = block("tool_result", tool_use_id="1", content=[block("text", text="a", **control)])
    assert ask(web, said(result)).headers["x-ignored-fields"] == "cache_control"
    thinking = {"type": "enabled", "budget_tokens": 2048}
    answer = ask(web, thinking=thinking, context_management={}, tools=[{**TOOLS[0], **control}])
    names = {"context_management", "cache_control"}
    assert set(answer.headers["x-ignored-fields"].split(", ")) == names
    assert ask(web, shiny=1).headers["x-ignored-fields"] == "shiny"
    assert "x-ignored-fields" not in ask(web).headers


# --- what is refused ----------------------------------------------------------------------------

THINKING = {"thinking": {"type": "enabled", "budget_tokens": 1024}}
IMAGE = block("image", source={"type": "base64", "media_type": "image/png", "data": ""})


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"max_tokens": 0}, "max_tokens is 0, expected an int >= 1"),
        ({"max_tokens": None}, "max_tokens is null, expected an integer"),
        ({"temperature": 1.5}, "temperature is 1.5, expected a number from 0 to 1"),
        ({"top_p": 2}, "top_p is 2"),
        ({"stop_sequences": [""]}, "stop_sequences is"),
        ({"temprature": 1}, "did you mean temperature?"),
        ({"messages": []}, "messages is [], expected at least one message"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role is"),
        ({"messages": said(IMAGE)}, 'messages[1].content[0].type is "image"'),
        ({"messages": said(block("text"))}, "messages[1].content[0].text is missing"),
        ({"messages": said()}, "messages[1].content is []"),
        (
            {"messages": said(block("tool_result", tool_use_id="1", content=[IMAGE]))},
            'messages[1].content[0].content[0].type is "image"',
        ),
        (
            {"messages": said(block("tool_use", id="1", name="a", input={}), role="assistant")},
            "messages ends with a tool_use, expected its tool_result",
        ),
        (
            {"messages": said(block("text", text="a"), role="assistant"), **THINKING},
            "messages ends with the assistant's, expected thinking not",
        ),
        ({"system": [IMAGE]}, 'system[0].type is "image"'),
        ({"tools": [{"name": "a b", "input_schema": {}}]}, 'tools[0].name is "a b"'),
        ({"tools": [{"name": "a"}]}, "tools[0].input_schema is missing"),
        ({"tools": [TOOLS[0], TOOLS[0]]}, 'tools has "look" twice'),
        ({"tool_choice": {"type": "any"}}, 'tool_choice.type is "any", expected tools with it'),
        (
            {"tools": TOOLS, "tool_choice": {"type": "tool", "name": "fly"}},
            'tool_choice.name is "fly", expected one of the tools: look, go',
        ),
        ({"tools": TOOLS, "tool_choice": {"type": "required"}}, "expected auto, any, tool, none"),
        (
            {"thinking": {"type": "enabled", "budget_tokens": -1}},
            "thinking.budget_tokens is -1, expected an integer >= 0",
        ),
        ({"thinking": {"type": "between_tools"}}, 'thinking.type is "between_tools"'),
        ({"output_config": {"format": {"type": "xml"}}}, 'output_config.format.type is "xml"'),
        ({"mcp_servers": [{"name": "x"}]}, "mcp_servers is not supported"),
        ({"container": "x"}, "container is not supported"),
    ],
)
def test_unsupported_fields_are_refused_by_name(fields, text, web):
    answer = ask(web, **fields)
    assert answer.status == 400
    assert answer.error["type"] == "invalid_request_error"
    assert text in answer.error["message"]
    assert not web.inference.calls


def test_a_model_that_does_not_reason_is_not_asked_to(web):
    web.control.card = replace(web.control.card, reasoning_format="")
    answer = ask(web, thinking={"type": "enabled", "budget_tokens": 1024})
    assert (answer.status, "does not reason" in answer.error["message"]) == (400, True)
    for kind in ("adaptive", "disabled"):
        assert ask(web, thinking={"type": kind}).status == 200


def test_refusals_of_the_model_use_anthropics_names(web):
    web.answers(Refused("input", "stop is wrong", field="stop"))
    assert ask(web).error["message"] == "stop_sequences is wrong"


@pytest.mark.parametrize(
    ("asked", "status", "kind"),
    [
        (("POST", "/v1/messages", b"{"), 400, "invalid_request_error"),
        (("POST", "/v1/messages", b" " * (MAX_BODY + 1)), 413, "request_too_large"),
        (("GET", "/v1/messages", None), 405, "invalid_request_error"),
        (("POST", "/v1/messages/none", b"{}"), 404, "not_found_error"),
        (
            ("POST", "/v1/messages", b'{"model":"x","max_tokens":1,"messages":[]}'),
            404,
            "not_found_error",
        ),
    ],
)
def test_an_error_has_a_status_and_a_type(asked, status, kind, web):
    answer = web.call(*asked)
    assert (answer.status, answer.json["type"]) == (status, "error")
    assert answer.error["type"] == kind
    assert answer.json["request_id"] == answer.headers["request-id"]


def test_thinking_budget_limits_the_reasoning(web):
    ask(web, thinking={"type": "enabled", "budget_tokens": 1024})
    assert web.sent.params.thinking_token_budget == 1024
    ask(web, thinking={"type": "adaptive"})
    assert web.sent.params.thinking_token_budget is None
