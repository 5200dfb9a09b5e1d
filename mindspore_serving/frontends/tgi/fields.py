"""Fields of TGI's parameters: refused with TGI's texts, and translated."""

import json
from typing import Any

from mindspore_serving.core.llm_messages import Grammar
from mindspore_serving.core.model_card import ModelCard
from mindspore_serving.errors import InvalidField
from mindspore_serving.frontends.chat import languages
from mindspore_serving.frontends.chat.fields import FieldRefusal, Fields, translation

SPACES = {"whitespace_flexible": True, "whitespace_pattern": "[ ]"}  # at most one space anywhere
MAX_TEMPERATURE = 100.0  # beyond it all tokens are about equally likely
SAMPLED_BY = ("temperature", "top_k", "top_p", "typical_p")


def is_sampled(parameters: Any) -> bool:
    """Return whether the answer is sampled: `do_sample`, or a parameter of sampling is set."""
    has_parameter = any(getattr(parameters, name) is not None for name in SAMPLED_BY)
    return parameters.do_sample or has_parameter


@translation("temperature", "do_sample")
def temperature(parameters: Any, _: ModelCard) -> float:
    """Set the temperature, at most 100; 0, the likeliest token, unless the answer is sampled.

    It is sampled if `do_sample` is true, if `temperature`, `top_k`, `top_p` or `typical_p` is set,
    or if there are no `parameters`.
    """
    if not is_sampled(parameters):
        return 0.0
    value = parameters.temperature
    return 1.0 if value is None else min(value, MAX_TEMPERATURE)


@translation("stop", to="include_stop")
def include_stop(parameters: Any, _: ModelCard) -> bool:
    """Keep the stop text in the answer."""
    return True


@translation("decoder_input_details", to="prompt_logprobs")
def prompt_logprobs(parameters: Any, _: ModelCard) -> int | None:
    """Return the log-probabilities of the prompt's tokens."""
    return 0 if parameters.decoder_input_details else None


@translation("truncate")
def truncate(parameters: Any, _: ModelCard) -> int | None:
    """Keep this many tokens at the end of the prompt."""
    count: int | None = parameters.truncate
    return count


@translation("grammar")
def grammar(parameters: Any, _: ModelCard) -> Grammar | None:
    """Constrain the answer to a grammar; JSON has at most one space anywhere."""
    result: Grammar | None = parameters.grammar and parameters.grammar.to_grammar()
    return result


def schema_grammar(schema: Any) -> Grammar:
    """Return the grammar of a JSON schema, given as an object or as text.

    Raises InvalidField unless it is the schema of an object with properties.
    """
    if isinstance(schema, str):
        try:
            schema = json.loads(schema)
        except (ValueError, RecursionError) as error:
            raise InvalidField("grammar", f"is not valid: {error}") from None
    elif not isinstance(schema, dict):
        raise InvalidField("grammar", "is not supported")
    if not isinstance(schema, dict) or "properties" not in schema:
        raise InvalidField("grammar", "is not valid: Grammar must have a 'properties' field")
    return Grammar("json_schema", json.dumps({"x-guidance": SPACES} | schema))


_REFUSED = (
    FieldRefusal("temperature", "must be strictly positive", lambda value: value <= 0),
    FieldRefusal("repetition_penalty", "must be strictly positive", lambda value: value <= 0),
    FieldRefusal("frequency_penalty", "must be >= -2.0 and <= 2.0", lambda value: abs(value) > 2),
    FieldRefusal("top_p", "must be > 0.0 and < 1.0", lambda value: not 0 < value < 1),
    FieldRefusal("typical_p", "must be > 0.0 and < 1.0", lambda value: not 0 < value < 1),
    FieldRefusal("top_k", "must be strictly positive", lambda value: value <= 0),
    FieldRefusal("max_new_tokens", "must be strictly positive", lambda value: value == 0),
    FieldRefusal("watermark", "is not supported"),
)
_TRANSLATED = (temperature, include_stop, prompt_logprobs, truncate, grammar, *languages.BOTH)
FIELDS = Fields("tgi", _REFUSED, _TRANSLATED)
