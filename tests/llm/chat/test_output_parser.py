import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mindspore_serving.core.llm_messages import ToolCallDelta
from mindspore_serving.llm.chat.output_parser import OutputParser, PlainContent, Reasoning
from mindspore_serving.llm.processing.answer_format import AnswerFormat

TOOLS = [
    {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}},
    {"type": "function", "function": {"name": "get_time"}},
]


def read(pieces, tool_format="", reasoning_format="", tools=TOOLS):
    """(reasoning, content, [(name, arguments)]) of an answer that comes in `pieces`."""
    parser = OutputParser(tool_format, reasoning_format, tools)
    deltas = [delta for piece in pieces for delta in parser.feed(piece)] + parser.finish()
    reasoning, content, calls = "", "", []
    for delta in deltas:
        if isinstance(delta, Reasoning):
            reasoning += delta.text
        elif isinstance(delta, PlainContent):
            content += delta.text
        elif delta.name is not None:
            assert (delta.index, delta.arguments) == (len(calls), "")
            calls.append([delta.name, ""])
        else:
            assert delta.index == len(calls) - 1
            calls[-1][1] += delta.arguments
    return reasoning, content, [tuple(call) for call in calls]


WEATHER = ("get_weather", '{"city": "Paris", "days": [1, 2]}')
TIME = ("get_time", "{}")

HERMES = (
    '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris", "days": [1, 2]}}\n'
    "</tool_call>"
)
LLAMA = '{"name": "get_weather", "parameters": {"city": "Paris", "days": [1, 2]}}'
MISTRAL = '[TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "Paris", "days": [1, 2]}}'
INTERNLM = (
    '<|action_start|><|plugin|>\n{"name": "get_weather", "parameters": {"city": "Paris", '
    '"days": [1, 2]}}<|action_end|>'
)

