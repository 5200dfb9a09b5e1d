"""Tools: what the model is told and must write, and how its calls reach the client."""

import json

import openai
import pytest
from msgspec.structs import replace

from mindspore_serving.core.llm_messages import Chunk
from mindspore_serving.llm.chat.tool_formats import to_template
from tests.frontends.openai.serving import CARD

LOOK = {
    "type": "function",
    "function": {
        "name": "look",
        "description": "looks",
        "parameters": {
            "type": "object",
            "properties": {"at": {"type": "string"}},
            "required": ["at"],
            "additionalProperties": False,
        },
        "strict": True,
    },
}
WAIT = {"type": "function", "function": {"name": "wait"}}
TOLD = [
    {"type": "function", "function": {k: v for k, v in LOOK["function"].items() if k != "strict"}},
    {
        "type": "function",
        "function": {"name": "wait", "parameters": {"type": "object", "properties": {}}},
    },
]
TWO_CALLS = (
    'Let me see.\n<tool_call>\n{"name": "look", "arguments": {"at": "caf\u00e9"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "wait", "arguments": {}}\n</tool_call>'
)


def speak(web, text, *, size=None, reason="stop", **formats):
    """Have the model say `text`, in pieces of `size` characters if it streams."""
    web.control.card = replace(CARD, **formats)
    pieces = [text[i : i + size] for i in range(0, len(text), size)] if size else [text]
    web.says(
        *[Chunk(0, piece, (1,)) for piece in pieces[:-1]],
        Chunk(0, pieces[-1], (1,), None, reason),
    )


def arguments(message):
    return [
        (c["function"]["name"], json.loads(c["function"]["arguments"]))
        for c in message["tool_calls"]
    ]


def test_calls_are_told_apart_from_text(web):
    speak(web, TWO_CALLS, tool_format="hermes")
    (choice,) = web.chat(tools=[LOOK, WAIT]).json["choices"]
    message = choice["message"]
    assert (message["content"], choice["finish_reason"]) == ("Let me see.", "tool_calls")
    assert arguments(message) == [("look", {"at": "caf\u00e9"}), ("wait", {})]
    assert {call["type"] for call in message["tool_calls"]} == {"function"}
    ids = {call["id"] for call in message["tool_calls"]}
    assert len(ids) == 2
    assert all(one.startswith("call_") and len(one) == 29 for one in ids)


def test_the_model_is_told_of_tools_and_shows_its_markers(web):
    speak(web, "x", tool_format="hermes")
    web.chat(tools=[LOOK, WAIT])
    assert to_template(web.answer_format.tools) == TOLD
    assert web.answer_format.shows_special_tokens
    assert web.answer_format.grammar.kind == "lark"  # of the calls that the model begins


def test_a_stream_gives_a_call_piece_by_piece(web):
    speak(web, TWO_CALLS, size=3, tool_format="hermes")
    chunks = [chunk["choices"][0] for chunk in web.chat(tools=[LOOK, WAIT], stream=True).chunks]
    assert chunks[-1]["delta"] == {}
    assert chunks[-1]["finish_reason"] == "tool_calls"
    deltas = [call for one in chunks for call in one["delta"].get("tool_calls", [])]
    begun = [one for one in deltas if "id" in one]
    assert [(one["index"], one["function"]) for one in begun] == [
        (0, {"name": "look", "arguments": ""}),
        (1, {"name": "wait", "arguments": ""}),
    ]
    rest = [one for one in deltas if "id" not in one]
    assert {(*one, *one["function"]) for one in rest} == {("index", "function", "arguments")}
    told = ["".join(o["function"]["arguments"] for o in deltas if o["index"] == i) for i in (0, 1)]
    assert [json.loads(one) for one in told] == [{"at": "caf\u00e9"}, {}]
    text = "".join(one["delta"].get("content") or "" for one in chunks)
    assert text == "Let me see."


@pytest.mark.parametrize("size", [1, 7, None])
def test_openais_stream_helper_puts_the_calls_together(web, size):
    speak(web, TWO_CALLS, size=size, tool_format="hermes")
    with (
        openai.OpenAI(base_url=web.url, api_key="none", max_retries=0) as client,
        client.chat.completions.stream(
            model="toy", messages=[{"role": "user", "content": "x"}], tools=[LOOK]
        ) as stream,
    ):
        done = [e for e in stream if e.type == "tool_calls.function.arguments.done"]
        message = stream.get_final_completion().choices[0].message
    assert done[0].name == "look"
    assert message.tool_calls[0].function.parsed_arguments == {"at": "caf\u00e9"}
    assert message.tool_calls[0].id.startswith("call_")


@pytest.mark.parametrize(
    ("text", "contents"),
    [
        (TWO_CALLS.partition("\n")[2], [None, *["-"] * 5]),
        ("I look.", ["", "I look.", "-"]),
        ("", ["", "-"]),
    ],
    ids=["calls", "text", "nothing"],
)
def test_a_stream_of_calls_has_no_empty_text(web, text, contents):
    """As OpenAI's: content is null in the first event, "" where text follows."""
    speak(web, text, tool_format="hermes")
    with openai.OpenAI(base_url=web.url, api_key="none", max_retries=0) as client:
        asked = {"model": "toy", "messages": [{"role": "user", "content": "x"}], "tools": [LOOK]}
        chunks = client.chat.completions.create(**asked, stream=True)
        deltas = [one.choices[0].delta for one in chunks]
    assert [delta.to_dict().get("content", "-") for delta in deltas] == contents
    assert [delta.role for delta in deltas] == ["assistant", *[None] * (len(deltas) - 1)]


