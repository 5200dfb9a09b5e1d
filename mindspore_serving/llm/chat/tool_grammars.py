"""Grammars of answers that are tool calls, or that may have some.

Pure: knows no tokens and no requests.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from mindspore_serving.core.json_schema import closed, find_excess, without_annotations
from mindspore_serving.core.llm_messages import Grammar
from mindspore_serving.llm.chat.harmony import harmony_grammar
from mindspore_serving.llm.chat.section_grammars import call_rules, section_rule
from mindspore_serving.llm.chat.tagged_grammar import tagged_rules
from mindspore_serving.llm.chat.tool_formats import (
    GENERIC,
    HARMONY,
    TOOL_FORMATS,
    ToolFormat,
    Tools,
    function_of,
    invalid_tools,
    tool_names,
)
from mindspore_serving.llm.grammar.source import answer_rule, regex_literal, whitespace_options

MAX_CALLS = 32  # calls that a grammar allows in an answer
_SPACE = "SPACE: /[ \\n]{0,4}/"
_NEWLINE, _SEMICOLON = r'"\n"', '"; "'
_PLUGIN = "<|plugin|>"  # InternLM's second marker, after the first
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_.-]+")


def tool_grammar(tool_format: str, tools: Tools, name: str | None, parallel: bool) -> Grammar:
    """Return the grammar of answers that consist of tool calls.

    Arguments follow the tool's JSON schema.  A schema that cannot be enforced is refused if the
    tool is `strict`, else ignored.

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
            raise invalid_tools(f"tool_choice is {name!r}, expected one of {accepted}")
    if not functions:
        raise invalid_tools("a tool call is required, but there are no tools")
    if tool_format == HARMONY:
        schemas = [(function["name"], _schema(function)) for function in functions]
        return harmony_grammar(schemas, None, must_call=True)
    rules = _head(tool_format, MAX_CALLS - 1 if parallel else 0)
    return Grammar("lark", "\n".join([*rules, *_calls(tool_format, functions)]) + "\n")


def auto_grammar(
    tool_format: str, tools: Tools, parallel: bool, form: Grammar | None = None
) -> Grammar:
    """Return the grammar of any text in which calls, once begun, are as in `tool_grammar`.

    After a call nothing but further calls is allowed.

    Args:
        tool_format: of `TOOL_FORMATS`, not "".
        tools: as OpenAI writes them; at least one.
        parallel: allow several calls, up to `MAX_CALLS`.
        form: grammar of an answer without calls; no text precedes calls then.

    Raises InvalidField for a tool that is malformed, InvalidInputs for a schema that is no JSON.
    """
    functions = [function_of(tool) for tool in tools]
    if tool_format == HARMONY:
        schemas = [(function["name"], _schema(function)) for function in functions]
        return harmony_grammar(schemas, form, must_call=False)
    row = TOOL_FORMATS[tool_format]
    opening = json.dumps(row.begin.removesuffix(_PLUGIN), ensure_ascii=False)
    if form is None:
        answer = f"form: TEXT\nopening[suffix={opening}]: TEXT\n{_text(row, functions)}"
    else:
        answer = f"{answer_rule(form, 'form')}\nopening: {opening}"
    # A form and calls without a marker may begin alike, and a lexer cannot tell them apart.
    is_bare = row.is_bare and form is None
    rules = _parts(tool_format, MAX_CALLS - 1 if parallel else 0, is_bare=is_bare)
    return Grammar("lark", "\n".join([*rules, answer, *_calls(tool_format, functions)]) + "\n")


def _text(row: ToolFormat, functions: Sequence[Mapping[str, Any]]) -> str:
    """Return the rule of any text, except one that begins like a call without marker."""
    if not row.is_bare:
        return "TEXT: /(?s:.*)/"
    if row.syntax:
        names = "|".join(re.escape(item["name"]) for item in functions)
        begin = "(%s)\\n" if row.syntax == "chatglm" else r"[ \n]{0,4}\[(%s)\("
        call = regex_literal(f"(?s:{begin % names}.*)")
        return f"TEXT: /(?s:.*)/ & ~{call}"
    names = "|".join(re.escape(json.dumps(item["name"], ensure_ascii=False)) for item in functions)
    call = regex_literal(f'(?s:[ \\n]{{0,4}}\\{{"name": ({names}), "{row.arguments}": .*)')
    return f"TEXT: /(?s:.*)/ & ~{call}"


def _parts(tool_format: str, max_more: int, *, is_bare: bool) -> list[str]:
    """Return the rules around `call`, `opening`, which is the first marker, and `form`."""
    row = TOOL_FORMATS[tool_format]
    if row.is_section:
        bare = "list | " if is_bare else ""
        return [f"start: {bare}opening inside | form", *section_rule(row, max_more), _SPACE]
    bare = "SPACE calls | " if is_bare else ""
    if tool_format == "internlm":
        return [
            f"start: opening inside {_repeat('begin inside', max_more)} | form",
            "inside: plugin SPACE call SPACE end",
            *(_SPACE, *_markers(tool_format)),
        ]
    if tool_format == "mistral":
        calls = _several("call", 'SPACE "," SPACE', max_more)
        return [
            f"start: opening list | opening called {_repeat('begin called', max_more)} | form",
            f'list: SPACE "[" {calls} "]"',
            *(_SPACE, *_markers(tool_format)),
        ]
    if tool_format == "llama3":
        calls = _several("call", '";" SPACE', max_more)
        return [f"start: {bare}opening SPACE calls | form", f"calls: {calls}", _SPACE]
    return [
        f"start: opening inside {_repeat('SPACE begin inside', max_more)} | {bare}form",
        "inside: SPACE call SPACE end",
        "calls: call",
        *(_SPACE, *_markers(tool_format)),
    ]


