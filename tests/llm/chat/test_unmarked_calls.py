"""Calls of tools that a model writes without the markers of its template."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mindspore_serving.llm.chat.output_parser import OutputParser, PlainContent
from mindspore_serving.llm.chat.tool_formats import TOOL_FORMATS

LOOK = {
    "type": "function",
    "function": {
        "name": "look",
        "parameters": {
            "type": "object",
            "properties": {"at": {"type": "string"}, "far": {"type": "boolean"}},
            "required": ["at"],
        },
    },
}
STOP = {"type": "function", "function": {"name": "stop"}}
TOOLS = [LOOK, STOP]
ARGUMENTS = '{"at": "a {tower}"}'
CALL = f'{{"name": "look", "arguments": {ARGUMENTS}}}'
FOUND = ("look", ARGUMENTS)
FORMATS = [name for name in TOOL_FORMATS if name]


def read(pieces, tool_format="hermes", *, unmarked=True, reasoning_format="", is_cut=False):
    """(content, [(name, arguments)]) of an answer that comes in `pieces`."""
    parser = OutputParser(tool_format, reasoning_format, TOOLS, unmarked=unmarked)
    deltas = [delta for piece in pieces for delta in parser.feed(piece)]
    content, calls = "", []
    for delta in [*deltas, *parser.finish(is_cut=is_cut)]:
        if isinstance(delta, PlainContent):
            content += delta.text
        elif delta.name is not None:
            assert (delta.index, delta.arguments) == (len(calls), "")
            calls.append([delta.name, ""])
        else:
            assert delta.index == len(calls) - 1
            calls[-1][1] += delta.arguments
    return content, [tuple(call) for call in calls]


CALLS = {
    "bare": (CALL, "", [FOUND]),
    "bare, behind space": (f"\n\n {CALL} \n", "", [FOUND]),
    "compact": ('{"name":"look","arguments":{"at":"x"}}', "", [("look", '{"at":"x"}')]),
    "on several lines": (
        json.dumps({"name": "look", "arguments": {"at": "x"}}, indent=2),
        "",
        [("look", '{\n    "at": "x"\n  }')],
    ),
    "parameters": (CALL.replace("arguments", "parameters"), "", [FOUND]),
    "arguments first": (f'{{"arguments": {ARGUMENTS}, "name": "look"}}', "", [FOUND]),
    "more keys": (f'{{"id": "1", "type": "function", {CALL[1:]}', "", [FOUND]),
    "no arguments": ('{"name": "stop"}', "", [("stop", "{}")]),
    "null for arguments": ('{"name": "stop", "arguments": null}', "", [("stop", "{}")]),
    "a list": (f'[{CALL}, {{"name": "stop"}}]', "", [FOUND, ("stop", "{}")]),
    "several lines": (f'{CALL}\n{{"name": "stop"}}', "", [FOUND, ("stop", "{}")]),
    "a fence": (f"```json\n{CALL}\n```", "", [FOUND]),
    "a fence without a language": (f"```\n{CALL}\n```\n", "", [FOUND]),
    "a fence that is left open": (f"```json\n{CALL}\n", "", [FOUND]),
    "several in a fence": (f'```tool_call\n{CALL}\n\n{{"name": "stop"}}\n```', "", [FOUND]),
    "two fences": (f"```json\n{CALL}\n```\n\n```json\n{CALL}\n```", "", [FOUND, FOUND]),
    "behind prose": (f"I look.\n{CALL}", "I look.", [FOUND]),
    "a fence between prose": (f"I look:\n\n```\n{CALL}\n```\nDone.", "I look:\nDone.", [FOUND]),
    "behind a line that is none": (f"{{\n```json\n{CALL}\n```", "{", [FOUND]),
}
CALLS["several in a fence"][2].append(("stop", "{}"))


@pytest.mark.parametrize("tool_format", FORMATS)
@pytest.mark.parametrize("name", CALLS)
def test_a_call_without_markers_is_read(name, tool_format):
    text, content, calls = CALLS[name]
    assert read([text], tool_format) == (content, calls)
    assert read(text, tool_format) == (content, calls)


TEXTS = [
    *("", "Hello", " two  spaces \n", "{", "[", "```", "[1, 2]", '{"answer": 42}', "`look`\n{}"),
    *("{look}", "[see](x)", "```json\n```", "```python\nprint(1)\n```", "a\n{b}\n[c]\n"),
    '{"name": "Alice", "arguments": {}}',
    '{"name": "look", "arguments": {}}',  # "at" is missing
    '{"name": "look", "arguments": {"at": 1}}',
    '{"name":"look","arguments":{"at":"x","more":1}}',
    '{"name": "look", "arguments": "{}"}',
    '{"name": "look", "arguments": [1]}',
    '{"name": "look", "name": "look", "arguments": {"at": "x"}}',
    '{"name": "look", "why": "x", "arguments": {"at": "x"}}',
    '{"arguments": {"at": "x"}}',
    '{"name": "stop", "arguments": {"x": 1}}',
    CALL[:-1],
    f"{CALL} is what I would write.",
    f"I would write {CALL}",
    f"[{CALL}, 1]",
    f"[{CALL}",
    f"```json\n{CALL}\n``` and more",
    f"```json\n{CALL}\nsome words\n```",
    f"```json {{}}\n{CALL}\n```",
    f"```json\n// a call\n{CALL}\n```",
]


# The grammar of the generic form lets nothing but what fits follow this, at the start of an answer.
HELD = re.compile(r'{"name": "(look|stop)", "arguments": {')


@pytest.mark.parametrize(
    ("tool_format", "text"),
    [
        (name, text)
        for name in FORMATS
        for text in TEXTS
        if name != "generic" or not HELD.match(text)
    ],
)
def test_text_that_resembles_a_call_stays_unchanged(tool_format, text):
    assert read([text], tool_format) == (text, [])
    assert read(text, tool_format) == (text, [])


@given(st.lists(st.sampled_from([CALL, "\n", " ", "```", "json", "x", "{", "[", "]", ","])))
def test_answers_are_the_same_however_they_are_cut(pieces):
    text = "".join(pieces)
    content, calls = read([text])
    assert read(text) == read(pieces) == (content, calls)
    assert calls or content == text


@pytest.mark.parametrize("text", [CALLS["a fence"][0], CALL])
def test_calls_without_markers_are_text_where_they_are_not_read(text):
    assert read([text], unmarked=False) == (text, [])
    assert read(text, unmarked=False) == (text, [])


def test_calls_with_and_without_markers_are_numbered_together():
    marked = f"<tool_call>\n{CALL}\n</tool_call>"
    stop = ("stop", "{}")
    text = f'{marked}\n{{"name": "stop"}}\n{marked}'
    assert read([text]) == read(text) == ("", [FOUND, stop, FOUND])


def test_a_call_behind_reasoning_is_read():
    text = f"<think>hm\n{CALL}\n</think>\n{CALL}"
    parser = OutputParser("hermes", "think", TOOLS, unmarked=True)
    deltas = [*parser.feed(text), *parser.finish()]
    assert [getattr(delta, "name", None) for delta in deltas] == [None, "look", None]


@pytest.mark.parametrize("text", [CALL[:-1], CALL[:12], f"```json\n{CALL[:-4]}", "```js"])
def test_half_a_call_that_the_end_cuts_off_stays_text(text):
    assert read(text, is_cut=True) == (text, [])


def test_text_is_held_back_only_while_a_call_is_possible():
    parser = OutputParser("hermes", "", TOOLS, unmarked=True)
    assert parser.feed("Hello ") == [PlainContent("Hello")]
    assert parser.feed('world\n{"na') == [PlainContent(" world")]
    assert parser.feed('me": "lo') == []
    assert parser.feed('ad"') == [PlainContent('\n{"name": "load"')]
    assert parser.feed("\n```py") == []
    assert parser.feed("thon\nx") == [PlainContent("\n```python\nx")]
    assert parser.feed("\n[1") == [PlainContent("\n[1")]
    assert parser.finish() == []


def test_arguments_under_a_grammar_are_streamed_as_generated():
    parser = OutputParser("llama3", "", TOOLS, unmarked=True)
    begun = parser.feed('{"name": "look", "parameters": {"at')
    assert [(one.name, one.arguments) for one in begun] == [("look", ""), (None, '{"at')]


def test_a_hundred_thousand_line_ends_are_each_looked_at_once():
    text = "\n" * 100_000
    assert read([text, "x"]) == (f"{text}x", [])
    assert read([*text[:50_000], "{}"]) == (f"{text[:50_000]}{{}}", [])