PUBLISHED = [
    pytest.param("hermes", HERMES, "", [WEATHER], id="hermes"),
    pytest.param(
        "hermes",
        f"I look.\n{HERMES}\n"
        '<tool_call>\n{"name": "get_time", "arguments": {}}\n</tool_call>\n',
        "I look.",
        [WEATHER, TIME],
        id="hermes-two-behind-content",
    ),
    pytest.param("llama3", LLAMA, "", [WEATHER], id="llama3"),
    pytest.param("llama3", f"<|python_tag|>{LLAMA}", "", [WEATHER], id="llama3-tag"),
    pytest.param(
        "llama3",
        f'{LLAMA}; {{"name": "get_time", "parameters": {{}}}}',
        "",
        [WEATHER, TIME],
        id="llama3-two",
    ),
    pytest.param("mistral", f"{MISTRAL}]", "", [WEATHER], id="mistral"),
    pytest.param(
        "mistral",
        MISTRAL + ', {"name": "get_time", "arguments": {}, "id": "D681PevKs"}]',
        "",
        [WEATHER, TIME],
        id="mistral-two",
    ),
    pytest.param(
        "mistral",
        '[TOOL_CALLS]get_weather[ARGS]{"city": "Paris", "days": [1, 2]}'
        "[TOOL_CALLS]get_time[ARGS]{}",
        "",
        [WEATHER, TIME],
        id="mistral-named",
    ),
    pytest.param(
        "mistral",
        'So.[TOOL_CALLS]get_time[CALL_ID]D681PevKs[ARGS]{}',
        "So.",
        [TIME],
        id="mistral-call-id",
    ),
    pytest.param("internlm", f"I look.{INTERNLM}", "I look.", [WEATHER], id="internlm"),
    pytest.param(
        "",
        '{"name": "get_weather", "arguments": {"city": "Paris", "days": [1, 2]}}',
        "",
        [WEATHER],
        id="no-format",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("tool_format", "text", "content", "calls"), PUBLISHED)
def test_calls_are_read_as_models_write_them(tool_format, text, content, calls):
    assert read([text], tool_format) == ("", content, calls)


@pytest.mark.parametrize(("tool_format", "text", "content", "calls"), PUBLISHED)
def test_calls_are_read_char_by_char(tool_format, text, content, calls):
    assert read(text, tool_format) == ("", content, calls)


def test_arguments_are_given_out_as_they_come():
    parser = OutputParser("hermes", "", TOOLS)
    assert parser.feed('<tool_call>\n{"name": "get_weather", "argum') == []
    assert parser.feed('ents": ') == []
    assert parser.feed('{"ci') == [
        ToolCallDelta(0, "get_weather"),
        ToolCallDelta(0, None, '{"ci'),
    ]
    assert parser.feed('ty": "P') == [ToolCallDelta(0, None, 'ty": "P')]
    assert parser.feed('aris"}') == [ToolCallDelta(0, None, 'aris"}')]
    assert parser.feed("}\n</tool") == []
    assert parser.feed("_call>") == []
    assert parser.finish() == []


@pytest.mark.parametrize(
    ("text", "content"),
    [
        ("I look. <tool_ca", "I look."),
        ("I look.\n<tool_call>", "I look."),
        ('I look. <tool_call>\n{"name": "get_we', "I look."),
        ("if a <", "if a <"),  # nobody can say what it would have been
        ("if a < b", "if a < b"),
    ],
)
def test_the_rest_of_a_truncated_call_is_no_content(text, content):
    for pieces in ([text], text):
        parser = OutputParser("hermes", "", TOOLS)
        deltas = [delta for piece in pieces for delta in parser.feed(piece)]
        deltas += parser.finish(is_cut=True)
        assert "".join(delta.text for delta in deltas) == content
    if content != text:
        assert read([text], "hermes")[1] == text  # where the model has ended by itself


def test_content_is_streamed_without_delay():
    parser = OutputParser("hermes", "", TOOLS)
    assert parser.feed("Hello ") == [PlainContent("Hello")]
    assert parser.feed("world <") == [PlainContent(" world")]
    assert parser.feed("b>") == [PlainContent(" <b>")]
    assert parser.finish() == []


@pytest.mark.parametrize(
    "text",
    [
        "Hello",
        " two  spaces \n",
        "a < b, <tool, <tool_call",
        "<tool_call>",
        "<tool_call> nothing </tool_call>",
        '<tool_call>\n{"name": "get_time"',
        '<tool_call>\n{"name": "get_time", "other": 1}\n</tool_call>',
        '<tool_call>\n{"name": ["get_time"]}\n</tool_call>',
        '<tool_call>\n{"name": "get_time", "arguments": [1]}\n</tool_call>',
        '<tool_call>\n{"name": "get_time", "name": "get_time"}\n</tool_call>',
        '<tool_call>\n{"name": "", "arguments": {}}\n</tool_call>',
        '<tool_call>\n{"name": "\\ud800", "arguments": {}}\n</tool_call>',
        '<tool_call>\n{"arguments": {}}\n</tool_call>',
        "[TOOL_CALLS]",
        "[TOOL_CALLS][]",
        "[TOOL_CALLS]get_time",
        "[TOOL_CALLS]get_time[ARG]{}",
        "[TOOL_CALLS]get_time[CALL_ID]abc{}",
        '{"answer": 42}',
        '{"name": "Alice", "arguments": {}}',
        '{"name": "get_time" "arguments": {}}',
        "{'name': 'get_time'}",
        '```json\n{"name": "get_time", "arguments": {}}\n```',
        "<|python_tag|>print(1)",
        "<|action_start|><|interpreter|>\nprint(1)<|action_end|>",
    ],
)
def test_text_that_is_no_call_is_complete_content(text):
    for tool_format in ("hermes", "mistral", "llama3", "internlm", ""):
        assert read([text], tool_format) == ("", text, [])


def test_a_call_that_breaks_ends_and_the_rest_is_content():
    text = '<tool_call>\n{"name": "get_weather", "arguments": {"city": Paris}}\n</tool_call> so'
    calls = [("get_weather", '{"city": ')]
    assert read([text], "hermes") == ("", "Paris}}\n</tool_call> so", calls)


def test_a_call_that_is_nested_too_deep_ends_there():
    deep = '{"a": ' * 101 + "1" + "}" * 101
    text = f'<tool_call>{{"name": "get_time", "arguments": {deep}}}</tool_call>'
    calls = [("get_time", '{"a": ' * 100)]
    assert read([text], "hermes") == ("", text[text.index(deep) + 600 :], calls)
    fits = deep[6:-1]
    text = f'<tool_call>{{"name": "get_time", "arguments": {fits}}}</tool_call>'
    assert read([text], "hermes") == ("", "", [("get_time", fits)])


def test_a_call_that_is_cut_off_has_its_arguments_so_far():
    text = 'Yes <tool_call>\n{"name": "get_weather", "arguments": {"city": "Pa'
    assert read([text], "hermes") == ("", "Yes", [("get_weather", '{"city": "Pa')])


def test_a_call_follows_a_malformed_call():
    text = f'<tool_call>{{"name": 1}}</tool_call>\n{HERMES}'
    assert read([text], "hermes") == ("", '<tool_call>{"name": 1}</tool_call>', [WEATHER])


def test_a_marker_in_place_of_a_call_begins_the_next():
    assert read([f"<tool_call>\n{HERMES}"], "hermes") == ("", "<tool_call>\n", [WEATHER])


def test_text_behind_a_call_is_content():
    assert read([f"{HERMES}\n\nDone."], "hermes") == ("", "\n\nDone.", [WEATHER])
    assert read([f"{LLAMA} and so on"], "llama3") == ("", " and so on", [WEATHER])


@pytest.mark.parametrize("arguments", ["null", None])
def test_a_call_without_arguments_has_empty_arguments(arguments):
    rest = "" if arguments is None else f', "arguments": {arguments}'
    text = f'<tool_call>\n{{"name": "get_time"{rest}}}\n</tool_call>'
    assert read([text], "hermes") == ("", "", [TIME])


def test_arguments_may_come_before_the_name():
    text = '<tool_call>{"arguments": {"city": "Paris", "days": [1, 2]}, "name": "get_weather"}'
    assert read([text], "hermes") == ("", "", [WEATHER])


def test_arguments_are_the_very_text_that_was_written():
    arguments = '{ "a":"\\u00e9\\"}{",\n"b" : [ -1.5e+3,true , null,{} ],"c":{"d":[]}}'
    text = f'<tool_call>{{"name":"get_time","arguments":{arguments}}}</tool_call>'
    assert read([text], "hermes") == ("", "", [("get_time", arguments)])


def test_a_marked_call_may_be_of_a_tool_that_is_not_there():
    text = '<tool_call>\n{"name": "get_moon", "arguments": {}}\n</tool_call>'
    assert read([text], "hermes") == ("", "", [("get_moon", "{}")])


def test_without_tools_no_calls_are_looked_for():
    assert read([HERMES], "hermes", tools=[]) == ("", HERMES, [])
    parser = OutputParser("hermes", "", [])
    assert parser.feed("a <tool") == [PlainContent("a <tool")]


@pytest.mark.parametrize(
    ("reasoning_format", "text", "reasoning", "content"),
    [
        ("think", "<think>\nHm.\n\nYes.\n</think>\n\nHello", "Hm.\n\nYes.", "Hello"),
        ("think", "<think>\n\n</think>\n\nHello", "", "Hello"),
        ("think", "Hello <think>", "", "Hello <think>"),
        ("think", " Hello", "", " Hello"),
        ("think", "<thin", "", "<thin"),
        ("think", "<think>Hm </thin", "Hm </thin", ""),
        ("think_open", "Hm.\n</think>\n\nHello", "Hm.", "Hello"),
        ("think_open", "<think>\nHm.\n</think>\n\nHello", "Hm.", "Hello"),
        ("think_open", "</think>Hello", "", "Hello"),
        ("think_open", "Hm", "Hm", ""),
        ("think_open", "<th", "<th", ""),
        ("think_open", "Hm</think>a</think>b", "Hm", "a</think>b"),
        ("mistral", "[THINK]Hm.[/THINK]Hello", "Hm.", "Hello"),
    ],
)
def test_reasoning_is_told_from_content(reasoning_format, text, reasoning, content):
    for tools in (TOOLS, []):
        for pieces in ([text], text):
            assert read(pieces, "", reasoning_format, tools) == (reasoning, content, [])


def test_a_call_is_a_call_only_after_the_reasoning():
    text = f"<think>\nMaybe {HERMES}?\n</think>\n\n{HERMES}"
    assert read([text], "hermes", "think") == (f"Maybe {HERMES}?", "", [WEATHER])
    bare = f"<think>Hm</think>\n{LLAMA}"
    assert read([bare], "llama3", "think") == ("Hm", "", [WEATHER])


def test_special_tokens_are_shown_where_there_are_markers():
    assert AnswerFormat([], None, "mistral", "", is_parsed=True).shows_special_tokens
    assert AnswerFormat([], None, "", "think", is_parsed=True).shows_special_tokens
    assert not AnswerFormat([], None, "", "", is_parsed=True).shows_special_tokens


PARTS = [
    "<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "<|python_tag|>",
    "<|action_start|><|plugin|>", "<|action_end|>", "<think>", "</think>", "[THINK]", "[/THINK]",
    '{"name": "get_time", ', '"arguments": {', '"parameters": {"a": [1, "x"]}', "}", "}}", "{", "]",
    "[", ";", ", ", "\n", " ", '"', "\\", "get_time", "null", "-1.5", "a", "é", "<", "</", LLAMA,
    HERMES, INTERNLM, MISTRAL,
]  # fmt: skip
FORMATS = st.sampled_from(["", "hermes", "llama3", "mistral", "internlm"])
REASONING = st.sampled_from(["", "think", "think_open", "mistral"])


@given(FORMATS, REASONING, st.lists(st.sampled_from(PARTS), max_size=12), st.data())
def test_any_split_of_an_answer_reads_the_same(tool_format, reasoning_format, parts, data):
    text = "".join(parts)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    whole = read([text], tool_format, reasoning_format)
    assert read(pieces, tool_format, reasoning_format) == whole
    assert read(text, tool_format, reasoning_format) == whole


SPACES = " " * 1000


@pytest.mark.parametrize(
    ("reasoning_format", "begin", "piece", "count"),
    [
        ("", "a", SPACES, 50_000),
        ("think", "", SPACES, 50_000),
        ("think", "<think>a", SPACES, 50_000),
        ("", "<tool_call>", " ", 1 << 18),
        ("", '<tool_call>{"id": "', "a", 1 << 18),
        ("", '<tool_call>{"arguments": {"x": "', "a", 1 << 18),
    ],
)
def test_long_held_text_is_not_parsed_again_with_each_chunk(reasoning_format, begin, piece, count):
    """Else these take many minutes."""
    found = read([begin, *[piece] * count], "hermes", reasoning_format)
    assert len(found[0] + found[1]) == len(begin.removeprefix("<think>") + piece * count)
    assert not found[2]


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=8,
)  # fmt: skip


@given(
    st.dictionaries(st.text(max_size=4), VALUES, max_size=3),
    st.sampled_from(["hermes", "internlm", "mistral", "llama3", ""]),
    st.booleans(),
    st.sampled_from([None, 2]),
)
def test_any_json_object_can_be_the_arguments(arguments, tool_format, ascii_only, indent):
    written = json.dumps(arguments, ensure_ascii=ascii_only, indent=indent)
    call = f'{{"name": "get_time", "arguments": {written}}}'
    begin, end = {
        "hermes": ("<tool_call>", "</tool_call>"),
        "internlm": ("<|action_start|><|plugin|>", "<|action_end|>"),
        "mistral": ("[TOOL_CALLS][", "]"),
    }.get(tool_format, ("", ""))
    assert read([begin + call + end], tool_format) == ("", "", [("get_time", written)])
