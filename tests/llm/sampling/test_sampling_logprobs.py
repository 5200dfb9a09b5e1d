"""Log-probabilities and ranks of the model's own distribution."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mindspore_serving.core.sampling_params import SamplingParams
from mindspore_serving.llm.sampling.edits import SampleRow
from mindspore_serving.llm.sampling.sampler import prompt_logprobs, sample

LOGITS = np.log(np.array([[0.1, 0.4, 0.05, 0.25, 0.2]], np.float32))


def logprobs(**params):
    row = SampleRow(SamplingParams(**params), [1], [3], (), 1, 1)
    (sampled,) = sample(LOGITS + np.float32(3), [row])
    return sampled.token_id, sampled.logprobs


def test_a_token_comes_first_and_then_the_likeliest_with_their_ranks():
    token_id, entries = logprobs(temperature=0.0, logprobs=3)
    assert token_id == 1
    assert [(entry.token_id, entry.rank) for entry in entries] == [(1, 0), (1, 0), (3, 1), (4, 2)]
    assert entries[0].logprob == pytest.approx(math.log(0.4), abs=1e-6)
    assert entries[2].logprob == pytest.approx(math.log(0.25), abs=1e-6)


def test_none_are_reported_unless_asked_for_and_0_reports_the_token_alone():
    assert logprobs(temperature=0.0)[1] is None
    assert len(logprobs(temperature=0.0, logprobs=0)[1]) == 1


def test_temperature_penalties_and_filters_do_not_change_them():
    token_id, entries = logprobs(
        temperature=3.0,
        top_k=2,
        top_p=0.9,
        repetition_penalty=5.0,
        logit_bias={2: 50.0},
        logprobs=1,
    )
    assert token_id == 2
    assert (entries[0].token_id, entries[0].rank) == (2, 4)
    assert entries[0].logprob == pytest.approx(math.log(0.05), abs=1e-6)
    assert (entries[1].token_id, entries[1].rank) == (1, 0)


def test_more_logprobs_than_the_vocabulary_report_all_tokens():
    _, entries = logprobs(temperature=0.0, logprobs=64)
    assert [entry.token_id for entry in entries] == [1, 1, 3, 4, 0, 2]


def test_equally_likely_tokens_rank_by_id():
    (entries,) = prompt_logprobs(np.zeros((1, 4), np.float32), [2], 2)
    assert [(entry.token_id, entry.rank) for entry in entries] == [(2, 2), (0, 0), (1, 1)]


def test_a_prompt_has_an_entry_for_each_target():
    logits = np.log(np.array([[0.5, 0.25, 0.25], [0.125, 0.125, 0.75]], np.float32))
    first, second = prompt_logprobs(logits, [1, 2], 1)
    assert [(entry.token_id, entry.rank) for entry in first] == [(1, 1), (0, 0)]
    assert [(entry.token_id, entry.rank) for entry in second] == [(2, 0), (2, 0)]
    assert second[0].logprob == pytest.approx(math.log(0.75), abs=1e-6)


def test_a_prompts_logits_that_are_no_numbers_give_nan():
    logits = np.array([[0, np.nan], [0, 0]], np.float32)
    broken, sound = prompt_logprobs(logits, [0, 0], 1)
    assert math.isnan(broken[0].logprob)
    assert broken[0].rank == -1
    assert sound[0].logprob == pytest.approx(-math.log(2))


@given(st.integers(0, 2**32), st.sampled_from([5, 700]), st.integers(0, 64))
def test_they_are_those_of_a_sorted_softmax(seed, size, k):
    logits = np.random.default_rng(seed).standard_normal((1, size)).astype(np.float32) * 5
    target = seed % size
    exact = np.float64(logits[0])
    exact = exact - np.log(np.exp(exact - exact.max()).sum()) - exact.max()
    order = np.argsort(-exact, kind="stable")
    (entries,) = prompt_logprobs(logits, [target], k)
    assert [entry.token_id for entry in entries] == [target, *order[:k]]
    assert entries[0].rank == int(np.flatnonzero(order == target)[0])
    np.testing.assert_allclose(
        [entry.logprob for entry in entries], exact[[target, *order[:k]]], atol=1e-4
    )
