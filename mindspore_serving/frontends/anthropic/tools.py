"""The tools of a request, and which of them the model calls."""

import re
from collections.abc import Collection
from typing import Any, Literal

from mindspore_serving.core.llm_messages import ToolChoice
from mindspore_serving.errors import InvalidField
from mindspore_serving.frontends.anthropic.requests import CountRequest, Tool
from mindspore_serving.frontends.decoding import check_free
from mindspore_serving.frontends.fields import show

_NAME = re.compile(r"[A-Za-z0-9_-]{1,128}")
_MODES: dict[str, Literal["none", "auto", "required"]] = {
    "auto": "auto",
    "any": "required",
    "tool": "required",
    "none": "none",
}

Tools = list[dict[str, Any]]


def read_tools(body: CountRequest) -> tuple[Tools, ToolChoice]:
    """The tools that may be called, as a request to a model has them, and how.  Raises
    InvalidField."""
    found = [_to_tool(f"tools[{index}]", tool) for index, tool in enumerate(body.tools or ())]
    names: dict[str, None] = {}
    for name in [tool["function"]["name"] for tool in found]:
        if name in names:
            raise InvalidField("tools", f"has {show(name)} twice, expected different names")
        names[name] = None
    return found, _choice(body, names)


def _to_tool(place: str, tool: Tool) -> dict[str, Any]:
    if tool.type not in (None, "custom"):
        problem = f"is {show(tool.type)}, expected custom: there are no built-in tools"
        raise InvalidField(f"{place}.type", problem)
    if not _NAME.fullmatch(tool.name):
        accepted = "1 to 128 letters, digits, - or _"
        raise InvalidField(f"{place}.name", f"is {show(tool.name)}, expected {accepted}")
    if tool.input_schema is None:
        raise InvalidField(f"{place}.input_schema", "is missing")
    check_free(f"{place}.input_schema", tool.input_schema)
    function = {
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.input_schema,
        "strict": tool.strict,
    }
    given = {name: value for name, value in function.items() if value is not None}
    return {"type": "function", "function": given}


def _choice(body: CountRequest, names: Collection[str]) -> ToolChoice:
    choice = body.tool_choice
    if choice is None:
        return ToolChoice(mode="auto" if names else "none")
    if choice.type not in _MODES:
        accepted = ", ".join(_MODES)
        raise InvalidField("tool_choice.type", f"is {show(choice.type)}, expected {accepted}")
    mode = _MODES[choice.type]
    if mode == "required" and not names:
        raise InvalidField("tool_choice.type", f"is {show(choice.type)}, expected tools with it")
    if choice.type == "tool" and choice.name not in names:
        accepted = f"one of the tools: {', '.join(names)}"
        raise InvalidField("tool_choice.name", f"is {show(choice.name)}, expected {accepted}")
    name = choice.name if choice.type == "tool" else None
    return ToolChoice(mode=mode, name=name, parallel=not choice.disable_parallel_tool_use)
