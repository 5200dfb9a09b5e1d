"""How models write calls of tools: found in a chat template, and forced by a grammar.

Pure text: it knows no tokens and no requests.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mindspore_serving.core.json_schema import closed
from mindspore_serving.core.llm_messages import Grammar
from mindspore_serving.errors import InvalidField
from mindspore_serving.llm.grammar.source import spacing

MAX_CALLS = 32  # that a grammar allows in one answer
_NEWLINE, _SEMICOLON = r'"\n"', '"; "'
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_.-]+")

Tools = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """How calls are written.

    Args:
        begin: marker before a call, or before several; "" for none.
        end: marker behind a call.
        separator: between calls that have one marker together.
        arguments: the key of the arguments, beside "name".
        is_bare: an answer may be a call without the marker.
        is_list: behind the marker is a list of calls, or a name and `[ARGS]` and the arguments.
    """

    begin: str
    end: str = ""
    separator: str = ""
    arguments: str = "arguments"
    is_bare: bool = False
    is_list: bool = False


TOOL_FORMATS = {
    "": ToolFormat("", is_bare=True),
    "hermes": ToolFormat("<tool_call>", "</tool_call>"),
    "llama3": ToolFormat("<|python_tag|>", separator=";", arguments="parameters", is_bare=True),
    "mistral": ToolFormat("[TOOL_CALLS]", is_list=True),
    "internlm": ToolFormat("<|action_start|><|plugin|>", "<|action_end|>", arguments="parameters"),
}


def find_tool_format(template_source: str) -> str:
    """The format that a chat template shows: "hermes", "llama3", "mistral", "internlm", or ""."""
    source = template_source
    # Qwen3-Coder and GLM have the markers of Hermes, with XML between them.
    is_xml = "<function=" in source or "<arg_key>" in source
    if "<tool_call>" in source and "arguments" in source:
        return "" if is_xml else "hermes"
    if "[TOOL_CALLS]" in source:
        return "mistral"
    if "<|action_start|>" in source and "<|plugin|>" in source:
        return "internlm"
    is_llama = "<|start_header_id|>" in source and "parameters" in source
    return "llama3" if is_llama or "<|python_tag|>" in source else ""


def tool_names(tools: Tools) -> list[str]:
    """Raises InvalidField for a tool without a name."""
    return [_function(tool)["name"] for tool in tools]


def to_template(tools: Tools) -> list[dict[str, Any]]:
    """`tools` for a template: without "strict", and with "parameters", which templates need."""
    return [_shown(one) if isinstance(one.get("function"), Mapping) else {**one} for one in tools]


def _shown(tool: Mapping[str, Any]) -> dict[str, Any]:
    function = {name: value for name, value in tool["function"].items() if name != "strict"}
    function.setdefault("parameters", {"type": "object", "properties": {}})
    return {**tool, "function": function}


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
    functions = [_function(tool) for tool in tools]
    if name is not None:
        functions = [function for function in functions if function["name"] == name]
        if not functions:
            accepted = ", ".join(tool_names(tools)) or "a name: there are no tools"
            raise _wrong(f"tool {name!r} is to be called, expected one of {accepted}")
    if not functions:
        raise _wrong("a tool is to be called, but there are no tools")
    rules = _head(tool_format, MAX_CALLS - 1 if parallel else 0)
    rules += _calls(functions, TOOL_FORMATS[tool_format].arguments)
    if tool_format == "mistral":
        rules += _named_calls(functions)
    for index, function in enumerate(functions):
        rules.append(f"args_{index}: %json {json.dumps(_schema(function))}")
    return Grammar("lark", "\n".join(rules) + "\n")


def _head(tool_format: str, most: int) -> list[str]:
    """The rules around `call` and `most` more.  Markers are rules, so that special tokens match."""
    if tool_format == "hermes":
        return [
            f"start: {_several('block', _NEWLINE, most)}",
            f"block: begin {_NEWLINE} call {_NEWLINE} end",
            'begin: "<tool_call>"',
            'end: "</tool_call>"',
        ]
    if tool_format == "internlm":
        return [
            f"start: {_several('block', '', most)}",
            f"block: begin plugin {_NEWLINE} call end",
            'begin: "<|action_start|>"',
            'plugin: "<|plugin|>"',
            'end: "<|action_end|>"',
        ]
    if tool_format == "mistral":
        calls = _several("call", '", "', most)
        return [
            f"start: begin list | {_several('named', '', most)}",
            f'list: " "? "[" {calls} "]"',
            'begin: "[TOOL_CALLS]"',
            'mark: "[ARGS]"',
        ]
    return [f"start: {_several('call', _SEMICOLON, most if tool_format else 0)}"]


def _several(rule: str, separator: str, most: int) -> str:
    return f"{rule} ({separator} {rule}){{0,{most}}}" if most else rule


def _calls(functions: Sequence[Mapping[str, Any]], key: str) -> list[str]:
    """Rules for calls as JSON objects, spaced as templates write them."""
    rules = ["call: " + " | ".join(f"call_{index}" for index in range(len(functions)))]
    for index, function in enumerate(functions):
        begin = f'{{"name": {json.dumps(function["name"], ensure_ascii=False)}, "{key}": '
        rules.append(f'call_{index}: {json.dumps(begin)} args_{index} "}}"')
    return rules


def _named_calls(functions: Sequence[Mapping[str, Any]]) -> list[str]:
    """Rules for calls as a name and arguments; a name that is not plain could
    be read as the marker behind it, and is called in a list alone."""
    rules = [
        f"begin {json.dumps(function['name'])} mark args_{index}"
        for index, function in enumerate(functions)
        if _PLAIN_NAME.fullmatch(function["name"])
    ]
    return ["named: " + " | ".join(rules or ["begin list"])]


def _function(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    """Raises InvalidField if `tool` is not as OpenAI writes it."""
    function = tool.get("function")
    if not isinstance(function, Mapping):
        raise _wrong('a tool has no "function", expected an object with "name"')
    name = function.get("name")
    if not isinstance(name, str) or not name or not name.isprintable():
        raise _wrong(f"a tool's name is {name!r}, expected a text that is not empty")
    return function


def _schema(function: Mapping[str, Any]) -> dict[str, Any]:
    """What the arguments are to follow.  Raises InvalidField if they are to be no object."""
    name, parameters = function["name"], function.get("parameters")
    if parameters is None:
        empty = {"type": "object", "additionalProperties": False}
        return {**empty, "x-guidance": {"whitespace_flexible": False}}
    kind = parameters.get("type", "object") if isinstance(parameters, Mapping) else parameters
    if kind != "object":
        raise _wrong(
            f"the parameters of tool {name!r} are of type {kind!r}, expected the JSON schema of an "
            "object"
        )
    stated = parameters.get("x-guidance")
    options = {**spacing(json.dumps(stated)), "lenient": function.get("strict") is not True}
    if isinstance(stated, Mapping):
        options |= stated
    return {"type": "object", **closed(dict(parameters)), "x-guidance": options}


def _wrong(text: str) -> InvalidField:
    return InvalidField("tools", text=text)
