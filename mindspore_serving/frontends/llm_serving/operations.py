"""What llm-serving's routes take and answer."""

from typing import Any

import msgspec

from mindspore_serving.frontends.llm_serving.fields import FIELDS
from mindspore_serving.frontends.llm_serving.requests import ClientRequest, Parameters
from mindspore_serving.frontends.operation import (
    EVENT,
    EVENTS,
    JSON,
    STRING,
    TEXT,
    Body,
    Lax,
    Operation,
    Section,
)

ABOUT = "MindSpore's llm-serving, for language models."


class Error(msgspec.Struct):
    detail: str | list[dict[str, Any]]


class Answer(msgspec.Struct):
    generated_text: str
    finish_reason: str
    generated_tokens: int
    prefill: list[dict[str, Any]]
    seed: int
    tokens: list[dict[str, Any]]
    top_tokens: list[list[dict[str, Any]]]
    details: dict[str, Any] | None


def section(model: str) -> Section:
    """With examples for `model`."""
    streams = {EVENTS: EVENT, TEXT: STRING}
    example = {"inputs": "Hello", "parameters": {"max_new_tokens": 8}}
    body = Body(ClientRequest, {Parameters: Lax(FIELDS)}, example)
    rows = (
        ("", "Continue a text; with `stream`, as events or lines", {JSON: Answer, **streams}),
        ("/generate", "Continue a text", {JSON: Answer}),
        ("/generate_stream", "Continue a text, as events or lines", streams),
    )
    gets = (
        ("get_bs", "How many sequences run, as an event"),
        ("get_request_numbers", "How many requests wait, as an event"),
        ("get_serverd_model_info", "The model and its limits, as an event"),
    )
    return Section(
        "llm-serving",
        f"{ABOUT} `name` is one of the models, such as `{model}`.",
        {JSON: Error},
        (
            *(Operation("POST", f"/models/{{name}}{row[0]}", row[1], row[2], body) for row in rows),
            *(Operation("GET", f"/serving/{name}", text, {EVENTS: EVENT}) for name, text in gets),
        ),
    )
