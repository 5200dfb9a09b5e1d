"""Limits of reasoning by request and by operator, in the tokens of a model."""

import pytest
from msgspec.structs import replace

from mindspore_serving.core.llm_messages import Generate
from mindspore_serving.core.model_card import ModelCard
from mindspore_serving.core.sampling_params import SamplingParams
from mindspore_serving.errors import InvalidField
from mindspore_serving.llm.engine.thinking import ThinkingLimit
from mindspore_serving.llm.processing.answer_format import AnswerFormat
from mindspore_serving.llm.processing.prepared import PreparedPrompt
from mindspore_serving.llm.processing.thinking_limit import thinking_limit
from mindspore_serving.llm.tokenization.tokenizer import Tokenizer
from tests.frontends.openai.serving import CARD
from tests.llm.chat.languages import make_language

THINKING = replace(CARD, reasoning_format="think_open")


def limit_of(card: ModelCard, tokenizer: Tokenizer | None, budget: int | None) -> ThinkingLimit:
    params = SamplingParams(thinking_token_budget=budget)
    answer_format = AnswerFormat([], None, reasoning_format=card.reasoning_format)
    prompt = PreparedPrompt("", [1], params, answer_format, None)
    limit = thinking_limit(prompt, card, tokenizer)
    assert limit is not None
    return limit


@pytest.fixture(scope="module", params=[True, False], ids=["special-tokens", "text"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return make_language(request.param)[0]


def test_end_of_reasoning_is_seen_in_the_tokens_of_any_text(tokenizer: Tokenizer) -> None:
    limit = limit_of(THINKING, tokenizer, 50)
    for text in ("Well.</think>", "Well.\n</think>\n", "x</think>"):
        ids = tokenizer.encode(text, add_special=False)
        ended = [limit.has_ended(ids[:count][-16:]) for count in range(1, len(ids) + 1)]
        assert any(ended)
        before = tokenizer.decode(ids[: ended.index(True)], skip_special_tokens=False)
        assert "</think>" not in before
    assert not limit.has_ended(tokenizer.encode("</thin", add_special=False))


def test_sentences_end_with_stops_and_lines(tokenizer: Tokenizer) -> None:
    limit = limit_of(THINKING, tokenizer, 50)
    ends = {text: limit.ends_sentence(tokenizer.encode(text, add_special=False)[-1])
            for text in (".", "!", "\n", "a", " ")}  # fmt: skip
    assert ends == {".": True, "!": True, "\n": True, "a": False, " ": False}


def test_operator_limits_requests_that_have_no_budget(tokenizer: Tokenizer) -> None:
    card = replace(THINKING, thinking_token_budget=70)
    assert limit_of(card, tokenizer, None).max_tokens == 70
    assert limit_of(card, tokenizer, 5).max_tokens == 5


def test_budget_of_a_model_that_does_not_reason_is_refused(tokenizer: Tokenizer) -> None:
    plain = replace(CARD, reasoning_format="")
    with pytest.raises(InvalidField, match="thinking_token_budget is 5, but the model does not"):
        limit_of(plain, tokenizer, 5)
    answer_format = AnswerFormat([], None)
    prompt = PreparedPrompt("", [1], Generate().params, answer_format, None)
    assert thinking_limit(prompt, replace(plain, thinking_token_budget=70), tokenizer) is None
