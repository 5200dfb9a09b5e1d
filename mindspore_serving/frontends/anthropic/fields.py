"""The fields of Anthropic's requests: which are refused, translated and ignored."""

from typing import Any

import msgspec

from mindspore_serving.core.json_schema import closed
from mindspore_serving.core.llm_messages import Grammar
from mindspore_serving.core.model_card import ModelCard
from mindspore_serving.errors import InvalidField
from mindspore_serving.frontends.chat.fields import FieldRefusal, Fields, translation, unexpected
from mindspore_serving.frontends.decoding import check_free

_SCHEMA = "output_config.format"


@translation("thinking", "output_config", "messages", to="template_options")
def template_options(body: Any, card: ModelCard) -> dict[str, Any]:
    """variables of the chat template: `thinking.type` "enabled" and "disabled" set
    `enable_thinking` and `thinking`, `output_config.effort` sets `reasoning_effort`; "adaptive" is
    the template's default, "enabled" is refused if the model does not reason; `messages` that end
    with the assistant's are gone on with, without thinking
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
        raise InvalidField("messages", "ends with the assistant's, expected no thinking with it")
    if is_continued:
        options, kind = {"continue_final_message": True}, "disabled"
    if kind != "adaptive":
        options |= dict.fromkeys(("enable_thinking", "thinking"), kind == "enabled")
    if body.output_config and body.output_config.effort is not None:
        options["reasoning_effort"] = body.output_config.effort
    return options


@translation("output_config", to="grammar")
def grammar(body: Any, _: ModelCard) -> Grammar | None:
    """`output_config.format`, a JSON schema: the model can write nothing else"""
    wanted = body.output_config.format if body.output_config else None
    if wanted is None:
        return None
    if wanted.type != "json_schema":
        raise unexpected(f"{_SCHEMA}.type", wanted.type, "json_schema")
    if wanted.schema is None:
        raise InvalidField(f"{_SCHEMA}.schema", "is missing")
    check_free(f"{_SCHEMA}.schema", wanted.schema)
    return Grammar("json_schema", msgspec.json.encode(closed(wanted.schema)).decode())


MESSAGES = Fields(
    "anthropic",
    refused=(
        FieldRefusal(
            "temperature", "is {}, expected a number from 0 to 1", lambda value: not 0 <= value <= 1
        ),
        FieldRefusal("mcp_servers", "is not supported: call them yourself, and give tools"),
        FieldRefusal("container", "is not supported: there are no tools of the server"),
    ),
    translated=(template_options, grammar),
    ignored=(
        "diagnostics",
        "inference_geo",
        "metadata",
        "service_tier",
        "speed",
        "user_profile_id",
    ),
)
