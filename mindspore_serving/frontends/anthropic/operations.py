"""What the routes of Anthropic's protocol take and answer."""

from typing import Any

import msgspec

from mindspore_serving.frontends.anthropic.answering import PATH
from mindspore_serving.frontends.anthropic.fields import MESSAGES
from mindspore_serving.frontends.anthropic.requests import CountRequest, MessagesRequest
from mindspore_serving.frontends.operation import EVENT, EVENTS, JSON, Body, Operation, Section

ABOUT = "Anthropic's protocol, for language models."


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


def section(model: str) -> Section:
    """With examples for `model`."""
    count = {"model": model, "messages": [{"role": "user", "content": "Hello"}]}
    operations = (
        Operation(
            "POST",
            PATH,
            "Answer a conversation; with `stream`, as events",
            {JSON: Message, EVENTS: EVENT},
            Body(MessagesRequest, {MessagesRequest: MESSAGES}, {**count, "max_tokens": 8}),
        ),
        Operation(
            "POST",
            f"{PATH}/count_tokens",
            "How many tokens a conversation has",
            {JSON: Count},
            Body(CountRequest, {CountRequest: MESSAGES}, count),
        ),
    )
    return Section("Anthropic", ABOUT, {JSON: Error}, operations)
