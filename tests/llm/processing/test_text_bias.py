"""Biases of texts become biases of their tokens."""

from typing import Any

import pytest

from mindspore_serving.core.sampling_params import SamplingParams
from mindspore_serving.errors import InvalidField
from mindspore_serving.llm.processing.text_bias import with_text_bias
from tests.llm.tokenizers_trained import opened


def test_every_token_of_a_text_gets_its_bias_once() -> None:
    tokenizer = opened("byte_level")
    fox, the = (tokenizer.encode(text, add_special=False) for text in ("fox fox", "the"))
    given = SamplingParams(text_bias={"fox fox": 2.0, "the": -1.0}, logit_bias={the[0]: -3.0})
    params = with_text_bias(given, tokenizer)
    expected = dict.fromkeys(fox, 2.0) | dict.fromkeys(the, -1.0)
    assert params.logit_bias == expected | {the[0]: expected[the[0]] - 3.0}
    assert params.text_bias == {}
    plain = SamplingParams(logit_bias={1: 2.0})
    assert with_text_bias(plain, None) is plain


@pytest.mark.parametrize("bias", [float("nan"), float("inf"), True, "1"])
def test_bias_of_a_text_is_a_finite_number(bias: Any) -> None:
    with pytest.raises(InvalidField, match="text_bias of 'a' is"):
        with_text_bias(SamplingParams(text_bias={"a": bias}), opened("byte_level"))


def test_text_without_a_tokenizer_is_refused() -> None:
    with pytest.raises(InvalidField, match=r"needs a tokenizer"):
        with_text_bias(SamplingParams(text_bias={"a": 1.0}), None)
