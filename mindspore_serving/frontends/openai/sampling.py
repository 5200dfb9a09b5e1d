"""The fields that say how to choose tokens and what the answer must look like, as the messages of
`core` that a model takes.
"""

import re
from typing import Any

import msgspec

from mindspore_serving.core.generation import SamplingParams
from mindspore_serving.core.llm_messages import Grammar
from mindspore_serving.core.model_card import ModelCard
from mindspore_serving.frontends.openai.decoding import check_free, show
from mindspore_serving.frontends.openai.errors import WrongField
from mindspore_serving.frontends.openai.requests import (
    MAX_STOPS,
    Common,
    JsonSchema,
    ResponseFormat,
    StructuredOutputs,
)

MAX_TEMPERATURE = 2.0
MAX_BIAS = 100.0
_SCHEMA_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")

# Fields that mean the same on both sides, and where null means "not given".
_SAME = (
    "temperature",
    "top_p",
    "min_p",
    "typical_p",
    "n",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "logit_bias",
    "min_tokens",
    "ignore_eos",
    "stop_token_ids",
    "bad_words",
    "skip_special_tokens",
)


def to_params(
    asked: Common, card: ModelCard, *, max_tokens: int | None, **others: Any
) -> SamplingParams:
    """The sampling parameters: what is not asked for is as the model's authors recommend; `others`
    are further fields of SamplingParams.  Raises WrongField, or InvalidInputs with a text that
    begins with the parameter."""
    same = {name: getattr(asked, name) for name in _SAME}
    fields = {name: value for name, value in same.items() if value is not None}
    if asked.temperature is not None and not 0 <= asked.temperature <= MAX_TEMPERATURE:
        raise _out_of_range(
            "temperature", asked.temperature, f"a number from 0 to {MAX_TEMPERATURE:g}"
        )
    if asked.top_k is not None:
        fields["top_k"] = 0 if asked.top_k == -1 else asked.top_k
    if asked.seed is not None:
        fields["seed"] = asked.seed % 2**64  # OpenAI's are signed
    if asked.include_stop_str_in_output:
        fields["include_stop"] = True
    _check_ids(asked, card)
    return SamplingParams(
        max_tokens=max_tokens,
        stop=to_stops(asked.stop),
        **{**dict(card.sampling), **fields, **others},
    )


def to_stops(stop: str | list[str] | None) -> tuple[str, ...]:
    """Raises WrongField if there are too many."""
    stops = (stop,) if isinstance(stop, str) else tuple(stop or ())
    if len(stops) > MAX_STOPS:
        raise WrongField("stop", f"stop has {len(stops)} texts, expected at most {MAX_STOPS}")
    return stops


def to_truncate(asked: Common) -> int | None:
    """How many tokens to keep at the end of the prompt.  Raises WrongField."""
    count = asked.truncate_prompt_tokens
    if count is not None and count < 1:
        raise _out_of_range("truncate_prompt_tokens", count, "at least 1")
    return count


def _check_ids(asked: Common, card: ModelCard) -> None:
    for token_id, bias in (asked.logit_bias or {}).items():
        check_token("logit_bias", token_id, card)
        if not -MAX_BIAS <= bias <= MAX_BIAS:
            raise _out_of_range(f"logit_bias[{token_id}]", bias, "a number from -100 to 100")
    for token_id in asked.stop_token_ids or ():
        check_token("stop_token_ids", token_id, card)


def check_token(param: str, token_id: int, card: ModelCard) -> None:
    """Raises WrongField if the model has no such token."""
    if not 0 <= token_id < card.vocab_size:
        raise WrongField(
            param,
            f"{param} has token id {token_id}, expected 0 to {card.vocab_size - 1}, "
            "which is what the model has",
        )


def _out_of_range(name: str, given: object, accepted: str) -> WrongField:
    return WrongField(name, f"{name} is {show(given)}, expected {accepted}")


# --- what the answer must look like -----------------------------------------------------------


def to_grammar(asked: Common) -> Grammar | None:
    """Of `response_format` and `structured_outputs`.  Raises WrongField."""
    wanted = asked.response_format
    by_format = _of_format(wanted) if wanted is not None else None
    structured = asked.structured_outputs
    by_structure = _of_structure(structured) if structured is not None else None
    if by_format is not None and by_structure is not None:
        raise WrongField(
            "structured_outputs",
            "response_format and structured_outputs both say what the answer looks like: give one",
        )
    return by_format or by_structure


def grammar_param(asked: Common) -> str:
    """The field `to_grammar` reads."""
    return "response_format" if asked.structured_outputs is None else "structured_outputs"


def _of_format(wanted: ResponseFormat) -> Grammar | None:
    if wanted.type == "text":
        return None
    if wanted.type == "json_object":
        return Grammar("json_object")
    if wanted.type != "json_schema":
        raise _out_of_range("response_format.type", wanted.type, "text, json_object or json_schema")
    if wanted.json_schema is None:
        name = "response_format.json_schema"
        raise WrongField(name, f"{name} is missing, expected an object with name and schema")
    return of_schema("response_format.json_schema", wanted.json_schema)


def of_schema(place: str, wanted: JsonSchema) -> Grammar:
    """The grammar of the schema at `place` of a request; it holds whether or not it is strict."""
    if not _SCHEMA_NAME.fullmatch(wanted.name):
        accepted = "1 to 64 letters, digits, - or _"
        raise _out_of_range(f"{place}.name", wanted.name, accepted)
    if wanted.schema is None:
        return Grammar("json_object")
    check_free(f"{place}.schema", wanted.schema)
    return Grammar("json_schema", msgspec.json.encode(wanted.schema).decode())


def _of_structure(wanted: StructuredOutputs) -> Grammar:
    given = {
        name: value
        for name in ("json", "regex", "choice", "grammar")
        if (value := getattr(wanted, name)) is not None
    }
    if len(given) != 1:
        raise WrongField(
            "structured_outputs",
            f"structured_outputs has {', '.join(given) or 'none'}, expected just one of json, "
            "regex, choice and grammar",
        )
    ((name, value),) = given.items()
    if name == "choice":
        return _of_choices(value)
    if name != "json":
        return Grammar("regex" if name == "regex" else "lark", value)
    if isinstance(value, str):
        return Grammar("json_schema", value)
    check_free("structured_outputs.json", value)
    return Grammar("json_schema", msgspec.json.encode(value).decode())


def _of_choices(choices: list[str]) -> Grammar:
    if not choices or not all(choices):
        raise _out_of_range("structured_outputs.choice", choices, "texts that are not empty")
    words = " | ".join(msgspec.json.encode(choice).decode() for choice in choices)
    return Grammar("lark", f"start: {words}")
