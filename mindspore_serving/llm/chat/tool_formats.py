"""How models write calls of tools, and which way a chat template shows.

Pure text: it knows no tokens and no requests.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mindspore_serving.errors import InvalidField

GENERIC = "generic"

Tools = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Tags:
    """How a call is written whose arguments are tags, each with a value that is no JSON string:
    name, then for each argument key and value, then the end.
    """

    name: tuple[str, str]  # what is before and behind; a newline may stand for "" behind
    key: tuple[str, str]
    value: tuple[str, str]
    end: str = ""
    has_lines: bool = False  # a value is on lines of its own


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
        tags: how calls are written if not as JSON.
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
    GENERIC: replace(_HERMES, is_bare=True),  # of models whose template has no form for tools
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
    """The format that a chat template shows, of `TOOL_FORMATS`; "" for none."""
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
    """Raises InvalidField for a tool without a name."""
    return [function_of(tool)["name"] for tool in tools]


def to_template(tools: Tools) -> list[dict[str, Any]]:
    """`tools` for a template: without "strict", and with "parameters", which templates need."""
    return [_shown(one) if isinstance(one.get("function"), Mapping) else {**one} for one in tools]


def _shown(tool: Mapping[str, Any]) -> dict[str, Any]:
    function = {name: value for name, value in tool["function"].items() if name != "strict"}
    function.setdefault("parameters", {"type": "object", "properties": {}})
    return {**tool, "function": function}


def function_of(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    """Raises InvalidField if `tool` is not as OpenAI writes it."""
    function = tool.get("function")
    if not isinstance(function, Mapping):
        raise wrong_tools('a tool has no "function", expected an object with "name"')
    name = function.get("name")
    if not isinstance(name, str) or not name or not name.isprintable():
        raise wrong_tools(f"a tool's name is {name!r}, expected a text that is not empty")
    return function


def wrong_tools(text: str) -> InvalidField:
    return InvalidField("tools", text=text)
