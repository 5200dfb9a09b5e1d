"""Bodies of Anthropic's requests; fields that no model reads are left out."""

from typing import Any

import msgspec

from mindspore_serving.frontends.anthropic.fields import MESSAGES
from mindspore_serving.frontends.chat.fields import Int

Object = dict[str, Any]


class AnthropicSource(msgspec.Struct):
    """Source of an image or a document: base64 in `data`, a `url`, a text or blocks."""

    type: str
    media_type: str | None = None
    data: str | None = None
    url: str | None = None
    content: "str | list[Block] | None" = None
    file_id: str | None = None


class Block(msgspec.Struct):
    """Content block of any type; the fields that it needs depend on `type`."""

    type: str
    text: str | None = None
    thinking: str | None = None
    signature: str | None = None
    id: str | None = None
    name: str | None = None
    server_name: str | None = None
    input: Object | None = None
    tool_use_id: str | None = None
    content: "str | list[Block] | Block | None" = None
    is_error: bool | None = None
    source: AnthropicSource | None = None
    title: str | None = None
    context: str | None = None
    cache_control: Any = None


class AnthropicMessage(msgspec.Struct):
    """A message."""

    role: str
    content: str | list[Block]


class AnthropicTool(msgspec.Struct):
    """A tool."""

    name: str | None = None
    type: str | None = None
    description: str | None = None
    input_schema: Object | None = None
    strict: bool | None = None
    cache_control: Any = None
    mcp_server_name: str | None = None
    default_config: "ToolsetConfig | None" = None
    configs: "dict[str, ToolsetConfig] | None" = None


class ToolsetConfig(msgspec.Struct):
    """Options of a tool of an MCP server, or of all of them."""

    enabled: bool | None = None


class AnthropicMcpServer(msgspec.Struct):
    """An MCP server that toolsets name."""

    name: str
    type: str = "url"
    url: str | None = None
    authorization_token: str | None = None


class AnthropicToolChoice(msgspec.Struct):
    """Choice of a tool."""

    type: str
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class AnthropicThinking(msgspec.Struct):
    """Options of the thinking."""

    type: str
    budget_tokens: Int | None = None
    display: str | None = None


class OutputFormat(msgspec.Struct):
    """Format of the answer."""

    type: str
    schema: Object | None = None


class OutputConfig(msgspec.Struct):
    """Effort and format of the answer."""

    effort: str | None = None
    format: OutputFormat | None = None


class CountRequest(msgspec.Struct, kw_only=True):
    """Body of /v1/messages/count_tokens: everything that the model reads."""

    messages: list[AnthropicMessage]
    model: str | None = None
    system: str | list[Block] | None = None
    tools: list[AnthropicTool] | None = None
    tool_choice: AnthropicToolChoice | None = None
    thinking: AnthropicThinking | None = None
    output_config: OutputConfig | None = None
    cache_control: Any = None
    context_management: Any = None
    mcp_servers: list[AnthropicMcpServer] | None = None


@MESSAGES.extend
class MessagesRequest(CountRequest, kw_only=True):
    """Body of /v1/messages; `Fields.extend` adds sampling parameters."""

    max_tokens: Int
    stream: bool | None = None
