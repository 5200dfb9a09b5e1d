"""Bodies of the answers of Anthropic's protocol."""

from typing import Any

import msgspec


class AnthropicProblem(msgspec.Struct):
    """Type and text of an error."""

    type: str
    message: str


class AnthropicError(msgspec.Struct, kw_only=True):
    """Body of an error."""

    type: str = "error"
    error: AnthropicProblem
    request_id: str | None


class AnthropicAnswer(msgspec.Struct, kw_only=True):
    """Answer of /v1/messages."""

    id: str
    type: str = "message"
    role: str = "assistant"
    model: str
    content: list[dict[str, Any]]
    stop_reason: str | None
    stop_sequence: str | None
    usage: dict[str, Any]


class Count(msgspec.Struct):
    """Answer of /v1/messages/count_tokens."""

    input_tokens: int
