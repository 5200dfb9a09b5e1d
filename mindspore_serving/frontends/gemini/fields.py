"""Fields of Gemini's requests and of their generationConfig: refused, translated and ignored."""

import json
from typing import Any

import msgspec

from mindspore_serving.core.json_schema import closed
from mindspore_serving.core.llm_messages import Grammar
from mindspore_serving.core.model_card import ModelCard
from mindspore_serving.errors import InvalidField
from mindspore_serving.frontends.chat.fields import (
    FieldRefusal,
    Fields,
    translation,
    unexpected,
)
from mindspore_serving.frontends.decoding import check_free
from mindspore_serving.frontends.gemini.schemas import to_json_schema

MAX_LOGPROBS = 20
_LEVELS = ("MINIMAL", "LOW", "MEDIUM", "HIGH", "XHIGH")
_TEXT, _JSON, _ENUM = "text/plain", "application/json", "text/x.enum"
_NO_MODALITY = ("TEXT", "MODALITY_UNSPECIFIED")


@translation("topK", to="top_k")
def top_k(config: Any, _: ModelCard) -> int | None:
    """Keep this many of the likeliest tokens; 0 keeps all."""
    value: float | None = config.topK  # Google's Python library sends 40 as 40.0
    if value is not None and value != int(value):
        raise unexpected("topK", value, "an integer")
    return None if value is None else int(value)


@translation("logprobs", "responseLogprobs")
def logprobs(config: Any, _: ModelCard) -> int | None:
    """Return the log-probability of each token, and of up to 20 alternatives."""
    count = config.logprobs or 0
    if not 0 <= count <= MAX_LOGPROBS:
        raise unexpected("logprobs", count, f"0 to {MAX_LOGPROBS}")
    if count and not config.responseLogprobs:
        raise InvalidField("logprobs", "is set, expected responseLogprobs: true with it")
    return count if config.responseLogprobs else None


@translation("thinkingConfig", to="template_options")
def template_options(config: Any, card: ModelCard) -> dict[str, Any]:
    """Set variables of the chat template: `thinkingBudget` 0 turns reasoning off.

    Any other budget turns it on, if the model reasons, and `thinkingLevel` sets `reasoning_effort`.
    """
    thinking = config.thinkingConfig
    if thinking is None:
        return {}
    options: dict[str, Any] = {}
    budget, level = thinking.thinkingBudget, thinking.thinkingLevel
    if budget == 0 or (budget is not None and card.reasoning_format):
        options = dict.fromkeys(("enable_thinking", "thinking"), budget != 0)
    if level is not None and not level.upper().endswith("_UNSPECIFIED"):
        if level.upper() not in _LEVELS:
            raise unexpected("thinkingConfig.thinkingLevel", level, ", ".join(_LEVELS))
        options["reasoning_effort"] = level.lower()
    return options


@translation("thinkingConfig", to="thinking_token_budget")
def thinking_token_budget(config: Any, card: ModelCard) -> int | None:
    """Limit the reasoning to `thinkingBudget` tokens, if the model reasons; -1 is no limit."""
    budget: int | None = config.thinkingConfig and config.thinkingConfig.thinkingBudget
    if budget is not None and budget < -1:
        raise unexpected("thinkingConfig.thinkingBudget", budget, "an integer >= -1")
    return None if budget == -1 or not card.reasoning_format else budget


@translation("responseMimeType", "responseSchema", "responseJsonSchema", to="grammar")
def grammar(config: Any, _: ModelCard) -> Grammar | None:
    """Constrain the answer to JSON, to a schema of it, or to one of the texts of an enum."""
    kind, schema = config.responseMimeType, _schema(config)
    if kind not in (None, _TEXT, _JSON, _ENUM):
        raise unexpected("responseMimeType", kind, f"{_TEXT}, {_JSON} or {_ENUM}")
    if kind == _ENUM:
        return _enum(schema or {})
    if schema is None:
        return Grammar("json_object") if kind == _JSON else None
    if kind == _TEXT:
        raise unexpected("responseMimeType", kind, f"{_JSON} with a schema")
    return Grammar("json_schema", msgspec.json.encode(closed(schema)).decode())


def _schema(config: Any) -> dict[str, Any] | None:
    """Return the schema of the answer as JSON schema."""
    native, schema = config.responseSchema, config.responseJsonSchema
    if native is not None and schema is not None:
        raise InvalidField("responseSchema", "is set, expected it or responseJsonSchema, not both")
    check_free("responseSchema" if schema is None else "responseJsonSchema", native or schema)
    if schema is not None and not isinstance(schema, dict):
        raise unexpected("responseJsonSchema", schema, "a JSON schema")
    converted: dict[str, Any] | None = schema if native is None else to_json_schema(native)
    return converted


def _enum(schema: dict[str, Any]) -> Grammar:
    texts = schema.get("enum")
    if not isinstance(texts, list) or not texts or not all(isinstance(text, str) for text in texts):
        raise InvalidField("responseSchema", f"has no enum of texts, which {_ENUM} needs")
    quoted = [json.dumps(text, ensure_ascii=False) for text in texts]
    return Grammar("lark", f"start: {' | '.join(quoted)}")


GENERATION = Fields(
    "gemini",
    refused=(
        FieldRefusal(
            "responseModalities",
            'is {}, expected ["TEXT"]',
            lambda names: any(name.upper() not in _NO_MODALITY for name in names),
        ),
    ),
    translated=(top_k, logprobs, template_options, thinking_token_budget, grammar),
    ignored=(
        *("audioTimestamp", "audioTranscriptionConfig", "enableEnhancedCivicAnswers"),
        *("imageConfig", "mediaResolution", "speechConfig"),
    ),
)
CONTENT = Fields(
    "gemini",
    refused=(
        FieldRefusal(
            "cachedContent", "is not supported: send the contents, whose prefix is cached anyway"
        ),
    ),
    ignored=("labels", "safetySettings", "serviceTier", "store"),
)
EMBEDDING = Fields("gemini", ignored=("title",))
