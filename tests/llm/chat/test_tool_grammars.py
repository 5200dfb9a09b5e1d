"""Answers that may be calls: any text, and calls as they must be once one has begun."""

import json
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mindspore_serving.core.llm_messages import Grammar, ToolCallDelta
from mindspore_serving.errors import InvalidField
from mindspore_serving.llm.chat.json_reader import UnexpectedChar, read_value
from mindspore_serving.llm.chat.output_parser import OutputParser, PlainContent
from mindspore_serving.llm.chat.reasoning_formats import reason_first
from mindspore_serving.llm.chat.tool_grammars import auto_grammar, tool_grammar
from tests.llm.chat.languages import CALL, CITY, TOOLS, WRITTEN, allows, make_language, tool

BARE = ("llama3", "generic")  # a call may come without a marker
TAGGED = {
    name: (f"<|python_tag|>{written[0]}", *written[1:]) if name == "llama3" else written
    for name, written in WRITTEN.items()
}


@pytest.fixture(scope="module", params=[False, True], ids=["text", "special-tokens"])
def language(request):
    return make_language(request.param)


@pytest.mark.parametrize("tool_format", WRITTEN)
@pytest.mark.parametrize(
    "text", ["Hello <b>you</b>!\n", "", "<", "<tool_ca", '{"name": "Anna"}', "{}", "[TOOL", "日本"]
)
def test_any_text_may_be_the_answer(language, tool_format, text):
    assert allows(language, auto_grammar(tool_format, TOOLS, parallel=True), text)


@pytest.mark.parametrize("tool_format", WRITTEN)
@pytest.mark.parametrize("before", ["", "Let me see. "])
def test_calls_may_follow_a_text_and_nothing_follows_them(language, tool_format, before):
    several = auto_grammar(tool_format, TOOLS, parallel=True)
    one = auto_grammar(tool_format, TOOLS, parallel=False)
    first, second, end = TAGGED[tool_format]
    assert allows(language, several, before + first + end)
    assert allows(language, several, before + first + second + end)
    assert not allows(language, several, f"{before}{first}{end} Hello")
    assert allows(language, one, before + first + end)
    assert not allows(language, one, before + first + second + end)


@pytest.mark.parametrize("tool_format", WRITTEN)
@pytest.mark.parametrize(
    "wrong", [("get_weather", "get_moon"), ('"Paris"', "5"), ('"city"', '"town"'), ("{", "call ")]
)
def test_a_call_that_has_begun_must_be_valid(language, tool_format, wrong):
    first, _, end = TAGGED[tool_format]
    grammar = auto_grammar(tool_format, TOOLS, parallel=True)
    assert not allows(language, grammar, first.replace(*wrong) + end)


@pytest.mark.parametrize("tool_format", BARE)
def test_a_call_without_its_marker_is_held_too(language, tool_format):
    key = "parameters" if tool_format == "llama3" else "arguments"
    call = CALL % key
    grammar = auto_grammar(tool_format, TOOLS, parallel=True)
    assert allows(language, grammar, call)
    assert not allows(language, grammar, call.replace('"Paris"', "5"))
    assert allows(language, grammar, call.replace("get_weather", "get_moon"))  # JSON, no call
    assert allows(language, grammar, f"As JSON: {call.replace('Paris', '')}")


@pytest.mark.parametrize("tool_format", WRITTEN)
@pytest.mark.parametrize(
    ("form", "answer"),
    [
        (Grammar("json_object"), '{"a": 1}'),
        (Grammar("json_schema", json.dumps(CITY)), '{"city": "Rome"}'),
        (Grammar("regex", "yes|no"), "yes"),
        (Grammar("lark", 'start: CHOICE\nCHOICE: "yes" | "no"'), "no"),
    ],
)
def test_an_answer_has_its_form_or_is_calls(language, tool_format, form, answer):
    grammar = auto_grammar(tool_format, TOOLS, parallel=True, form=form)
    first, second, end = TAGGED[tool_format]
    assert allows(language, grammar, answer)
    assert allows(language, grammar, first + second + end)
    assert not allows(language, grammar, "Hello")
    assert not allows(language, grammar, f"Hello {first}{end}")


@pytest.mark.parametrize("tool_format", WRITTEN)
def test_reasoning_comes_before_text_and_calls(language, tool_format):
    grammar = auto_grammar(tool_format, TOOLS, parallel=True)
    first, _, end = TAGGED[tool_format]
    for format_name, before in (
        ("think", "<think>\nhm\n</think>\n\n"),
        ("think_open", "hm</think>"),
    ):
        optional = reason_first(format_name, grammar)
        assert allows(language, optional, f"{before}{first}{end}")
        assert allows(language, optional, f"{before}Hello")
        assert not allows(language, optional, before + first.replace('"Paris"', "5") + end)


def completable(text):
    """Whether `text` begins some JSON object."""
    reading = read_value(text[0])
    try:
        next(reading)
        for char in text[1:]:
            reading.send(char)
    except StopIteration:
        return True
    except UnexpectedChar:
        return False
    return True


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=5,
)


@settings(max_examples=60)
@given(
    st.sampled_from(["hermes", "generic", "mistral", "internlm", "llama3"]),
    st.dictionaries(st.text(max_size=3), VALUES, max_size=3),
    st.integers(1, 7),
)
def test_streamed_arguments_are_the_beginning_of_json_all_the_way(tool_format, arguments, size):
    written = json.dumps(arguments, ensure_ascii=False)
    first, _, end = TAGGED[tool_format]
    text = first.replace('{"city": "Paris"}', written) + end
    parser = OutputParser(tool_format, "", TOOLS)
    deltas, told = [], ""
    for place in range(0, len(text), size):
        deltas += parser.feed(text[place : place + size])
        told = "".join(one.arguments for one in deltas if isinstance(one, ToolCallDelta))
        assert not told or completable(told)
    deltas += parser.finish()
    assert not [one for one in deltas if isinstance(one, PlainContent)]
    assert json.loads(told) == arguments


def many_tools(num_tools, num_properties):
    """Tools of an agent with several MCP servers."""
    kinds = [{"type": "string"}, {"type": "integer"}, {"enum": ["open", "closed"]}]
    names = [f"parameter_{number}" for number in range(num_properties)]
    properties = {
        name: {**kinds[index % 3], "description": "What it is for. " * 20}
        for index, name in enumerate(names)
    }
    schema = {"type": "object", "properties": properties, "required": names[:3]}
    return [tool(f"mcp__github__tool_{number}", schema) for number in range(num_tools)]


@pytest.mark.parametrize(
    "tool_format", ["hermes", "qwen3_coder", "deepseek_v31", "lfm2", "gemma4", "harmony"]
)
def test_a_hundred_tools_of_ten_parameters_are_held(tool_format):
    grammar = auto_grammar(tool_format, many_tools(100, 10), parallel=True)
    _, compiler = make_language(False)
    assert compiler.compile(grammar).find_slow_step() is None


@pytest.mark.parametrize("build", [auto_grammar, partial(tool_grammar, name=None)])
def test_a_tool_of_too_many_parameters_is_refused(build):
    with pytest.raises(InvalidField, match="'mcp__github__tool_0' has 100000 properties in one"):
        build("hermes", many_tools(1, 100_000), parallel=True)