@pytest.mark.parametrize("is_stream", [False, True])
def test_without_parallel_tool_calls_the_first_call_counts(web, is_stream):
    speak(web, TWO_CALLS, size=5, tool_format="hermes")
    if not is_stream:
        speak(web, TWO_CALLS, tool_format="hermes")
    answer = web.chat(tools=[LOOK, WAIT], parallel_tool_calls=False, stream=is_stream)
    assert b'"look"' in answer.body
    assert b'"wait"' not in answer.body


def test_no_tool_may_be_called(web):
    speak(web, TWO_CALLS, tool_format="hermes")
    (choice,) = web.chat(tools=[LOOK], tool_choice="none").json["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == (TWO_CALLS, "stop")
    assert web.answer_format.tools == []


@pytest.mark.parametrize(
    ("choice", "names"),
    [
        ("required", ["look", "wait"]),
        ({"type": "function", "function": {"name": "wait"}}, ["wait"]),
        ("wait", ["wait"]),
        (
            {
                "type": "allowed_tools",
                "allowed_tools": {
                    "mode": "required",
                    "tools": [{"type": "function", "function": {"name": "look"}}],
                },
            },
            ["look"],
        ),
    ],
)
@pytest.mark.parametrize("tool_format", ["", "hermes"])
def test_a_call_can_be_forced(web, choice, names, tool_format):
    call = json.dumps({"name": names[0], "arguments": {"at": ""}})
    speak(
        web,
        call if not tool_format else f"<tool_call>\n{call}\n</tool_call>",
        tool_format=tool_format,
    )
    (found,) = web.chat(tools=[LOOK, WAIT], tool_choice=choice).json["choices"]
    assert found["finish_reason"] == "tool_calls"
    assert found["message"]["content"] is None
    assert arguments(found["message"]) == [(names[0], {"at": ""})]
    assert web.answer_format.grammar.kind == "lark"
    assert [
        n for n in ("look", "wait") if f'\\"{n}\\"' in web.answer_format.grammar.source
    ] == names


def test_a_call_that_was_cut_off_ends_by_length(web):
    speak(
        web, '<tool_call>\n{"name": "look", "arguments": {"a', reason="length", tool_format="hermes"
    )
    (choice,) = web.chat(tools=[LOOK]).json["choices"]
    assert choice["finish_reason"] == "length"


def test_a_model_without_a_form_for_calls_says_so(web):
    answer = web.chat(tools=[LOOK])
    assert (answer.status, answer.error["param"]) == (400, "tool_choice")
    assert "has no format for tool calls" in answer.error["message"]


def test_a_form_of_the_answer_goes_with_tools(web):
    speak(web, '{"a":1}', tool_format="hermes")
    wanted = {"type": "json_object"}
    (choice,) = web.chat(tools=[LOOK], response_format=wanted).json["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == ('{"a":1}', "stop")
    assert "form: %json" in web.answer_format.grammar.source
    assert web.chat(tools=[LOOK], tool_choice="none", response_format=wanted).status == 200


def test_a_schema_that_is_no_object_is_refused(web):
    wrong = {"type": "function", "function": {"name": "f", "parameters": {"type": "string"}}}
    answer = web.chat(tools=[wrong], tool_choice="required")
    assert (answer.status, answer.error["param"]) == (400, "tools")


def test_two_tools_with_equal_names_are_refused(web):
    answer = web.chat(tools=[LOOK, LOOK])
    assert (answer.status, answer.error["param"]) == (400, "tools")
    assert '"look" twice' in answer.error["message"]


THOUGHT = "<think>\nhm\n</think>\n\nYes."


def test_reasoning_is_a_field_of_its_own(web):
    speak(web, THOUGHT, reasoning_format="think")
    message = web.chat().json["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("hm", "Yes.")


def test_reasoning_is_streamed_in_its_field(web):
    speak(web, THOUGHT, size=2, reasoning_format="think")
    deltas = [chunk["choices"][0]["delta"] for chunk in web.chat(stream=True).chunks]
    assert "".join(one.get("reasoning_content", "") for one in deltas) == "hm"
    assert "".join(one.get("content", "") for one in deltas) == "Yes."


def test_reasoning_that_the_prompt_began_is_reasoning(web):
    speak(web, "hm\n</think>\nYes.", reasoning_format="think_open")
    message = web.chat().json["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("hm", "Yes.")
    speak(web, "Yes.", reasoning_format="think_open")
    message = web.chat(reasoning_effort="none").json["choices"][0]["message"]
    assert (message.get("reasoning_content"), message["content"]) == (None, "Yes.")


def test_an_answer_of_a_form_may_be_thought_about_first(web):
    speak(web, '<think>hm</think>{"a":1}', reasoning_format="think")
    message = web.chat(response_format={"type": "json_object"}).json["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("hm", '{"a":1}')
    assert web.answer_format.grammar.kind == "lark"
    assert "reasoning" in web.answer_format.grammar.source
