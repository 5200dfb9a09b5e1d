"""What one request to a language model may hold."""

import pytest

from mindspore_serving.core.language_limits import LANGUAGE_LIMITS, LanguageLimits, check_json
from mindspore_serving.core.llm_messages import Generate, Grammar, Tokenize
from mindspore_serving.core.reading_messages import Embed
from mindspore_serving.core.sampling_params import SamplingParams
from mindspore_serving.errors import InvalidField

LIMITS = LanguageLimits(
    max_depth=8,
    max_messages=2,
    max_tools=2,
    max_prompts=2,
    max_grammar=64,
    max_stop_length=4,
    max_bad_words_length=4,
    max_bias=2,
    max_stop_ids=2,
)
HI = {"role": "user", "content": "Hi"}


def nested(depth):
    return [nested(depth - 1)] if depth else 1


def sampled(**params):
    return Generate(prompt="a", params=SamplingParams(**params))


@pytest.mark.parametrize(
    ("good", "bad", "text"),
    [
        (Generate(messages=[HI] * 2), Generate(messages=[HI] * 3), "messages has 3 entries"),
        (Tokenize(messages=[HI] * 2), Tokenize(messages=[HI] * 3), "messages has 3 entries"),
        (Generate(tools=[{}] * 2), Generate(tools=[{}] * 3), "tools has 3 entries"),
        (Embed(prompts=["a"] * 2), Embed(prompts=["a"] * 3), "input has 3 entries"),
        (Generate(tools=[{"a": 2**64 - 1}]), Generate(tools=[{"a": 2**64}]), "integers of 64 bits"),
        (Generate(messages=[{"a": -(2**63)}]), Generate(messages=[{"a": 10**5000}]), "40 digits"),
        (
            Generate(template_options={"a": nested(7)}),
            Generate(template_options={"a": nested(8)}),
            "template_options has over 8 levels",
        ),
        (
            Generate(grammar=Grammar("regex", "a" * 64)),
            Generate(grammar=Grammar("regex", "a" * 65)),
            "grammar has 65 characters",
        ),
        (sampled(stop=["aa", "bb"]), sampled(stop=["aa", "bbb"]), "stop has 5 characters"),
        (sampled(bad_words=["aaaa"]), sampled(bad_words=["aaaaa"]), "bad_words has 5 characters"),
        (sampled(stop_token_ids=[1, 2]), sampled(stop_token_ids=[1, 2, 3]), "stop_token_ids has 3"),
        (
            sampled(logit_bias={1: 1.0, 2: 1.0}),
            sampled(logit_bias={1: 1.0, 2: 1.0, 3: 1.0}),
            "logit_bias has 3 entries, expected at most 2",
        ),
    ],
)
def test_a_request_over_a_limit_is_refused_with_its_field(good, bad, text):
    LIMITS.check(good)
    with pytest.raises(InvalidField, match=text):
        LIMITS.check(bad)


def test_wide_json_is_no_deep_json():
    check_json("tools", {str(n): [n] for n in range(10_000)}, 2)
    with pytest.raises(InvalidField, match="over 1 levels"):
        check_json("tools", {"a": [1]}, 1)


def test_errors_of_limits_out_of_range_name_accepted_values():
    with pytest.raises(InvalidField, match=r"max_depth is 1000, expected an int of 8 to 200"):
        LanguageLimits(max_depth=1000)
    assert set(LANGUAGE_LIMITS) >= {"max_body", "max_values", "max_objects"}
