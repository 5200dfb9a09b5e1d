"""Tools of a request, and which of them the model may or must call."""

import re
from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from mindspore_serving.core.llm_messages import ToolChoice
from mindspore_serving.errors import InvalidField
from mindspore_serving.frontends.chat.custom_tools import CustomFormat, to_schema
from mindspore_serving.frontends.chat.fields import show, unexpected
from mindspore_serving.frontends.chat.unknown_fields import report_kinds
from mindspore_serving.frontends.decoding import check_free

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")

Tools = list[dict[str, Any]]
Mode = Literal["none", "auto", "required"]
_TYPES = ("function", "custom")
_MODES: dict[str, Mode] = {"none": "none", "auto": "auto", "required": "required"}


class Function(msgspec.Struct):
    """A function: its name, description and the JSON schema of its parameters."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class CustomTool(msgspec.Struct):
    """A custom tool, whose input is text."""

    name: str
    description: str | None = None
    format: CustomFormat | None = None


class Tool(msgspec.Struct):
    """A tool of type "function" or "custom", with a field of that name."""

    type: str
    function: Function | None = None
    custom: CustomTool | None = None


class NamedFunction(msgspec.Struct):
    """Name of a function."""

    name: str


class AllowedTool(msgspec.Struct):
    """A tool of `allowed_tools`."""

    type: str = "function"
    function: NamedFunction | None = None
    custom: NamedFunction | None = None


class AllowedTools(msgspec.Struct):
    """The tools that may ("auto") or must ("required") be called."""

    mode: str
    tools: list[AllowedTool]


class ToolChoiceBody(msgspec.Struct):
    """Choice of one function, or of a set of tools."""

    type: str
    function: NamedFunction | None = None
    allowed_tools: AllowedTools | None = None
    custom: NamedFunction | None = None


def read_tools(
    tools: Sequence[Tool], choice: str | ToolChoiceBody | None, *, parallel: bool
) -> tuple[Tools, ToolChoice]:
    """Return the tools that may be called, and the choice among them.

    Raises InvalidField.
    """
    known = to_tools(tools)
    names = [tool["function"]["name"] for tool in known]
    mode, name = _mode(choice, names)
    if isinstance(choice, ToolChoiceBody) and choice.allowed_tools is not None and name is None:
        allowed = _allowed(choice.allowed_tools, names)
        known = [tool for tool in known if tool["function"]["name"] in allowed]
    return known, ToolChoice(mode=mode, name=name, parallel=parallel)


def to_tools(tools: Sequence[Tool]) -> Tools:
    """Return the tools in the form of the request to a model.

    Tools of other kinds are left out. Raises InvalidField for malformed tools, and for invalid or
    repeated names.
    """
    converted: dict[str, dict[str, Any]] = {}
    for index, tool in enumerate(tools):
        path = f"tools[{index}]"
        if _is_unknown(tool):
            continue
        function = _to_function(path, tool)
        name = function.name
        if name in converted:
            raise InvalidField("tools", f"has {show(name)} twice, expected different names")
        converted[name] = {"type": "function", "function": _to_object(function)}
    return list(converted.values())


def _to_function(path: str, tool: Tool) -> Function:
    """Return the function of a tool, or the one that stands for a custom tool."""
    if tool.type not in _TYPES:
        raise unexpected(f"{path}.type", tool.type, "function or custom")
    function, custom = tool.function, tool.custom
    path = f"{path}.{tool.type}"
    if tool.type == "custom" and custom is not None:
        function = Function(custom.name, *to_schema(path, custom.description, custom.format))
    if function is None or (tool.type == "custom" and custom is None):
        raise InvalidField(path, "is missing")
    if not _NAME.fullmatch(function.name):
        raise unexpected(f"{path}.name", function.name, "1 to 64 letters, digits, - or _")
    check_free(f"{path}.parameters", function.parameters)
    return function


def _is_unknown(tool: Tool) -> bool:
    """Return whether a tool is of another kind, such as a server's web search."""
    return tool.type not in _TYPES and tool.function is None and tool.custom is None


def find_unread(where: str, body: Any) -> list[str]:
    """Return the paths of the tools that the model does not see; `where` is the route."""
    unread = [
        (index, tool.type) for index, tool in enumerate(body.tools or ()) if _is_unknown(tool)
    ]
    report_kinds(where, [kind for _, kind in unread])
    return [f"tools[{index}]" for index, _ in unread]


def names_of_custom(tools: Sequence[Tool]) -> frozenset[str]:
    """Return the names of the custom tools."""
    return frozenset(tool.custom.name for tool in tools if tool.custom and tool.type == "custom")


def _to_object(function: Function) -> dict[str, Any]:
    fields: dict[str, Any] = msgspec.structs.asdict(function)
    return {name: value for name, value in fields.items() if value is not None}


def _mode(choice: str | ToolChoiceBody | None, names: Sequence[str]) -> tuple[Mode, str | None]:
    """Return the mode of the choice, and the tool that must be called, if one is named.

    Raises InvalidField for an unknown mode or tool.
    """
    if choice is None:
        return ("auto" if names else "none"), None
    if isinstance(choice, str):
        if choice in names and choice not in _MODES:
            return "required", choice
        if choice not in _MODES:
            accepted = ", ".join([*_MODES, *names])
            raise unexpected("tool_choice", choice, f"{accepted} or an object")
        if choice == "required" and not names:
            raise InvalidField("tool_choice", 'is "required", expected tools with it')
        return _MODES[choice], None
    named = {"function": choice.function, "custom": choice.custom}.get(choice.type)
    if named is not None:
        _check_known(f"tool_choice.{choice.type}.name", named.name, names)
        return "required", named.name
    if choice.type == "allowed_tools" and choice.allowed_tools is not None:
        mode = choice.allowed_tools.mode
        if mode not in ("auto", "required"):
            raise unexpected("tool_choice.allowed_tools.mode", mode, "auto or required")
        return _MODES[mode], None
    raise unexpected(
        "tool_choice.type", choice.type, "function, custom or allowed_tools, with a field of it"
    )


def _allowed(allowed: AllowedTools, names: Sequence[str]) -> set[str]:
    path = "tool_choice.allowed_tools.tools"
    named = [tool.function or tool.custom for tool in allowed.tools]
    chosen = [choice.name for choice in named if choice is not None]
    if not chosen:
        raise InvalidField(path, "has no function")
    for name in chosen:
        _check_known(path, name, names)
    return set(chosen)


def _check_known(path: str, name: str, names: Sequence[str]) -> None:
    if name not in names:
        raise unexpected(path, name, f"one of the tools: {', '.join(names) or 'none'}")
