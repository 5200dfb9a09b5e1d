"""Calls whose arguments are tags, as Qwen3-Coder and GLM write them: read, and held by grammars."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mindspore_serving.core.llm_messages import Grammar, ToolCallDelta
from mindspore_serving.errors import InvalidField
from mindspore_serving.llm.chat.output_parser import OutputParser, PlainContent
from mindspore_serving.llm.chat.parameter_types import to_json, types_of
from mindspore_serving.llm.chat.template import ChatTemplate
from mindspore_serving.llm.chat.tool_formats import find_tool_format
from mindspore_serving.llm.chat.tool_grammars import auto_grammar, tool_grammar
from tests.llm.chat.languages import allows, make_language, tool
from tests.llm.chat.test_tool_grammars import VALUES, completable

FORMATS = ("qwen3_coder", "glm")
PLACE = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer"},
        "unit": {"type": "string", "enum": ["C", "F"]},
        "more": {"$ref": "#/$defs/More"},
    },
    "required": ["city"],
    "$defs": {"More": {"type": "object", "properties": {"wind": {"type": "boolean"}}}},
}
TOOLS = [tool("get_weather", PLACE), tool("get_time")]


def written(tool_format: str, name: str, **arguments: str) -> str:
    """A call, with values as they are between their tags."""
    if tool_format == "glm":
        pairs = "".join(
            f"<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n"
            for key, value in arguments.items()
        )
        return f"<tool_call>{name}\n{pairs}</tool_call>"
    pairs = "".join(
        f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in arguments.items()
    )
    return f"<tool_call>\n<function={name}>\n{pairs}</function>\n</tool_call>"


def read(tool_format: str, text: str, size: int = 1000) -> tuple[str, list[tuple[str, str]]]:
    """The content, and the calls as names and arguments; of pieces of `size` chars."""
    parser = OutputParser(tool_format, "", TOOLS)
    deltas = []
    for place in range(0, len(text), size):
        deltas += parser.feed(text[place : place + size])
    deltas += parser.finish()
    calls: list[tuple[str, str]] = []
    for one in deltas:
        if isinstance(one, ToolCallDelta):
            if one.name is not None:
                calls.append((one.name, ""))
            calls[one.index] = (calls[one.index][0], calls[one.index][1] + one.arguments)
    return "".join(one.text for one in deltas if isinstance(one, PlainContent)), calls


@pytest.mark.parametrize("tool_format", FORMATS)
@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_calls_are_json_however_their_text_is_cut(tool_format: str, size: int) -> None:
    first = written(tool_format, "get_weather", city='Par"is\n', days="3", more='{"wind": true}')
    text = f"Let me see.\n{first}\n{written(tool_format, 'get_time')}"
    content, calls = read(tool_format, text, size)
    assert content == "Let me see."
    expected = {"city": 'Par"is\n', "days": 3, "more": {"wind": True}}
    assert [(name, json.loads(arguments)) for name, arguments in calls] == [
        ("get_weather", expected),
        ("get_time", {}),
    ]


def test_the_newer_form_of_glm_has_no_lines_and_qwen_may_leave_them_out() -> None:
    glm = "<tool_call>get_weather<arg_key>city</arg_key><arg_value>Rome</arg_value></tool_call>"
    qwen = (
        "<tool_call><function=get_weather><parameter=city>Rome</parameter></function></tool_call>"
    )
    for tool_format, text in (("glm", glm), ("qwen3_coder", qwen)):
        assert read(tool_format, text) == ("", [("get_weather", '{"city": "Rome"}')])


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        ({"type": "string"}, "5", "5"),
        ({"type": "string"}, "null", "null"),
        ({"type": "integer"}, " 5 ", 5),
        ({"type": "integer"}, "five", "five"),
        ({"type": "number"}, "NaN", "NaN"),
        ({"type": "boolean"}, "True", True),
        ({"type": ["string", "null"]}, "None", None),
        ({"type": ["string", "null"]}, "5", "5"),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "null", None),
        ({"anyOf": [{"type": "string"}, {"type": "integer"}]}, "5", 5),
        ({"enum": ["1", "2"]}, "1", "1"),
        ({"const": 1}, "1", 1),
        ({"$ref": "#/$defs/Text"}, "1", "1"),
        ({"$ref": "#/$defs/Loop"}, "1", 1),
        ({"$ref": "#/nowhere"}, "1", 1),
        ({}, "[1]", [1]),
        ({}, "[1", "[1"),
        (True, "a", "a"),
        ({"type": "array"}, "[" * 100_000, "[" * 100_000),
    ],
)
def test_the_schema_decides_the_type_of_a_text(schema: Any, text: str, value: Any) -> None:
    root = {"$defs": {"Text": {"type": "string"}, "Loop": {"$ref": "#/$defs/Loop"}}}
    assert json.loads(to_json(text, types_of(schema, root))) == value


def test_a_schema_that_refers_to_itself_in_many_ways_is_read_once() -> None:
    """Each of 30 references leads to the same 30 again: followed 20 deep, that has no end."""
    again = {"anyOf": [{"$ref": "#/$defs/A"}] * 30}
    text = {"anyOf": [{"$ref": "#/$defs/B"}] * 30}
    root = {"$defs": {"A": again, "B": {"type": "string"}}}
    assert types_of(again, root) == {"any"}
    assert types_of(text, root) == {"string"}


@pytest.mark.parametrize("tool_format", FORMATS)
@pytest.mark.parametrize("cut", range(20, 60, 3))
def test_of_a_call_that_is_cut_off_the_arguments_so_far_are_kept(
    tool_format: str, cut: int
) -> None:
    text = written(tool_format, "get_time", city="a" * 50)[:cut]
    content, calls = read(tool_format, text)
    assert (content == text) == (not calls)
    for _, arguments in calls:
        assert not arguments or completable(arguments)


@pytest.mark.parametrize(
    ("tool_format", "text"),
    [
        ("qwen3_coder", "<tool_call>\n<function=>\n</function>\n</tool_call>"),
        ("qwen3_coder", "<tool_call>\n{}\n</tool_call>"),
        ("qwen3_coder", f"<tool_call>\n<function={'a' * 300}>"),
        ("glm", "<tool_call>\n</tool_call>"),
        ("glm", "<tool_call>a>b</tool_call>"),
        ("glm", "a < b, <tool> and <tool_cal"),
    ],
)
def test_text_that_resembles_a_call_is_content(tool_format: str, text: str) -> None:
    assert read(tool_format, text) == (text, [])
    assert read(tool_format, text, 1) == (text, [])


@pytest.mark.parametrize("tool_format", FORMATS)
def test_a_call_that_breaks_ends_there(tool_format: str) -> None:
    twice = written(tool_format, "get_time", a="1").replace("</tool_call>", "")
    _, ((name, arguments),) = read(tool_format, twice.replace("</function>\n", "") + "oops")
    assert (name, arguments) == ("get_time", '{"a": 1')


@settings(max_examples=40)
@given(
    st.sampled_from(FORMATS),
    st.dictionaries(st.sampled_from("abcd"), VALUES, max_size=3),
    st.text(max_size=8),
    st.integers(1, 7),
)
def test_streamed_arguments_are_the_beginning_of_json_all_the_way(
    tool_format: str, arguments: dict[str, Any], city: str, size: int
) -> None:
    values = {key: json.dumps(value, ensure_ascii=False) for key, value in arguments.items()}
    text = written(tool_format, "get_weather", city=city, **values)
    parser = OutputParser(tool_format, "", TOOLS)
    told = ""
    for place in range(0, len(text), size):
        for one in parser.feed(text[place : place + size]):
            assert isinstance(one, ToolCallDelta)
            told += one.arguments
        assert not told or completable(told)
    assert parser.finish() == []
    assert json.loads(told) == {"city": city, **arguments}


# --- what templates show, and what grammars allow ------------------------------------------------

QWEN = (
    "{% for m in messages %}{% for c in m.tool_calls %}<tool_call>\n"
    "<function={{ c.function.name }}>"
    "\n{% for k, v in c.function.arguments | items %}<parameter={{ k }}>\n"
    "{{ v if v is string else v | tojson }}\n</parameter>\n{% endfor %}</function>\n</tool_call>"
    "{% endfor %}{% endfor %}"
)
GLM = (
    "{% for m in messages %}{% for c in m.tool_calls %}<tool_call>{{ c.function.name }}"
    "{% for k, v in c.function.arguments.items() %}<arg_key>{{ k }}</arg_key>"
    "<arg_value>{{ v if v is string else v | tojson }}</arg_value>{% endfor %}</tool_call>"
    "{% endfor %}{% endfor %}"
)

DSML = (
    "{% for m in messages %}{% for c in m.tool_calls %}"
    "{% if loop.first %}<｜DSML｜function_calls>\n{% endif %}"
    '<｜DSML｜invoke name="{{ c.function.name }}">\n'
    "{% for k, v in c.function.arguments.items() %}"
    "<｜DSML｜parameter name=\"{{ k }}\" string=\"{{ 'true' if v is string else 'false' }}\">"
    "{{ v if v is string else v | tojson }}</｜DSML｜parameter>\n{% endfor %}"
    "</｜DSML｜invoke>\n{% if loop.last %}</｜DSML｜function_calls>{% endif %}"
    "{% endfor %}{% endfor %}"
)


@pytest.mark.parametrize(
    ("tool_format", "template"), [("qwen3_coder", QWEN), ("glm", GLM), ("deepseek_v32", DSML)]
)
def test_a_call_written_by_the_template_is_parsed_back(tool_format: str, template: str) -> None:
    assert find_tool_format(template) == tool_format
    arguments = {"city": "Rome\nItaly", "days": 2, "more": {"wind": False}}
    call = {"function": {"name": "get_weather", "arguments": arguments}}
    messages = [{"role": "assistant", "content": "", "tool_calls": [call]}]
    text = ChatTemplate(template).render(messages)
    _, ((name, found),) = read(tool_format, text)
    assert (name, json.loads(found)) == ("get_weather", arguments)


@pytest.fixture(scope="module", params=[False, True], ids=["text", "special-tokens"])
def language(request):
    return make_language(request.param)


@pytest.mark.parametrize("tool_format", FORMATS)
def test_a_grammar_allows_the_calls_of_models(language, tool_format: str) -> None:
    one = tool_grammar(tool_format, TOOLS, None, parallel=False)
    several = tool_grammar(tool_format, TOOLS, None, parallel=True)
    full = written(tool_format, "get_weather", city="Paris\n<b>", days="3", unit="C", more="{}")
    now = written(tool_format, "get_time")
    for text in (full, now, written(tool_format, "get_weather", city="")):
        assert allows(language, one, text)
        assert allows(language, several, f"{text}\n{now}")
        assert not allows(language, one, f"{text}\n{now}")
    assert not allows(language, several, "Hello")
    named = tool_grammar(tool_format, TOOLS, "get_time", parallel=False)
    assert (allows(language, named, now), allows(language, named, full)) == (True, False)


def test_a_grammar_allows_the_newer_form_of_glm(language) -> None:
    text = "<tool_call>get_weather<arg_key>city</arg_key><arg_value>Rome</arg_value></tool_call>"
    assert allows(language, tool_grammar("glm", TOOLS, None, parallel=True), text + text)


@pytest.mark.parametrize("tool_format", FORMATS)
@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"town": "Paris"},
        {"city": "Paris", "days": "many"},
        {"city": "Paris", "unit": "K"},
        {"city": "Paris", "more": '{"wind": 1}'},
        {"days": "3", "city": "Paris"},
        {"city": "Paris", "else": "1"},
    ],
)
def test_arguments_follow_the_schema(language, tool_format: str, arguments: dict) -> None:
    grammar = tool_grammar(tool_format, TOOLS, None, parallel=False)
    assert not allows(language, grammar, written(tool_format, "get_weather", **arguments))
    assert not allows(language, grammar, written(tool_format, "get_time", a="1"))


@pytest.mark.parametrize("tool_format", FORMATS)
@pytest.mark.parametrize("before", ["", "Let me see. "])
def test_calls_may_follow_a_text_and_nothing_follows_them(
    language, tool_format: str, before: str
) -> None:
    grammar = auto_grammar(tool_format, TOOLS, parallel=True)
    call, now = (
        written(tool_format, "get_weather", city="Paris", days="3"),
        written(tool_format, "get_time"),
    )
    for text in (before, before + call, f"{before}{call}\n{now}", f"{before}a < b"):
        assert allows(language, grammar, text)
    assert not allows(language, grammar, f"{before}{call} Hello")
    assert not allows(language, grammar, before + call.replace("3", "three"))
    assert not allows(language, grammar, before + call.replace("get_weather", "get_moon"))


@pytest.mark.parametrize("tool_format", FORMATS)
def test_an_answer_has_its_form_or_is_calls(language, tool_format: str) -> None:
    grammar = auto_grammar(tool_format, TOOLS, parallel=True, form=Grammar("json_object"))
    assert allows(language, grammar, '{"a": 1}')
    assert allows(language, grammar, written(tool_format, "get_weather", city="Paris"))
    assert not allows(language, grammar, "Hello")


def test_a_text_that_may_be_something_else_is_any_text(language) -> None:
    schema = {"type": "object", "properties": {"x": {"type": ["string", "null"]}, "y": {}}}
    grammar = tool_grammar("glm", [tool("f", schema)], None, parallel=False)
    for value in ("null", "any text", "5"):
        assert allows(language, grammar, written("glm", "f", x=value, y=value))


def test_a_strict_tool_is_refused_if_tagged_texts_cannot_follow() -> None:
    schema = {"type": "object", "properties": {"x": {"type": "string", "pattern": "a+"}}}
    with pytest.raises(InvalidField, match="parameter 'x' of the strict tool 'f' has 'pattern'"):
        tool_grammar("glm", [tool("f", schema, strict=True)], None, parallel=False)
    tool_grammar("glm", [tool("f", schema)], None, parallel=False)


@pytest.mark.parametrize("name", ["a>b", "<a", "a\nb"])
def test_names_that_would_end_a_tag_are_refused(name: str) -> None:
    schema = {"type": "object", "properties": {name: {"type": "string"}}}
    with pytest.raises(InvalidField, match="this model's tags"):
        tool_grammar("qwen3_coder", [tool("f", schema)], None, parallel=False)
