"""Formats in which models write tool calls, and how to tell them from a chat template.

Pure: knows no tokens and no requests.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mindspore_serving.errors import InvalidField

GENERIC = "generic"

Tools = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Tags:
    """Format of a call whose arguments are tags, with values that are not JSON strings.

    A call is its name, then key and value of each argument, then the end.
    """

    name: tuple[str, str]  # texts before and after it; a newline may replace an empty one after it
    key: tuple[str, str]
    value: tuple[str, str]
    end: str = ""
    has_lines: bool = False  # values are on separate lines


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """Format of tool calls.

    Args:
        begin: marker before a call, or before several; "" for none.
        end: marker after a call.
        separator: between calls that share one marker.
        arguments: the key of the arguments, beside "name".
        is_bare: an answer may be a call without the marker.
        is_list: the marker is followed by a list of calls, or by a name, `[ARGS]` and arguments.
        tags: format of calls that are not JSON.
    """

    begin: str
    end: str = ""
    separator: str = ""
    arguments: str = "arguments"
    is_bare: bool = False
    is_list: bool = False
    tags: Tags | None = None


_HERMES = ToolFormat("<tool_call>", "</tool_call>")
TOOL_FORMATS = {
    "": ToolFormat("", is_bare=True),
    "hermes": _HERMES,
    GENERIC: replace(_HERMES, is_bare=True),  # for models whose template has no tool format
    "llama3": ToolFormat("<|python_tag|>", separator=";", arguments="parameters", is_bare=True),
    "mistral": ToolFormat("[TOOL_CALLS]", is_list=True),
    "internlm": ToolFormat("<|action_start|><|plugin|>", "<|action_end|>", arguments="parameters"),
    "qwen3_coder": replace(
        _HERMES,
        tags=Tags(
            ("<function=", ">"),
            ("<parameter=", ">"),
            ("", "</parameter>"),
            end="</function>",
            has_lines=True,
        ),
    ),
    "glm": replace(
        _HERMES,
        tags=Tags(("", ""), ("<arg_key>", "</arg_key>"), ("<arg_value>", "</arg_value>")),
    ),
}


def find_tool_format(template_source: str) -> str:
    """Return the format in `TOOL_FORMATS` that a chat template uses, "" for none."""
    source = template_source
    if "<tool_call>" in source and "arguments" in source:
        if "<arg_key>" in source:
            return "glm"
        return "qwen3_coder" if "<function=" in source else "hermes"
    if "[TOOL_CALLS]" in source:
        return "mistral"
    if "<|action_start|>" in source and "<|plugin|>" in source:
        return "internlm"
    is_llama = "<|start_header_id|>" in source and "parameters" in source
    return "llama3" if is_llama or "<|python_tag|>" in source else ""


def tool_names(tools: Tools) -> list[str]:
    """Return the names of the tools.

    Raises InvalidField for a tool without a name.
    """
    return [function_of(tool)["name"] for tool in tools]


def to_template(tools: Tools) -> list[dict[str, Any]]:
    """Return `tools` for a template: without "strict", and with the "parameters" that it needs."""
    return [
        _without_strict(tool) if isinstance(tool.get("function"), Mapping) else {**tool}
        for tool in tools
    ]


def _without_strict(tool: Mapping[str, Any]) -> dict[str, Any]:
    function = {name: value for name, value in tool["function"].items() if name != "strict"}
    function.setdefault("parameters", {"type": "object", "properties": {}})
    return {**tool, "function": function}


def function_of(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the function of a tool.

    Raises InvalidField if `tool` is not in OpenAI's form.
    """
    function = tool.get("function")
    if not isinstance(function, Mapping):
        raise invalid_tools('a tool has no "function", expected an object with "name"')
    name = function.get("name")
    if not isinstance(name, str) or not name or not name.isprintable():
        raise invalid_tools(f"a tool's name is {name!r}, expected a non-empty string")
    return function


def invalid_tools(text: str) -> InvalidField:
    """Return an error about the field `tools`."""
    return InvalidField("tools", text=text)