def _repeat(rules: str, max_more: int) -> str:
    return f"({rules}){{0,{max_more}}}" if max_more else ""


def _head(tool_format: str, max_more: int) -> list[str]:
    """Return the rules around up to `max_more` + 1 calls, where the answer must be calls."""
    row = TOOL_FORMATS[tool_format]
    if row.is_section:
        begin = f"begin: {json.dumps(row.begin, ensure_ascii=False)}"
        inside = "list" if row.is_bare else "begin inside"
        rules = section_rule(row, max_more)
        return [f"start: {inside}", *rules, _SPACE, *[begin] * (not row.is_bare)]
    if row.tags is not None or row.syntax:
        start = [
            f"start: {_several('block', 'SPACE', max_more)}",
            "block: begin SPACE call SPACE end",
            _SPACE,
        ]
    elif tool_format in ("hermes", GENERIC):
        start = [
            f"start: {_several('block', _NEWLINE, max_more)}",
            f"block: begin {_NEWLINE} call {_NEWLINE} end",
        ]
    elif tool_format == "internlm":
        start = [
            f"start: {_several('block', '', max_more)}",
            f"block: begin plugin {_NEWLINE} call end",
        ]
    elif tool_format == "mistral":
        calls = _several("call", '", "', max_more)
        start = [
            f"start: begin list | {_several('named', '', max_more)}",
            f'list: " "? "[" {calls} "]"',
            "named: begin called",
        ]
    else:
        start = [f"start: {_several('call', _SEMICOLON, max_more if tool_format else 0)}"]
    return start + _markers(tool_format)


def _markers(tool_format: str) -> list[str]:
    """Return a rule for each marker, so that special tokens match."""
    row = TOOL_FORMATS[tool_format]
    if tool_format == "internlm":
        begin = row.begin.removesuffix(_PLUGIN)
        return [f'begin: "{begin}"', f'plugin: "{_PLUGIN}"', f'end: "{row.end}"']
    if tool_format == "mistral":
        return [f'begin: "{row.begin}"', 'mark: "[ARGS]"']
    return [f'begin: "{row.begin}"', f'end: "{row.end}"'] if row.end else []


def _several(rule: str, separator: str, max_more: int) -> str:
    return f"{rule} ({separator} {rule}){{0,{max_more}}}" if max_more else rule


def _calls(tool_format: str, functions: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the rules of calls: in tags, or as JSON objects with the whitespace of templates."""
    row = TOOL_FORMATS[tool_format]
    if row.tags is not None:
        schemas = [(function["name"], _schema(function)) for function in functions]
        strict = frozenset(item["name"] for item in functions if item.get("strict") is True)
        return tagged_rules(row.tags, schemas, strict)
    if row.named is not None or row.syntax:
        schemas = [(function["name"], _schema(function)) for function in functions]
        separator = "COMMA: /,/" if row.syntax == "gemma" else "COMMA: /, ?/"
        return [*call_rules(row, schemas), *[separator] * bool(row.syntax)]
    key = row.arguments
    rules = ["call: " + " | ".join(f"call_{index}" for index in range(len(functions)))]
    for index, function in enumerate(functions):
        begin = f'{{"{row.name}": {json.dumps(function["name"], ensure_ascii=False)}, "{key}": '
        rules.append(f'call_{index}: {json.dumps(begin)} args_{index} "}}"')
        rules.append(f"args_{index}: %json {json.dumps(_schema(function))}")
    return rules + (_named(functions) if tool_format == "mistral" else [])


def _named(functions: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the rule `called`: a name and arguments.

    A name that is not plain could be read as the marker after it, so it is only called in a list.
    """
    rules = [
        f"{json.dumps(function['name'])} mark args_{index}"
        for index, function in enumerate(functions)
        if _PLAIN_NAME.fullmatch(function["name"])
    ]
    return ["called: " + " | ".join(rules or ["list"])]


def _schema(function: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema of the arguments.

    Raises InvalidField unless it is that of an object, and small enough to be compiled.
    """
    name, parameters = function["name"], function.get("parameters")
    if parameters is None:
        empty = {"type": "object", "additionalProperties": False}
        return {**empty, "x-guidance": {"whitespace_flexible": False}}
    kind = parameters.get("type", "object") if isinstance(parameters, Mapping) else parameters
    if kind != "object":
        raise invalid_tools(
            f"the parameters of tool {name!r} are of type {kind!r}, expected the JSON schema of an "
            "object"
        )
    excess = find_excess(parameters)
    if excess is not None:
        raise invalid_tools(f"the schema of the parameters of tool {name!r} {excess}")
    guidance = parameters.get("x-guidance")
    options = {
        **whitespace_options(json.dumps(guidance)),
        "lenient": function.get("strict") is not True,
    }
    if isinstance(guidance, Mapping):
        options |= guidance
    return {"type": "object", **closed(without_annotations(parameters)), "x-guidance": options}
