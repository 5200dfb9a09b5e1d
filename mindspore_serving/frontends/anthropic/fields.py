"""Fields of Anthropic's requests: refused, translated and ignored."""

from typing import Any

import msgspec

from mindspore_serving.core.json_schema import closed
from mindspore_serving.core.llm_messages import Grammar
from mindspore_serving.core.model_card import ModelCard
from mindspore_serving.errors import InvalidField
from mindspore_serving.frontends.chat.fields import (
    FieldRefusal,
    Fields,
    at_least_zero,
    translation,
    unexpected,
)
from mindspore_serving.frontends.decoding import check_free

_SCHEMA = "output_config.format"


@translation("thinking", "output_config", "messages", to="template_options")
def template_options(body: Any, card: ModelCard) -> dict[str, Any]:
    """Set variables of the chat template from `thinking.type` and `output_config.effort`.

    "enabled" and "disabled" set `enable_thinking` and `thinking`, "adaptive" is the template's
    default, the effort sets `reasoning_effort`. "enabled" is refused if the model does not reason.
    If `messages` end with the assistant's, the model continues that message, without thinking.
    """
    options: dict[str, Any] = {}
    kind = body.thinking.type if body.thinking else "adaptive"
    if kind not in ("enabled", "disabled", "adaptive"):
        raise unexpected("thinking.type", kind, "enabled, disabled or adaptive")
    if kind == "enabled" and not card.reasoning_format:
        problem = 'is "enabled", but the model does not reason, expected disabled or adaptive'
        raise InvalidField("thinking.type", problem)
    is_continued = bool(body.messages) and body.messages[-1].role == "assistant"
    if is_continued and kind == "enabled":
        raise InvalidField(
            "messages", "ends with the assistant's, expected thinking not to be enabled"
        )
    if is_continued:
        options, kind = {"continue_final_message": True}, "disabled"
    if kind != "adaptive":
        options |= dict.fromkeys(("enable_thinking", "thinking"), kind == "enabled")
    if body.output_config and body.output_config.effort is not None:
        options["reasoning_effort"] = body.output_config.effort
    return options


@translation("thinking", to="thinking_token_budget")
def thinking_token_budget(body: Any, _: ModelCard) -> int | None:
    """Limit the thinking to `thinking.budget_tokens`."""
    is_on = body.thinking and body.thinking.type == "enabled"
    return at_least_zero("thinking.budget_tokens", body.thinking.budget_tokens if is_on else None)


@translation("output_config", to="grammar")
def grammar(body: Any, _: ModelCard) -> Grammar | None:
    """Constrain the answer to the JSON schema of `output_config.format`."""
    output_format = body.output_config.format if body.output_config else None
    if output_format is None:
        return None
    if output_format.type != "json_schema":
        raise unexpected(f"{_SCHEMA}.type", output_format.type, "json_schema")
    if output_format.schema is None:
        raise InvalidField(f"{_SCHEMA}.schema", "is missing")
    check_free(f"{_SCHEMA}.schema", output_format.schema)
    return Grammar("json_schema", msgspec.json.encode(closed(output_format.schema)).decode())


MESSAGES = Fields(
    "anthropic",
    refused=(
        FieldRefusal(
            "temperature", "is {}, expected a number from 0 to 1", lambda value: not 0 <= value <= 1
        ),
        FieldRefusal("container", "is not supported: the server runs no tools"),
    ),
    translated=(template_options, thinking_token_budget, grammar),
    ignored=(
        "diagnostics",
        "inference_geo",
        "metadata",
        "service_tier",
        "speed",
        "user_profile_id",
    ),
)
