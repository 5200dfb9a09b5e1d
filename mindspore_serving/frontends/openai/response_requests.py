"""Bodies of /v1/responses and /v1/responses/compact, and the input items."""

from typing import Any

import msgspec

from mindspore_serving.frontends.chat.custom_tools import CustomFormat
from mindspore_serving.frontends.chat.fields import Int
from mindspore_serving.frontends.chat.messages import ContentPart

Object = dict[str, Any]

LOGPROBS = "message.output_text.logprobs"  # values of `include` that have an effect
ENCODED_REASONING = "reasoning.encrypted_content"


class Format(msgspec.Struct, omit_defaults=True):
    """Format of the answer's text."""

    type: str
    name: str | None = None
    description: str | None = None
    schema: Object | None = None
    strict: bool | None = None


class Text(msgspec.Struct):
    """Options of the answer's text."""

    format: Format | None = None


class ResponseReasoning(msgspec.Struct):
    """Options of the reasoning."""

    effort: str | None = None
    summary: str | None = None
    max_tokens: Int | None = None


class ResponseTool(msgspec.Struct):
    """A tool of any type: a function has its fields beside `type`, a namespace has `tools`."""

    type: str
    name: str | None = None
    description: str | None = None
    parameters: Object | None = None
    strict: bool | None = None
    format: CustomFormat | None = None
    tools: list[msgspec.Raw] | None = None


class McpToolset(msgspec.Struct):
    """A tool of type "mcp": a server, and which of its tools are offered."""

    server_label: str
    server_url: str | None = None
    connector_id: str | None = None
    allowed_tools: "list[str] | McpFilter | None" = None
    require_approval: Any = None
    authorization: Any = None
    headers: Any = None


class McpFilter(msgspec.Struct):
    """Names of the tools that are offered."""

    tool_names: list[str] | None = None
    read_only: bool | None = None


class ResponseToolChoice(msgspec.Struct, omit_defaults=True):
    """Choice of a function or of several."""

    type: str
    name: str | None = None
    mode: str | None = None
    tools: list[Object] | None = None
    server_label: str | None = None


class ItemType(msgspec.Struct):
    """The fields that every input item may have."""

    type: str | None = None
    id: Any = None


class MessageItem(msgspec.Struct):
    """A message."""

    role: str
    content: str | list[ContentPart]


class CallItem(msgspec.Struct):
    """A function call of the model."""

    call_id: str
    name: str
    arguments: str
    namespace: str | None = None


class CustomCallItem(msgspec.Struct):
    """A call of a custom tool."""

    call_id: str
    name: str
    input: str
    namespace: str | None = None


class McpCallItem(msgspec.Struct):
    """A call of an MCP server's tool, and its result."""

    id: str
    server_label: str
    name: str
    arguments: str
    output: str | None = None
    error: Any = None


class BuiltInCallItem(msgspec.Struct):
    """A call of a shell or of apply_patch; the type says which of the two objects it has."""

    call_id: str | None = None
    id: str | None = None
    action: Object | None = None
    operation: Object | None = None


class OutputItem(msgspec.Struct):
    """The output of a called function or custom tool."""

    call_id: str
    output: str | list[ContentPart]


class BuiltInOutputItem(msgspec.Struct):
    """The output of a shell (one object for each command) or of apply_patch."""

    call_id: str | None = None
    id: str | None = None
    output: str | list[Object] | None = None
    status: str | None = None


class ItemReference(msgspec.Struct):
    """The id of an item of a response."""

    id: str


class ReasoningItem(msgspec.Struct):
    """Reasoning of the model."""

    content: list[ContentPart] | None = None
    summary: list[ContentPart] | None = None
    encrypted_content: str | None = None


class CompactionItem(msgspec.Struct):
    """A summary made by /v1/responses/compact."""

    encrypted_content: str


class CompactRequest(msgspec.Struct, kw_only=True):
    """Body of /v1/responses/compact."""

    input: str | list[msgspec.Raw] | None = None
    model: str | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    service_tier: str | None = None


class ConversationName(msgspec.Struct):
    """The conversation that a response belongs to."""

    id: str


class ResponseRequest(msgspec.Struct, kw_only=True):
    """Body of /v1/responses; other fields are accepted and ignored."""

    input: str | list[msgspec.Raw]
    model: str | None = None
    instructions: str | None = None
    stream: bool | None = None
    max_output_tokens: Int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_logprobs: Int | None = None
    include: list[str] | None = None
    text: Text | None = None
    reasoning: ResponseReasoning | None = None
    tools: list[msgspec.Raw] | None = None
    tool_choice: str | ResponseToolChoice | None = None
    parallel_tool_calls: bool | None = None
    truncation: str | None = None
    metadata: dict[str, str] | None = None
    user: str | None = None
    store: bool | None = None
    previous_response_id: str | None = None
    conversation: str | ConversationName | None = None
    prompt: Any = None
    background: bool | None = None


def name_of(body: ResponseRequest) -> str | None:
    """Return the conversation of a response, if it has one."""
    name = body.conversation
    return name.id if isinstance(name, ConversationName) else name
