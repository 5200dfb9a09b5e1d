"""Bodies of /v1/responses and /v1/responses/compact, and the input items."""

from typing import Any

import msgspec

from mindspore_serving.frontends.chat.fields import Int
from mindspore_serving.frontends.chat.messages import ContentPart

Object = dict[str, Any]

LOGPROBS = "message.output_text.logprobs"  # the only value of `include` that has an effect


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
    """A function, with the fields that a chat puts into an object `function` beside `type`."""

    type: str
    name: str | None = None
    description: str | None = None
    parameters: Object | None = None
    strict: bool | None = None


class ResponseToolChoice(msgspec.Struct, omit_defaults=True):
    """Choice of a function or of several."""

    type: str
    name: str | None = None
    mode: str | None = None
    tools: list[Object] | None = None


class ItemType(msgspec.Struct):
    """The field that every input item may have."""

    type: str | None = None


class MessageItem(msgspec.Struct):
    """A message."""

    role: str
    content: str | list[ContentPart]


class CallItem(msgspec.Struct):
    """A function call of the model."""

    call_id: str
    name: str
    arguments: str


class OutputItem(msgspec.Struct):
    """The output of a called function."""

    call_id: str
    output: str | list[ContentPart]


class ReasoningItem(msgspec.Struct):
    """Reasoning of the model."""

    content: list[ContentPart] | None = None
    summary: list[ContentPart] | None = None


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
    conversation: Any = None
    prompt: Any = None
    background: bool | None = None
