"""Formats in which models write tool calls, and how to tell them from a chat template.

Pure: knows no tokens and no requests.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mindspore_serving.errors import InvalidField

GENERIC = "generic"
HARMONY = "harmony"

Tools = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Tags:
    """Format of a call whose arguments are tags, with values that are not JSON strings.

    A call is its name, then key and value of each argument, then the end.  Typed keys are followed
    by `string="true"` before text, and `string="false"` before JSON.
    """

    name: tuple[str, str]  # texts before and after it; a newline may replace an empty one after it
    key: tuple[str, str]
    value: tuple[str, str]
    end: str = ""
    has_lines: bool = False  # values are on separate lines
    is_typed: bool = False


@dataclass(frozen=True, slots=True)
class NamedCall:
    """Format of a call that is a name and its arguments as JSON.

    The texts are in parts, as each special token is a part of its own.

    Args:
        before: texts before the name.
        between: texts between name and arguments.
        after: texts after the arguments.
        is_numbered: the name is followed by ":" and the number of the call.
    """

    before: tuple[str, ...]
    between: tuple[str, ...]
    after: tuple[str, ...]
    is_numbered: bool = False


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """Format of tool calls: JSON objects, unless `tags`, `named` or `syntax` say otherwise.

    Args:
        begin: marker before a call, or before several; "" for none.
        end: marker after a call, or after several.
        separator: between calls that share one marker.
        name: the key of the name.
        arguments: the key of the arguments.
        is_bare: an answer may be a call without the marker.
        is_list: the marker is followed by a list of calls, or by a name, `[ARGS]` and arguments.
        is_section: several calls are between `begin` and `end`.
        tags: format of calls whose arguments are tags.
        named: format of calls that are a name and JSON.
        syntax: "python" for calls such as `[f(x="a")]`, "gemma" for `call:f{x:<|"|>a<|"|>}`,
            "chatglm" for a line with the name before a fence with `tool_call(x="a")`.
    """

    begin: str
    end: str = ""
    separator: str = ""
    name: str = "name"
    arguments: str = "arguments"
    is_bare: bool = False
    is_list: bool = False
    is_section: bool = False
    tags: Tags | None = None
    named: NamedCall | None = None
    syntax: str = ""


_HERMES = ToolFormat("<tool_call>", "</tool_call>")
_FUNCTION_TAGS = Tags(
    ("<function=", ">"), ("<parameter=", ">"), ("", "</parameter>"), "</function>", has_lines=True
)
_DSML = "｜DSML｜"  # DeepSeek's markup: text, though the vocabulary has it as one token
_DSML_TAGS = Tags(
    (f'<{_DSML}invoke name="', '">'),
    (f'<{_DSML}parameter name="', '">'),
    ("", f"</{_DSML}parameter>"),
    f"</{_DSML}invoke>",
    is_typed=True,
)
_DEEPSEEK = ToolFormat("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", is_section=True)
_DEEPSEEK_CALL = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
TOOL_FORMATS = {
    "": ToolFormat("", is_bare=True),
    "hermes": _HERMES,
    GENERIC: replace(_HERMES, is_bare=True),  # for models whose template has no tool format
    "llama3": ToolFormat("<|python_tag|>", separator=";", arguments="parameters", is_bare=True),
    "mistral": ToolFormat("[TOOL_CALLS]", is_list=True),
    "internlm": ToolFormat("<|action_start|><|plugin|>", "<|action_end|>", arguments="parameters"),
    "qwen3_coder": replace(_HERMES, tags=_FUNCTION_TAGS),
    "glm": replace(
        _HERMES,
        tags=Tags(("", ""), ("<arg_key>", "</arg_key>"), ("<arg_value>", "</arg_value>")),
    ),
    "seed_oss": ToolFormat("<seed:tool_call>", "</seed:tool_call>", tags=_FUNCTION_TAGS),
    "minimax": ToolFormat(
        "<minimax:tool_call>",
        "</minimax:tool_call>",
        is_section=True,
        tags=Tags(
            ('<invoke name="', '">'), ('<parameter name="', '">'), ("", "</parameter>"), "</invoke>"
        ),
    ),
    "deepseek_v3": replace(
        _DEEPSEEK,
        named=NamedCall(
            (_DEEPSEEK_CALL[0], "function", _DEEPSEEK_CALL[1]),
            ("\n```json\n",),
            ("\n```", _DEEPSEEK_CALL[2]),
        ),
    ),
    "deepseek_v31": replace(
        _DEEPSEEK,
        named=NamedCall((_DEEPSEEK_CALL[0],), (_DEEPSEEK_CALL[1],), (_DEEPSEEK_CALL[2],)),
    ),
    "deepseek_v32": ToolFormat(
        f"<{_DSML}function_calls>", f"</{_DSML}function_calls>", is_section=True, tags=_DSML_TAGS
    ),
    "deepseek_v4": ToolFormat(
        f"<{_DSML}tool_calls>", f"</{_DSML}tool_calls>", is_section=True, tags=_DSML_TAGS
    ),
    "kimi_k2": ToolFormat(
        "<|tool_calls_section_begin|>",
        "<|tool_calls_section_end|>",
        is_section=True,
        named=NamedCall(
            ("<|tool_call_begin|>", "functions."),
            ("<|tool_call_argument_begin|>",),
            ("<|tool_call_end|>",),
            is_numbered=True,
        ),
    ),
    "granite3": ToolFormat("<|tool_call|>", is_list=True, is_section=True),
    "phi4": ToolFormat("<|tool_call|>", "<|/tool_call|>", is_list=True, is_section=True),
    "phi4_mini": ToolFormat("functools", is_list=True, is_section=True),
    "nemotron": ToolFormat("<TOOLCALL>", "</TOOLCALL>", is_list=True, is_section=True),
    "hunyuan": ToolFormat("<tool_calls>", "</tool_calls>", is_list=True, is_section=True),
    "pangu": ToolFormat("[unused11]", "[unused12]", is_list=True, is_section=True),
    "command": ToolFormat(
        "<|START_ACTION|>",
        "<|END_ACTION|>",
        name="tool_name",
        arguments="parameters",
        is_list=True,
        is_section=True,
    ),
    "lfm2": ToolFormat(
        "<|tool_call_start|>", "<|tool_call_end|>", is_section=True, syntax="python"
    ),
    "llama4": ToolFormat(
        "<|python_start|>", "<|python_end|>", is_bare=True, is_section=True, syntax="python"
    ),
    "chatglm3": ToolFormat("<|assistant|>", is_bare=True, is_section=True, syntax="chatglm"),
    "gemma4": ToolFormat("<|tool_call>", "<tool_call|>", syntax="gemma"),
    HARMONY: ToolFormat(""),  # channels: read and held by `harmony`
}
# Texts of chat templates that all have to be there, and the format that they show; the first wins.
_SIGNS: tuple[tuple[tuple[str, ...], str], ...] = (
    (("<|channel|>", "<|call|>"), HARMONY),
    (("<minimax:tool_call>",), "minimax"),
    (("<seed:tool_call>",), "seed_oss"),
    (("<tool_call>", "arguments", "<arg_key>"), "glm"),
    (("<tool_call>", "arguments", "<function="), "qwen3_coder"),
    (("<tool_calls>", "</tool_calls>"), "hunyuan"),
    (("<tool_call>", "arguments"), "hermes"),
    (("[TOOL_CALLS]",), "mistral"),
    (("<|action_start|>", "<|plugin|>"), "internlm"),
    ((_DSML, "function_calls"), "deepseek_v32"),
    ((_DSML, "tool_calls"), "deepseek_v4"),
    (("<｜tool▁calls▁begin｜>", "```json"), "deepseek_v3"),
    (("<｜tool▁calls▁begin｜>",), "deepseek_v31"),
    (("<|tool_calls_section_begin|>",), "kimi_k2"),
    (("<TOOLCALL>",), "nemotron"),
    (("[unused11]",), "pangu"),
    (("<|START_ACTION|>",), "command"),
    (("<|tool_call_start|>",), "lfm2"),
    (("<|tool_list_start|>",), "lfm2"),
    (("<|tool_call>", "<tool_call|>"), "gemma4"),
    (("observation", "tool_call("), "chatglm3"),
    (("<|tool_call|>", "<|/tool_call|>"), "phi4"),
    (("functools",), "phi4_mini"),
    (("<|tool|>", "<|/tool|>", "message['tools']"), "phi4_mini"),
    (("<|tool_call|>",), "granite3"),
    (("<|python_start|>",), "llama4"),
    (("<|header_start|>", "parameters"), "llama4"),
    (("<|start_header_id|>", "parameters"), "llama3"),
    (("<|python_tag|>",), "llama3"),
)


def find_tool_format(template_source: str) -> str:
    """Return the format in `TOOL_FORMATS` that a chat template uses, "" for none."""
    return next(
        (name for signs, name in _SIGNS if all(sign in template_source for sign in signs)), ""
    )


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


def with_system_tools(
    messages: Sequence[Mapping[str, Any]], tools: Tools, source: str
) -> Sequence[Mapping[str, Any]]:
    """Return `messages` with the tools as JSON in the system message, if a template reads them so.

    Phi-4-mini's does. A conversation without a system message gets an empty one.
    """
    if not tools or "message['tools']" not in source:
        return messages
    text = json.dumps([function_of(tool) for tool in to_template(tools)], ensure_ascii=False)
    has_system = bool(messages) and messages[0].get("role") == "system"
    first = messages[0] if has_system else {"role": "system", "content": ""}
    return [{**first, "tools": text}, *messages[has_system:]]


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
