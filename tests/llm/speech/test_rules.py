"""Which tokens may follow, beside transformers' own rules; and the choice among them."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from mindspore_serving.llm.speech.models import SpeechTokens
from mindspore_serving.llm.speech.rules import (
    TokenRules,
    choose,
    likeliest_language,
    probability_of,
)

pytestmark = pytest.mark.torch

TOKENS = SpeechTokens(
    start=51, end=50, transcribe=55, translate=54, previous=56, no_speech=57, no_times=58,
    first_time=59, first_mark=50, languages={"en": 52, "de": 53},
    never=(3, 51, 52, 53, 54, 55, 56, 57), not_first=(4, 50),
)  # fmt: skip
SIZE = 59 + 200


def theirs(written, logits):
    """Logits after transformers' processors, in the order in which it applies them."""
    from transformers.generation.logits_process import (
        SuppressTokensAtBeginLogitsProcessor,
        SuppressTokensLogitsProcessor,
        WhisperTimeStampLogitsProcessor,
    )

    begin = 3
    config = SimpleNamespace(
        no_timestamps_token_id=58, eos_token_id=50, bos_token_id=50, forced_decoder_ids=None,
        max_initial_timestamp_index=50, is_multilingual=True, _detect_timestamp_from_logprob=True,
    )  # fmt: skip
    ids = torch.tensor([[51, 52, 55, *written]])
    scores = torch.tensor(logits)[None]
    for process in (
        SuppressTokensLogitsProcessor(TOKENS.never),
        SuppressTokensAtBeginLogitsProcessor(TOKENS.not_first, begin),
        WhisperTimeStampLogitsProcessor(config, begin_index=begin),
    ):
        scores = process(ids, scores)
    return scores[0].numpy()


def ours(written, logits, **changes):
    values = {"has_times": True, "temperature": 0.0, **changes}
    rules = TokenRules(TOKENS, written, values["has_times"])
    return choose(logits, rules, values["temperature"], np.random.default_rng(1))


@pytest.mark.parametrize(
    "written",
    [
        [], [59], [59, 7], [59, 7, 70], [59, 7, 70, 70], [59, 7, 70, 70, 9], [60, 1, 90, 90, 2, 95],
        [59, 59], [1, 2],
    ],
)  # fmt: skip
def test_the_same_tokens_are_possible_as_in_transformers(written):
    random = np.random.default_rng(len(written))
    for shift in (-4.0, 0.0, 4.0):
        logits = random.standard_normal(SIZE).astype(np.float32)
        logits[59:] += shift
        expected = theirs(written, logits.copy())
        chosen = ours(written, logits)
        assert np.array_equal(np.isfinite(logits), np.isfinite(expected))
        assert chosen.token == int(expected.argmax())
        logprobs = torch.log_softmax(torch.tensor(expected), -1)
        assert chosen.logprob == pytest.approx(float(logprobs[chosen.token]), abs=1e-4)


def test_a_text_without_times_has_none():
    logits = np.zeros(SIZE, np.float32)
    logits[100], logits[7] = 9, 1
    assert ours([], logits, has_times=False).token == 7


def test_a_temperature_draws_tokens_by_their_probabilities():
    random, counts = np.random.default_rng(0), np.zeros(SIZE)
    base = np.full(SIZE, -30, np.float32)
    base[[7, 8]] = np.log([0.25, 0.75])
    for _ in range(2000):
        chosen = choose(base.copy(), TokenRules(TOKENS, [1], False), 1.0, random)
        counts[chosen.token] += 1
    assert counts[7] / 2000 == pytest.approx(0.25, abs=0.04)
    assert counts[7] + counts[8] == 2000


def test_language_and_no_speech_are_read_from_the_first_logits():
    logits = np.zeros(SIZE, np.float32)
    logits[[53, 57]] = 3, 2
    assert likeliest_language(logits, TOKENS) == "de"
    expected = torch.softmax(torch.tensor(logits), -1)[57]
    assert probability_of(logits, 57) == pytest.approx(float(expected), abs=1e-6)
    assert probability_of(logits, None) == 0.0
