"""Fields of llama.cpp's requests: refused, translated, ignored."""

from collections.abc import Iterator
from typing import Any

import msgspec

from mindspore_serving.core.llm_messages import Grammar
from mindspore_serving.core.model_card import ModelCard
from mindspore_serving.errors import InvalidField
from mindspore_serving.frontends.chat.fields import (
    FieldRefusal,
    Fields,
    translation,
    unexpected,
)
from mindspore_serving.frontends.chat.prompts import check_tokens
from mindspore_serving.frontends.decoding import check_free

BANNED = -1e9
"""Bias of a token that is never chosen."""


@translation("n_predict", to="max_tokens")
def max_tokens(body: Any, _: ModelCard) -> int | None:
    """Limit the tokens; unset or negative, to the end of the context; 0 only reads the prompt."""
    count: int | None = body.n_predict
    return None if count is None or count < 0 else max(1, count)


@translation("seed")
def seed(body: Any, _: ModelCard) -> int | None:
    """Set the seed; a negative one is random."""
    return None if body.seed is None or body.seed < 0 else body.seed


@translation("stop")
def stop(body: Any, _: ModelCard) -> list[str] | None:
    """Stop at a text, or at any of several."""
    return [body.stop] if isinstance(body.stop, str) else body.stop


@translation("repeat_penalty", "repeat_last_n", to="repetition_penalty")
def repetition_penalty(body: Any, _: ModelCard) -> float | None:
    """Penalize all tokens so far; `repeat_last_n` turns it off with 0 and has no other effect."""
    penalty: float | None = body.repeat_penalty
    return 1.0 if body.repeat_last_n == 0 else penalty


@translation("logit_bias")
def logit_bias(body: Any, card: ModelCard) -> dict[int, float] | None:
    """Add biases, from pairs of a token id and a number, or false to ban the token."""
    biases = {name: bias for name, bias in _biases(body) if isinstance(name, int)}
    check_tokens("logit_bias", biases, card)
    return biases or None


@translation("logit_bias", "text_bias", to="text_bias")
def text_bias(body: Any, _: ModelCard) -> dict[str, float] | None:
    """Add biases to all tokens of a text, also from pairs that have it for the token id."""
    biases = {name: bias for name, bias in _biases(body) if isinstance(name, str)}
    return biases | (body.text_bias or {}) or None


def _biases(body: Any) -> Iterator[tuple[int | str, float]]:
    """Iterate over tokens or texts and their biases; a number in an object's key is a token."""
    pairs = body.logit_bias or ()
    if isinstance(pairs, dict):
        pairs = ((int(name) if name.isdecimal() else name, bias) for name, bias in pairs.items())
    for name, bias in pairs:
        if bias is not True:
            yield name, BANNED if bias is False else float(bias)


@translation("grammar", "json_schema", to="grammar")
def grammar(body: Any, _: ModelCard) -> Grammar | None:
    """Constrain the answer to a grammar (GBNF) or to a JSON schema; only one may be set."""
    if body.grammar and body.json_schema is not None:
        raise InvalidField("json_schema", "is set, expected none beside grammar")
    if body.grammar:
        return Grammar("gbnf", body.grammar)
    if body.json_schema is None:
        return None
    if not isinstance(body.json_schema, dict):
        raise unexpected("json_schema", body.json_schema, "an object")
    check_free("json_schema", body.json_schema)
    return Grammar("json_schema", msgspec.json.encode(body.json_schema).decode())


@translation("input_prefix", "prompt", to="prompt")
def prefix(body: Any, _: ModelCard) -> str:
    """Write the text behind `input_prefix` and `prompt`."""
    return str(body.input_prefix + (body.prompt or ""))


@translation("input_suffix", to="suffix")
def suffix(body: Any, _: ModelCard) -> str:
    """End the text before this one, which may be empty."""
    return str(body.input_suffix)


@translation("input_extra", to="files")
def files(body: Any, _: ModelCard) -> list[tuple[str, str]]:
    """Read other files first; those at the beginning are left out if not all fit."""
    return [(file.filename, file.text) for file in body.input_extra or ()]


_REFUSED = (
    FieldRefusal("n_probs", "is not supported: use logprobs of /v1/completions"),
    FieldRefusal("n_cmpl", "is {}, expected 1: send several requests", lambda n: n != 1),
    FieldRefusal("dynatemp_range", "is {}, expected 0: use temperature"),
    FieldRefusal("lora", "is not supported: name the adapter as model"),
)
_TRANSLATED = (max_tokens, seed, stop, repetition_penalty, logit_bias, text_bias, grammar)
_IGNORED = (
    *("cache_prompt", "dynatemp_exponent", "id_slot", "min_keep"),
    *("n_cache_reuse", "n_discard", "n_indent", "n_keep", "post_sampling_probs"),
    *("return_progress", "samplers", "t_max_predict_ms", "t_max_prompt_ms", "timings_per_token"),
)

PROMPT = Fields("llamacpp", _REFUSED, _TRANSLATED, _IGNORED)
INFILL = Fields("llamacpp", _REFUSED, (*_TRANSLATED, prefix, suffix, files), _IGNORED)
