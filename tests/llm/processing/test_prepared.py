"""Which requests are prepared at once, and how what a child prepares travels."""

import pytest

from mindspore_serving.core.llm_messages import (
    Detokenize,
    Generate,
    Grammar,
    Refused,
    RequestRefused,
    Tokenize,
)
from mindspore_serving.core.reading_messages import Embed
from mindspore_serving.core.sampling_params import SamplingParams
from mindspore_serving.errors import Overloaded
from mindspore_serving.llm.processing.answer_format import AnswerFormat
from mindspore_serving.llm.processing.prepared import (
    SMALL,
    SMALL_BAD_WORDS,
    PreparedPrompt,
    PreparedTexts,
    decode_job,
    decode_result,
    encode_job,
    encode_result,
    is_small,
    to_failed,
)

LONG = "x" * SMALL


def said(content):
    return {"messages": [{"role": "user", "content": content}]}


@pytest.mark.parametrize(
    "request_",
    [
        Generate(prompt="Hello"),
        Generate(prompt=[1] * 1_000_000),
        Generate(**said("Hello"), tools=[{"type": "function", "function": {"name": "look"}}]),
        Generate(prompt="a", params=SamplingParams(bad_words=["x" * 10] * 50)),
        Tokenize(prompt="Hello"),
        Detokenize(token_ids=[1] * 1000),
        Embed(prompts=["Hello"] * 100),
        Embed(prompts=[[1] * 100_000]),
    ],
)
def test_short_texts_and_token_ids_are_small(request_):
    assert is_small(request_)


@pytest.mark.parametrize(
    "request_",
    [
        Generate(prompt=LONG),
        Generate(**said(LONG)),
        Generate(messages=[{"role": "user", "content": ""}] * SMALL),
        Generate(**said("a"), tools=[{"function": {"parameters": {LONG: {}}}}]),
        Generate(**said("a"), template_options={"list": [0] * SMALL}),
        Generate(prompt="a", params=SamplingParams(bad_words=["x" * SMALL_BAD_WORDS])),
        Tokenize(prompt=LONG),
        Detokenize(token_ids=[1] * (SMALL + 1)),
        Embed(prompts=[LONG]),
    ],
)
def test_long_texts_and_many_values_are_not_small(request_):
    assert not is_small(request_)


def test_requests_and_prepared_prompts_survive_encoding():
    request = Generate(**said("Hello"), grammar=Grammar("regex", "a+"), priority=3)
    assert decode_job(encode_job(request, "an id é")) == (request, "an id é")
    assert decode_job(encode_job(Tokenize(prompt="a"))) == (Tokenize(prompt="a"), "")
    params = SamplingParams(logit_bias={5: 1.5}, stop=["a"])
    answer_format = AnswerFormat([{"function": {"name": "look"}}], Grammar("lark", "x"), "hermes")
    prompt = PreparedPrompt("text", [1, 2], params, answer_format, [[3]])
    read = decode_result(encode_result(prompt))
    assert (read.text, read.ids, read.bad_words_ids) == ("text", [1, 2], [[3]])
    assert read.answer_format == answer_format
    assert (read.params.logit_bias, list(read.params.stop)) == ({5: 1.5}, ["a"])
    assert decode_result(encode_result(PreparedTexts([[1], [2]]))).ids == [[1], [2]]


def test_errors_are_raised_where_the_work_is_read():
    refused = Refused("context", "too long", 9, 8)
    with pytest.raises(RequestRefused, match="too long") as caught:
        decode_result(encode_result(to_failed(RequestRefused(refused))))
    assert caught.value.refused == refused
    with pytest.raises((Overloaded, RequestRefused), match="full"):
        decode_result(encode_result(to_failed(Overloaded("full"))))
