"""What the routes of Anthropic's protocol answer."""

from typing import Any

import msgspec


class Problem(msgspec.Struct):
    type: str
    message: str


class Error(msgspec.Struct):
    type: str
    error: Problem
    request_id: str | None


class Message(msgspec.Struct):
    id: str
    type: str
    role: str
    model: str
    content: list[dict[str, Any]]
    stop_reason: str | None
    stop_sequence: str | None
    usage: dict[str, Any]


class Count(msgspec.Struct):
    input_tokens: int
