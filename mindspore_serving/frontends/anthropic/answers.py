"""What the routes of Anthropic's protocol answer."""

from typing import Any

import msgspec


class AnthropicProblem(msgspec.Struct):
    type: str
    message: str


class AnthropicError(msgspec.Struct, kw_only=True):
    type: str = "error"
    error: AnthropicProblem
    request_id: str | None


class AnthropicAnswer(msgspec.Struct, kw_only=True):
    id: str
    type: str = "message"
    role: str = "assistant"
    model: str
    content: list[dict[str, Any]]
    stop_reason: str | None
    stop_sequence: str | None
    usage: dict[str, Any]


class Count(msgspec.Struct):
    input_tokens: int
