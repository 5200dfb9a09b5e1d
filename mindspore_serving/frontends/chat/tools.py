"""Tools of a request, and which of them the model may or must call."""

import re
from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from mindspore_serving.core.llm_messages import ToolChoice
from mindspore_serving.errors import InvalidField
from mindspore_serving.frontends.chat.fields import show, unexpected
from mindspore_serving.frontends.decoding import check_free

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")

Tools = list[dict[str, Any]]
Mode = Literal["none", "auto", "required"]
_MODES: dict[str, Mode] = {"none": "none", "auto": "auto", "required": "required"}


class Function(msgspec.Struct):
    """A function: its name, description and the JSON schema of its parameters."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(msgspec.Struct):
    """A tool; only those of type "function" are supported."""

    type: str
    function: Function | None = None


class NamedFunction(msgspec.Struct):
    """Name of a function."""

    name: str


class AllowedTool(msgspec.Struct):
    """A tool of `allowed_tools`."""

    type: str = "function"
    function: NamedFunction | None = None


class AllowedTools(msgspec.Struct):
    """The tools that may ("auto") or must ("required") be called."""

    mode: str
    tools: list[AllowedTool]


class ToolChoiceBody(msgspec.Struct):
    """Choice of one function, or of a set of tools."""

    type: str
    function: NamedFunction | None = None
    allowed_tools: AllowedTools | None = None


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

    Raises InvalidField for tools that are no functions, and for invalid or repeated names.
    """
    converted: dict[str, dict[str, Any]] = {}
    for index, tool in enumerate(tools):
        path = f"tools[{index}]"
        if tool.type != "function":
            raise unexpected(f"{path}.type", tool.type, "function")
        if tool.function is None:
            raise InvalidField(f"{path}.function", "is missing")
        _check(path, tool.function)
        name = tool.function.name
        if name in converted:
            raise InvalidField("tools", f"has {show(name)} twice, expected different names")
        converted[name] = {"type": "function", "function": _to_object(tool.function)}
    return list(converted.values())


def _check(path: str, function: Function) -> None:
    if not _NAME.fullmatch(function.name):
        accepted = "1 to 64 letters, digits, - or _"
        raise unexpected(f"{path}.function.name", function.name, accepted)
    check_free(f"{path}.function.parameters", function.parameters)


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
    if choice.type == "function" and choice.function is not None:
        name = choice.function.name
        _check_known("tool_choice.function.name", name, names)
        return "required", name
    if choice.type == "allowed_tools" and choice.allowed_tools is not None:
        mode = choice.allowed_tools.mode
        if mode not in ("auto", "required"):
            raise unexpected("tool_choice.allowed_tools.mode", mode, "auto or required")
        return _MODES[mode], None
    raise unexpected(
        "tool_choice.type", choice.type, "function or allowed_tools, with a field of it"
    )


def _allowed(allowed: AllowedTools, names: Sequence[str]) -> set[str]:
    path = "tool_choice.allowed_tools.tools"
    chosen = [tool.function.name for tool in allowed.tools if tool.function is not None]
    if not chosen:
        raise InvalidField(path, "has no function")
    for name in chosen:
        _check_known(path, name, names)
    return set(chosen)


def _check_known(path: str, name: str, names: Sequence[str]) -> None:
    if name not in names:
        raise unexpected(path, name, f"one of the tools: {', '.join(names) or 'none'}")
