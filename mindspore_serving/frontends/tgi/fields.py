"""The fields of TGI's parameters: which are refused, with TGI's texts, and which translated."""

import json
from typing import Any

from mindspore_serving.core.llm_messages import Grammar
from mindspore_serving.errors import InvalidField
from mindspore_serving.frontends.fields import Fields, Refusal, Translation

SPACES = {"whitespace_flexible": True, "whitespace_pattern": "[ ]"}  # at most one anywhere
MOST_TEMPERATURE = 100.0  # beyond it all tokens are as good as equally likely
SAMPLED_BY = ("temperature", "top_k", "top_p", "typical_p")


def is_sampled(parameters: Any) -> bool:
    given = any(getattr(parameters, name) is not None for name in SAMPLED_BY)
    return parameters.do_sample or given


def _temperature(parameters: Any, _: object) -> float:
    given = parameters.temperature
    if not is_sampled(parameters):
        return 0.0
    return 1.0 if given is None else min(given, MOST_TEMPERATURE)


def _grammar(parameters: Any, _: object) -> Grammar | None:
    return None if parameters.grammar is None else parameters.grammar.to_grammar()


def schema_grammar(schema: Any) -> Grammar:
    """The grammar of a JSON schema or its text.  Raises InvalidField for one that is no schema of
    an object's properties."""
    if isinstance(schema, str):
        try:
            schema = json.loads(schema)
        except (ValueError, RecursionError) as error:
            raise _wrong_grammar(f"is not valid: {error}") from None
    elif not isinstance(schema, dict):
        raise _wrong_grammar("is not supported")
    if not isinstance(schema, dict) or "properties" not in schema:
        raise _wrong_grammar("is not valid: Grammar must have a 'properties' field")
    return Grammar("json_schema", json.dumps({"x-guidance": SPACES} | schema))


def _wrong_grammar(problem: str) -> InvalidField:
    return InvalidField("grammar", problem)


FIELDS = Fields(
    "tgi",
    refused=(
        Refusal("temperature", "`temperature` must be strictly positive", lambda v: v <= 0),
        Refusal(
            "repetition_penalty",
            "`repetition_penalty` must be strictly positive",
            lambda v: v <= 0,
        ),
        Refusal(
            "frequency_penalty",
            "`frequency_penalty` must be >= -2.0 and <= 2.0",
            lambda v: abs(v) > 2,
        ),
        Refusal("top_p", "`top_p` must be > 0.0 and < 1.0", lambda v: not 0 < v < 1),
        Refusal("typical_p", "`typical_p` must be > 0.0 and < 1.0", lambda v: not 0 < v < 1),
        Refusal("top_k", "`top_k` must be strictly positive", lambda v: v <= 0),
        Refusal("max_new_tokens", "`max_new_tokens` must be strictly positive", lambda v: v == 0),
        Refusal("watermark", "`watermark` is not supported"),
    ),
    translated=(
        Translation(
            ("temperature", "do_sample"),
            "temperature",
            "0, the likeliest token, unless `do_sample` is true, `temperature`, `top_k`, `top_p` "
            "or `typical_p` is given, or there are no `parameters`; at most 100",
            _temperature,
        ),
        Translation(
            ("stop",), "include_stop", "the text stays in the answer", lambda body, card: True
        ),
        Translation(
            ("decoder_input_details",),
            "prompt_logprobs",
            "the tokens of the prompt come with log-probabilities",
            lambda body, card: 0 if body.decoder_input_details else None,
        ),
        Translation(
            ("truncate",),
            "truncate",
            "that many tokens at the end of the prompt are kept",
            lambda body, card: body.truncate,
        ),
        Translation(
            ("grammar",),
            "grammar",
            "JSON has at most one space anywhere; schemas are followed by llguidance",
            _grammar,
        ),
    ),
)
