"""Grammars for calls of tools: answers that are calls, or that may be.

Pure text: it knows no tokens and no requests.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from mindspore_serving.core.json_schema import closed
from mindspore_serving.core.llm_messages import Grammar
from mindspore_serving.llm.chat.tagged_grammar import tagged_rules
from mindspore_serving.llm.chat.tool_formats import (
    GENERIC,
    TOOL_FORMATS,
    ToolFormat,
    Tools,
    function_of,
    tool_names,
    wrong_tools,
)
from mindspore_serving.llm.grammar.source import answer_rule, regex_literal, whitespace_options

MAX_CALLS = 32  # that a grammar allows in one answer
_NEWLINE, _SEMICOLON = r'"\n"', '"; "'
_PLUGIN = "<|plugin|>"  # a marker of its own behind the first
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_.-]+")


def tool_grammar(tool_format: str, tools: Tools, name: str | None, parallel: bool) -> Grammar:
    """The answers that call tools, and do nothing else.

    Arguments follow the tool's JSON schema; one that cannot is refused if `strict`, else ignored.

    Args:
        tool_format: of `TOOL_FORMATS`; for "" one JSON object with "name" and "arguments".
        tools: as OpenAI writes them.
        name: the tool to call; None for any.
        parallel: allow several calls, up to `MAX_CALLS`; "" has but one.

    Raises InvalidField: no tools, an unknown name, a tool that is malformed.
    """
    functions = [function_of(tool) for tool in tools]
    if name is not None:
        functions = [function for function in functions if function["name"] == name]
        if not functions:
            accepted = ", ".join(tool_names(tools)) or "a name: there are no tools"
            raise wrong_tools(f"tool {name!r} is to be called, expected one of {accepted}")
    if not functions:
        raise wrong_tools("a tool is to be called, but there are no tools")
    rules = _head(tool_format, MAX_CALLS - 1 if parallel else 0)
    return Grammar("lark", "\n".join([*rules, *_calls(tool_format, functions)]) + "\n")


def auto_grammar(
    tool_format: str, tools: Tools, parallel: bool, form: Grammar | None = None
) -> Grammar:
    """Any text, in which calls are as `tool_grammar` has them once the model has begun one; behind
    them is nothing but further calls.

    Args:
        tool_format: of `TOOL_FORMATS`, not "".
        tools: as OpenAI writes them; at least one.
        parallel: allow several calls, up to `MAX_CALLS`.
        form: what an answer without calls looks like; there is no text before calls then.

    Raises InvalidField for a tool that is malformed, InvalidInputs for a schema that is no JSON.
    """
    functions = [function_of(tool) for tool in tools]
    row = TOOL_FORMATS[tool_format]
    opening = json.dumps(row.begin.removesuffix(_PLUGIN))
    if form is None:
        answer = f"form: TEXT\nopening[suffix={opening}]: TEXT\n{_text(row, functions)}"
    else:
        answer = f"{answer_rule(form, 'form')}\nopening: {opening}"
    # A form and calls without a marker could begin alike, and no lexer tells the two apart.
    is_bare = row.is_bare and form is None
    rules = _parts(tool_format, MAX_CALLS - 1 if parallel else 0, is_bare=is_bare)
    return Grammar("lark", "\n".join([*rules, answer, *_calls(tool_format, functions)]) + "\n")


def _text(row: ToolFormat, functions: Sequence[Mapping[str, Any]]) -> str:
    """All texts; where a call needs no marker, but those that begin as one."""
    if not row.is_bare:
        return "TEXT: /(?s:.*)/"
    names = "|".join(re.escape(json.dumps(one["name"], ensure_ascii=False)) for one in functions)
    call = regex_literal(f'(?s:[ \\n]{{0,4}}\\{{"name": ({names}), "{row.arguments}": .*)')
    return f"TEXT: /(?s:.*)/ & ~{call}"


def _parts(tool_format: str, most: int, *, is_bare: bool) -> list[str]:
    """The rules around `call`, `opening`, which is the first marker, and `form`."""
    bare = "SPACE calls | " if is_bare else ""
    space = "SPACE: /[ \\n]{0,4}/"
    if tool_format == "internlm":
        return [
            f"start: opening inside {_more('begin inside', most)} | form",
            "inside: plugin SPACE call SPACE end",
            *(space, *_markers(tool_format)),
        ]
    if tool_format == "mistral":
        calls = _several("call", 'SPACE "," SPACE', most)
        return [
            f"start: opening list | opening called {_more('begin called', most)} | form",
            f'list: SPACE "[" {calls} "]"',
            *(space, *_markers(tool_format)),
        ]
    if tool_format == "llama3":
        calls = _several("call", '";" SPACE', most)
        return [f"start: {bare}opening SPACE calls | form", f"calls: {calls}", space]
    return [
        f"start: opening inside {_more('SPACE begin inside', most)} | {bare}form",
        "inside: SPACE call SPACE end",
        "calls: call",
        *(space, *_markers(tool_format)),
    ]


def _more(rules: str, most: int) -> str:
    return f"({rules}){{0,{most}}}" if most else ""


def _head(tool_format: str, most: int) -> list[str]:
    """The rules around `call` and `most` more, where the answer must be calls."""
    if TOOL_FORMATS[tool_format].tags is not None:
        start = [
            f"start: {_several('block', 'SPACE', most)}",
            "block: begin SPACE call SPACE end",
            "SPACE: /[ \\n]{0,4}/",
        ]
    elif tool_format in ("hermes", GENERIC):
        start = [
            f"start: {_several('block', _NEWLINE, most)}",
            f"block: begin {_NEWLINE} call {_NEWLINE} end",
        ]
    elif tool_format == "internlm":
        start = [
            f"start: {_several('block', '', most)}",
            f"block: begin plugin {_NEWLINE} call end",
        ]
    elif tool_format == "mistral":
        calls = _several("call", '", "', most)
        start = [
            f"start: begin list | {_several('named', '', most)}",
            f'list: " "? "[" {calls} "]"',
            "named: begin called",
        ]
    else:
        start = [f"start: {_several('call', _SEMICOLON, most if tool_format else 0)}"]
    return start + _markers(tool_format)


def _markers(tool_format: str) -> list[str]:
    """Rules of their own, so that special tokens match."""
    row = TOOL_FORMATS[tool_format]
    if tool_format == "internlm":
        begin = row.begin.removesuffix(_PLUGIN)
        return [f'begin: "{begin}"', f'plugin: "{_PLUGIN}"', f'end: "{row.end}"']
    if tool_format == "mistral":
        return [f'begin: "{row.begin}"', 'mark: "[ARGS]"']
    return [f'begin: "{row.begin}"', f'end: "{row.end}"'] if row.end else []


def _several(rule: str, separator: str, most: int) -> str:
    return f"{rule} ({separator} {rule}){{0,{most}}}" if most else rule


def _calls(tool_format: str, functions: Sequence[Mapping[str, Any]]) -> list[str]:
    """Rules for calls: in tags, or as JSON objects, spaced as templates write them."""
    row = TOOL_FORMATS[tool_format]
    if row.tags is not None:
        schemas = [(function["name"], _schema(function)) for function in functions]
        strict = frozenset(one["name"] for one in functions if one.get("strict") is True)
        return tagged_rules(row.tags, schemas, strict)
    key = row.arguments
    rules = ["call: " + " | ".join(f"call_{index}" for index in range(len(functions)))]
    for index, function in enumerate(functions):
        begin = f'{{"name": {json.dumps(function["name"], ensure_ascii=False)}, "{key}": '
        rules.append(f'call_{index}: {json.dumps(begin)} args_{index} "}}"')
        rules.append(f"args_{index}: %json {json.dumps(_schema(function))}")
    return rules + (_named(functions) if tool_format == "mistral" else [])


def _named(functions: Sequence[Mapping[str, Any]]) -> list[str]:
    """The rule `called`: a name and arguments.  A name that is not plain could be read as the
    marker behind it, and is called in a list alone.
    """
    rules = [
        f"{json.dumps(function['name'])} mark args_{index}"
        for index, function in enumerate(functions)
        if _PLAIN_NAME.fullmatch(function["name"])
    ]
    return ["called: " + " | ".join(rules or ["list"])]


def _schema(function: Mapping[str, Any]) -> dict[str, Any]:
    """What the arguments are to follow.  Raises InvalidField if they are to be no object."""
    name, parameters = function["name"], function.get("parameters")
    if parameters is None:
        empty = {"type": "object", "additionalProperties": False}
        return {**empty, "x-guidance": {"whitespace_flexible": False}}
    kind = parameters.get("type", "object") if isinstance(parameters, Mapping) else parameters
    if kind != "object":
        raise wrong_tools(
            f"the parameters of tool {name!r} are of type {kind!r}, expected the JSON schema of an "
            "object"
        )
    stated = parameters.get("x-guidance")
    options = {
        **whitespace_options(json.dumps(stated)),
        "lenient": function.get("strict") is not True,
    }
    if isinstance(stated, Mapping):
        options |= stated
    return {"type": "object", **closed(dict(parameters)), "x-guidance": options}
