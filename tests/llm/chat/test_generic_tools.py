"""Tools for models whose chat template has no form for them."""

import pytest
from msgspec.structs import replace

from mindspore_serving.core.llm_messages import Generate, Tokenize, ToolChoice
from mindspore_serving.llm.chat.generic_tools import with_tools
from mindspore_serving.llm.chat.template import ChatTemplate
from mindspore_serving.llm.processing.processor import Processor
from tests.frontends.openai.serving import CARD
from tests.llm.chat.languages import TOOLS
from tests.llm.tokenizers_trained import opened

HI = {"role": "user", "content": "Hi"}
BRIEF = {"role": "system", "content": "Be brief."}
CHATML = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
NO_SYSTEM = (
    "{% for m in messages %}"
    "{% if m.role == 'system' %}{{ raise_exception('No system!') }}{% endif %}"
    "<{{ m.role }}>{{ m.content }}{% endfor %}"
)
CALL = {"function": {"name": "get_weather", "arguments": {"city": "Żory"}}}


def roles(messages):
    return [message["role"] for message in messages]


def test_tools_are_told_in_a_system_message():
    told, last = with_tools([HI], TOOLS, has_system=True, is_free=False)
    assert last == HI
    assert told["role"] == "system"
    assert told["content"].startswith("You can call these functions:")
    assert '{"name": "get_weather", "parameters": {"type": "object"' in told["content"]
    assert '{"name": "get_time"}' in told["content"]
    assert '<tool_call>\n{"name": "...", "arguments": {...}}\n</tool_call>' in told["content"]


def test_a_system_message_stays_before_the_tool_instructions():
    told, last = with_tools([BRIEF, HI], TOOLS, has_system=True, is_free=False)
    assert told["content"].startswith("Be brief.\n\nYou can call")
    assert last == HI


def test_a_model_that_is_free_to_call_gets_examples():
    found = with_tools([HI], TOOLS, has_system=True, is_free=True)
    assert roles(found) == ["system"] + ["user", "assistant"] * 3 + ["user"]
    assert found[2]["content"] == "Hello! How can I help you?"
    assert found[4]["content"] == (
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "..."}}\n</tool_call>'
    )


@pytest.mark.parametrize("is_free", [False, True])
def test_without_a_system_message_the_first_of_a_user_tells(is_free):
    found = with_tools([HI], TOOLS, has_system=False, is_free=is_free)
    assert roles(found) == (["user", "assistant"] * 3 if is_free else []) + ["user"]
    assert found[0]["content"].startswith("You can call")
    assert found[0]["content"].endswith("\n\nHello!" if is_free else "\n\nHi")


def test_calls_and_results_are_texts():
    messages = [
        HI,
        {"role": "assistant", "content": None, "tool_calls": [CALL, CALL]},
        {"role": "tool", "tool_call_id": "1", "content": "sunny"},
        {"role": "tool", "tool_call_id": "2", "content": [{"type": "text", "text": "rain"}]},
        {"role": "assistant", "content": "Well."},
    ]
    called = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Żory"}}\n</tool_call>'
    assert with_tools(messages, (), has_system=True, is_free=True) == [
        HI,
        {"role": "assistant", "content": f"{called}\n{called}"},
        {
            "role": "user",
            "content": "<tool_response>\nsunny\n</tool_response>\n"
            "<tool_response>\nrain\n</tool_response>",
        },
        {"role": "assistant", "content": "Well."},
    ]


def processor(template):
    tokenizer = opened("byte_level")
    sizes = {"vocab_size": tokenizer.vocab_size, "max_model_len": 4096}
    return Processor(
        tokenizer, ChatTemplate(template), replace(CARD, tool_format="generic", **sizes)
    )


@pytest.mark.parametrize(
    ("template", "begin"),
    [
        (CHATML, "<system>You can call"),
        (NO_SYSTEM, "<user>You can call"),
        ("{% for m in messages if m.role != 'system' %}<{{ m.role }}>{{ m.content }}{% endfor %}",
         "<user>You can call"),
    ],
)  # fmt: skip
def test_a_template_without_system_messages_is_known_by_trying(template, begin):
    request = Generate(messages=[HI], tools=TOOLS, parse_output=True)
    prepared = processor(template).prepare(request)
    assert prepared.text.startswith(begin)
    assert prepared.answer_format.tool_format == "generic"
    assert prepared.answer_format.grammar is not None


def test_a_call_that_is_forced_has_no_examples():
    choice = ToolChoice(mode="required")
    request = Generate(messages=[HI], tools=TOOLS, tool_choice=choice, parse_output=True)
    text = processor(CHATML).prepare(request).text
    assert "You can call" in text
    assert "Hello!" not in text


def test_tools_that_may_not_be_called_are_not_told():
    choice = ToolChoice(mode="none")
    request = Generate(messages=[HI], tools=TOOLS, tool_choice=choice, parse_output=True)
    assert processor(CHATML).prepare(request).text == "<user>Hi"


def test_tokens_are_counted_with_tools():
    from mindspore_serving.llm.processing.output_processor import OutputProcessor

    request = Tokenize(messages=[HI], tools=TOOLS)
    found = processor(CHATML).tokenize(request, OutputProcessor(opened("byte_level")))
    assert "You can call" in found.text


def test_a_request_may_have_a_template_of_its_own():
    request = Generate(messages=[HI], chat_template="{{ messages[0].content }}?")
    assert processor(CHATML).prepare(request).text == "Hi?"
