"""The bodies that clients send.  What every client may send and no model reads is not here."""

from typing import Any

import msgspec

from mindspore_serving.frontends.anthropic.fields import MESSAGES
from mindspore_serving.frontends.chat.fields import Int

Object = dict[str, Any]


class AnthropicSource(msgspec.Struct):
    """Of an image: base64 in `data`, or a `url`."""

    type: str
    media_type: str | None = None
    data: str | None = None
    url: str | None = None


class Block(msgspec.Struct):
    """A block of content, of any type: what is needed depends on `type`."""

    type: str
    text: str | None = None
    thinking: str | None = None
    id: str | None = None
    name: str | None = None
    input: Object | None = None
    tool_use_id: str | None = None
    content: "str | list[Block] | None" = None
    is_error: bool | None = None
    source: AnthropicSource | None = None
    cache_control: Any = None


class AnthropicMessage(msgspec.Struct):
    role: str
    content: str | list[Block]


class AnthropicTool(msgspec.Struct):
    name: str
    type: str | None = None
    description: str | None = None
    input_schema: Object | None = None
    strict: bool | None = None
    cache_control: Any = None


class AnthropicToolChoice(msgspec.Struct):
    type: str
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class AnthropicThinking(msgspec.Struct):
    type: str
    budget_tokens: Int | None = None
    display: str | None = None


class OutputFormat(msgspec.Struct):
    type: str
    schema: Object | None = None


class OutputConfig(msgspec.Struct):
    effort: str | None = None
    format: OutputFormat | None = None


class CountRequest(msgspec.Struct, kw_only=True):
    """The body of /v1/messages/count_tokens: all that the model reads."""

    messages: list[AnthropicMessage]
    model: str | None = None
    system: str | list[Block] | None = None
    tools: list[AnthropicTool] | None = None
    tool_choice: AnthropicToolChoice | None = None
    thinking: AnthropicThinking | None = None
    output_config: OutputConfig | None = None
    cache_control: Any = None
    context_management: Any = None


@MESSAGES.extend
class MessagesRequest(CountRequest, kw_only=True):
    """The body of /v1/messages; sampling parameters are added from their table."""

    max_tokens: Int
    stream: bool | None = None
