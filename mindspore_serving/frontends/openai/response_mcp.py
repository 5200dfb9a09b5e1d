"""Tools of MCP servers in /v1/responses: tools of type "mcp", and the items of their calls."""

from collections.abc import Sequence
from typing import Any

import msgspec

from mindspore_serving.errors import InvalidField
from mindspore_serving.frontends.chat.fields import unexpected
from mindspore_serving.frontends.chat.mcp_tools import McpOffer, McpWish
from mindspore_serving.frontends.chat.messages import CalledFunction, ChatMessage, ToolCall
from mindspore_serving.frontends.openai.response_decoding import read
from mindspore_serving.frontends.openai.response_requests import (
    ItemType,
    McpCallItem,
    McpFilter,
    McpToolset,
)
from mindspore_serving.frontends.openai.response_tools import MCP, MCP_TYPE, CalledTool
from mindspore_serving.mcp.names import tool_name

LIST = "mcp_list_tools"  # an item that the model does not see: it sees the tools themselves
_OF_OPERATOR = ("connector_id", "authorization", "headers")


def read_wishes(tools: Sequence[msgspec.Raw] | None) -> list[McpWish]:
    """Return the MCP servers that the tools of a request name.

    Raises InvalidField.
    """
    wishes = []
    for index, raw in enumerate(tools or ()):
        path = f"tools[{index}]"
        if read(path, bytes(raw), ItemType).type == MCP_TYPE:
            wishes.append(_to_wish(path, read(path, bytes(raw), McpToolset)))
    return wishes


def _to_wish(path: str, tool: McpToolset) -> McpWish:
    for name in _OF_OPERATOR:
        if getattr(tool, name) is not None:
            problem = "is not supported: the operator lists servers with their secrets"
            raise InvalidField(f"{path}.{name}", problem)
    if tool.require_approval != "never":
        problem = '"never": the server asks for no approval'
        raise unexpected(f"{path}.require_approval", tool.require_approval, problem)
    allowed = tool.allowed_tools
    if isinstance(allowed, McpFilter):
        if allowed.read_only is not None:
            raise InvalidField(f"{path}.allowed_tools.read_only", "is not supported: name tools")
        allowed = allowed.tool_names
    return McpWish(f"{path}.server_label", tool.server_label, tool.server_url or "", allowed)


def called_tools(offered: McpOffer | None) -> dict[str, CalledTool]:
    """Return the tools by the names of their functions in the prompt."""
    tools = offered.tools.values() if offered is not None else ()
    return {tool.function: CalledTool(MCP, tool.name, tool.server) for tool in tools}


def to_error(text: str) -> dict[str, Any]:
    """Return the field of an item with the error of a call."""
    content = [{"type": "text", "text": text}]
    return {"error": {"type": "mcp_tool_execution_error", "content": content}}


def add_mcp_call(message: ChatMessage, path: str, raw: bytes) -> ChatMessage:
    """Add a past call to the assistant's message; return the message with its result."""
    item = read(path, raw, McpCallItem)
    called = CalledFunction(tool_name(item.server_label, item.name), item.arguments)
    message.tool_calls = [*(message.tool_calls or ()), ToolCall(called, item.id, "function")]
    text = item.output
    if text is None:
        text = f"Error: {_to_text(item.error)}"
    return ChatMessage(role="tool", content=text, tool_call_id=item.id)


def _to_text(error: Any) -> str:
    """Return the text of an error, an object of the protocol or a text."""
    if isinstance(error, str):
        return error
    try:
        return str(error["content"][0]["text"])
    except (KeyError, IndexError, TypeError):
        return "the call failed"
