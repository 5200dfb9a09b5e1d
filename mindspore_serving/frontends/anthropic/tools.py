"""Tools of a request, and which of them the model may or must call."""

import re
from collections.abc import Collection, Mapping
from typing import Any, Literal

from mindspore_serving.core.llm_messages import ToolChoice
from mindspore_serving.errors import InvalidField
from mindspore_serving.frontends.anthropic.known_tools import find_known
from mindspore_serving.frontends.anthropic.requests import (
    AnthropicMcpServer,
    AnthropicTool,
    CountRequest,
)
from mindspore_serving.frontends.chat.fields import show, unexpected
from mindspore_serving.frontends.chat.mcp_tools import McpOffer, McpWish
from mindspore_serving.frontends.chat.tools import to_tools
from mindspore_serving.frontends.decoding import check_free

_NAME = re.compile(r"[A-Za-z0-9_-]{1,128}")
_MODES: dict[str, Literal["none", "auto", "required"]] = {
    "auto": "auto",
    "any": "required",
    "tool": "required",
    "none": "none",
}

TOOLSET = "mcp_toolset"  # type of a tool: those of an MCP server
_OF_OPERATOR = "is not supported: the operator lists servers with their secrets"

Tools = list[dict[str, Any]]


def read_tools(body: CountRequest, offered: McpOffer | None = None) -> tuple[Tools, ToolChoice]:
    """Return the tools in the form of the request to a model, and the choice among them.

    Those of MCP servers are `offered`. Raises InvalidField.
    """
    tools = [
        _to_tool(f"tools[{index}]", tool)
        for index, tool in enumerate(body.tools or ())
        if is_offered(tool)
    ]
    tools += to_tools(offered.functions() if offered is not None else ())
    names: dict[str, None] = {}
    for name in [tool["function"]["name"] for tool in tools]:
        if name in names:
            raise InvalidField("tools", f"has {show(name)} twice, expected different names")
        names[name] = None
    return tools, _choice(body, names)


def read_wishes(body: CountRequest) -> list[McpWish]:
    """Return the MCP servers of which tools are offered, none without `mcp_servers`.

    Raises InvalidField.
    """
    servers = {server.name: server for server in body.mcp_servers or ()}
    for index, server in enumerate(body.mcp_servers or ()):
        if server.authorization_token is not None:
            raise InvalidField(f"mcp_servers[{index}].authorization_token", _OF_OPERATOR)
    return [
        _to_wish(f"tools[{index}]", tool, servers)
        for index, tool in enumerate(body.tools or ())
        if tool.type == TOOLSET and servers
    ]


def _to_wish(path: str, tool: AnthropicTool, servers: Mapping[str, AnthropicMcpServer]) -> McpWish:
    path, name = f"{path}.mcp_server_name", tool.mcp_server_name
    if name is None or name not in servers:
        raise unexpected(path, name, "the name of one of mcp_servers")
    configs = tool.configs or {}
    is_listed = tool.default_config is not None and tool.default_config.enabled is False
    on = [key for key, config in configs.items() if config.enabled or config.enabled is None]
    off = [key for key, config in configs.items() if config.enabled is False]
    return McpWish(path, name, servers[name].url or "", on if is_listed else None, off)


def is_offered(tool: AnthropicTool) -> bool:
    """Return whether the model sees a tool: the client runs it."""
    return tool.type in (None, "custom") or find_known(tool.type or "") is not None


def _to_tool(path: str, tool: AnthropicTool) -> dict[str, Any]:
    if tool.name is None:
        raise InvalidField(f"{path}.name", "is missing")
    if not _NAME.fullmatch(tool.name):
        raise unexpected(f"{path}.name", tool.name, "1 to 128 letters, digits, - or _")
    description, schema = tool.description, tool.input_schema
    if known := find_known(tool.type or ""):
        description, schema = known
    if schema is None:
        raise InvalidField(f"{path}.input_schema", "is missing")
    check_free(f"{path}.input_schema", schema)
    function = {
        "name": tool.name,
        "description": description,
        "parameters": schema,
        "strict": tool.strict,
    }
    present = {name: value for name, value in function.items() if value is not None}
    return {"type": "function", "function": present}


def _choice(body: CountRequest, names: Collection[str]) -> ToolChoice:
    choice = body.tool_choice
    if choice is None:
        return ToolChoice(mode="auto" if names else "none")
    if choice.type not in _MODES:
        raise unexpected("tool_choice.type", choice.type, ", ".join(_MODES))
    mode = _MODES[choice.type]
    if mode == "required" and not names:
        raise unexpected("tool_choice.type", choice.type, "tools with it")
    if choice.type == "tool" and choice.name not in names:
        raise unexpected("tool_choice.name", choice.name, f"one of the tools: {', '.join(names)}")
    name = choice.name if choice.type == "tool" else None
    return ToolChoice(mode=mode, name=name, parallel=not choice.disable_parallel_tool_use)
