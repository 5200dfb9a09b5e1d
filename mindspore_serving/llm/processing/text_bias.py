"""Biases of texts as biases of their tokens."""

import math
from dataclasses import replace

from mindspore_serving.core.sampling_params import SamplingParams
from mindspore_serving.errors import InvalidField
from mindspore_serving.llm.tokenization.tokenizer import Tokenizer


def with_text_bias(params: SamplingParams, tokenizer: Tokenizer | None) -> SamplingParams:
    """Return `params` whose `logit_bias` has the tokens of `text_bias`.

    Biases of a token by several texts are added.  Raises InvalidField.
    """
    if not params.text_bias:
        return params
    if tokenizer is None:
        raise InvalidField("text_bias", "needs a tokenizer, but the model has no tokenizer.json")
    biases = dict(params.logit_bias)
    for text, bias in params.text_bias.items():
        if isinstance(bias, bool) or not isinstance(bias, int | float) or not math.isfinite(bias):
            raise InvalidField("text_bias", f"of {text!r} is {bias!r}, expected a finite number")
        for token_id in set(tokenizer.encode(text, add_special=False)):
            biases[token_id] = biases.get(token_id, 0.0) + bias
    return replace(params, logit_bias=biases, text_bias={})
