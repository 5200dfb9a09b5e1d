"""Choosing tokens for a batch: greedy, random, seeded, and what goes wrong in one row alone."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mindspore_serving.core.sampling_params import SamplingParams
from mindspore_serving.llm.sampling.draw import Uniforms, draw
from mindspore_serving.llm.sampling.edits import SampleRow
from mindspore_serving.llm.sampling.sampler import sample

GREEDY = SamplingParams(temperature=0.0)


def row(params=GREEDY, *, prompt=(), output=(), end=(), position=0, seed=1, **others):
    return SampleRow(params, list(prompt), list(output), end, position, seed, **others)


def logits_of(*rows):
    return np.array(rows, np.float32)


def tokens(logits, rows):
    return [sampled.token_id for sampled in sample(logits, rows)]


def draws(logits, params, count, seed=7):
    """`count` tokens of the same logits, at successive positions."""
    rows = [row(params, position=position, seed=seed) for position in range(count)]
    return np.array(tokens(np.tile(np.float32(logits), (count, 1)), rows))


def chi_square(observed, probabilities):
    expected = probabilities * observed.sum()
    return float((np.square(observed - expected) / expected).sum())


def softmax(logits):
    weights = np.exp(np.float64(logits) - np.max(logits))
    return weights / weights.sum()


def test_greedy_takes_the_first_of_the_largest_logits():
    logits = logits_of([0, 3, 1, 3], [5, -1, 2, 4], [-9, -8, -7, -7])
    assert tokens(logits, [row()] * 3) == [1, 0, 2]


def test_top_k_1_is_greedy_at_any_temperature():
    params = SamplingParams(temperature=50.0, top_k=1)
    assert tokens(logits_of([0, 3, 1, 3]), [row(params)]) == [1]


def test_a_tiny_temperature_is_greedy_without_overflow():
    params = SamplingParams(temperature=1e-45)
    assert tokens(logits_of([-3e38, 3e38, 1, 0]), [row(params)]) == [1]


def test_no_rows_give_no_tokens():
    assert sample(np.zeros((0, 8), np.float32), []) == []


def test_logits_that_may_not_be_written_are_left_as_they_are():
    logits = logits_of([0.0, 1.0, 2.0])
    logits.setflags(write=False)
    bias = SamplingParams(temperature=0.0, logit_bias={0: 5.0})
    assert tokens(logits, [row(bias)]) == [0]
    assert logits.tolist() == [[0.0, 1.0, 2.0]]


def test_a_count_of_rows_that_is_not_the_logits_is_a_bug():
    with pytest.raises(ValueError, match=r"\(2, 3\) for 1 rows"):
        sample(np.zeros((2, 3), np.float32), [row()])


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=1.0),
        SamplingParams(temperature=0.5),
        SamplingParams(temperature=2.0),
    ],
)
def test_tokens_come_as_often_as_their_probabilities_say(params):
    logits = [1.0, 0.0, -1.0, 2.0, 0.5, 1.5, -0.5, 0.25, 1.25, 0.75]
    observed = np.bincount(draws(logits, params, 4000), minlength=10)
    # The 99.9th percentile of chi square with 9 degrees of freedom is 27.88.
    assert chi_square(observed, softmax(np.array(logits) / params.temperature)) < 27.88


def test_a_large_vocabulary_is_drawn_from_as_its_probabilities_say():
    logits = np.random.default_rng(0).standard_normal(1000).astype(np.float32) * 2
    observed = np.bincount(draws(logits, SamplingParams(), 5000), minlength=1000)
    # Twenty groups of tokens; 256 columns and a rest of 232 are where the two steps meet.
    groups = np.add.reduceat(observed, np.arange(0, 1000, 50))
    probabilities = np.add.reduceat(softmax(logits), np.arange(0, 1000, 50))
    assert chi_square(groups, probabilities) < 43.82  # 19 degrees of freedom


def test_filtered_tokens_keep_their_proportions_when_sampled():
    logits = np.array([1.0, 0.0, -1.0, 2.0, 0.5], np.float32)
    observed = np.bincount(draws(logits, SamplingParams(top_k=3), 3000), minlength=5)
    assert observed[1] == observed[2] == 0
    kept = [0, 3, 4]
    assert chi_square(observed[kept], softmax(logits[kept])) < 13.82  # 2 degrees of freedom


def test_a_token_without_probability_is_never_drawn():
    logits = np.full(600, -np.inf, np.float32)
    logits[[0, 255, 256, 511, 512, 599]] = 0.0
    assert set(draws(logits, SamplingParams(), 500)) == {0, 255, 256, 511, 512, 599}


@pytest.mark.parametrize("uniform", [0.0, 2.0**-53, 0.5, 1 - 2.0**-53])
@pytest.mark.parametrize("size", [5, 300, 5000])
def test_rounding_never_leads_to_a_token_without_probability(uniform, size):
    for seed in range(50):
        logits = np.random.default_rng(seed).standard_normal(size).astype(np.float32) * 3
        logits[[0, 1, -2, -1]] = -np.inf
        for params in (SamplingParams(), SamplingParams(top_k=4), SamplingParams(top_p=0.9)):
            token_id = draw(logits.copy(), float(logits.max()), params, uniform)
            assert 2 <= token_id < size - 2


def test_a_number_just_below_the_end_of_a_column_stays_in_the_column():
    # Column 0 sums to more in float32 than its entries do in float64, so the number for it may lie
    # past them all.
    logits = np.full(256 * 64, -np.inf, np.float32)
    logits[::256] = np.random.default_rng(0).standard_normal(64).astype(np.float32)
    for shift in np.linspace(0, 1, 50, dtype=np.float32):
        shifted = logits - shift * np.arange(len(logits), dtype=np.float32) / len(logits)
        token_id = draw(shifted.copy(), float(shifted.max()), SamplingParams(), 1 - 2.0**-53)
        assert token_id == 256 * 63


def test_the_random_number_is_that_of_philox_for_seed_and_position():
    uniforms = Uniforms()
    for seed, position in [(0, 0), (1, 2), (2**64 - 1, 5), (123456789, 2**20)]:
        bits = np.random.Philox(key=seed, counter=position).random_raw()
        assert uniforms.at(seed, position) == (bits >> 11) / 2**53


def test_seeds_in_a_row_are_as_random_as_positions_in_a_row():
    uniforms = Uniforms()
    for values in (
        [uniforms.at(seed, 0) for seed in range(4000)],
        [uniforms.at(0, position) for position in range(4000)],
    ):
        observed = np.bincount((np.array(values) * 20).astype(int), minlength=20)
        assert chi_square(observed, np.full(20, 1 / 20)) < 43.82


def test_another_seed_or_position_gives_other_tokens():
    logits = np.zeros(1000)
    once = draws(logits, SamplingParams(), 50, seed=1)
    assert once.tolist() == draws(logits, SamplingParams(), 50, seed=1).tolist()
    assert np.count_nonzero(once == draws(logits, SamplingParams(), 50, seed=2)) < 5
    assert len(set(once)) > 40


PARAMS = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.3, 1.0, 1.7]),
    top_k=st.sampled_from([0, 0, 1, 5, 40]),
    top_p=st.sampled_from([1.0, 0.9, 0.2]),
    min_p=st.sampled_from([0.0, 0.0, 0.1]),
    typical_p=st.sampled_from([1.0, 1.0, 0.6]),
    repetition_penalty=st.sampled_from([1.0, 1.3]),
    frequency_penalty=st.sampled_from([0.0, 0.5]),
    logit_bias=st.dictionaries(st.integers(0, 299), st.floats(-5, 5), max_size=3),
    logprobs=st.sampled_from([None, 0, 3]),
)


@settings(max_examples=60)
@given(st.lists(PARAMS, min_size=2, max_size=6), st.integers(0, 2**32))
def test_a_row_does_not_depend_on_other_rows(params, seed):
    logits = np.random.default_rng(seed).standard_normal((len(params), 300)).astype(np.float32)
    rows = [
        row(each, prompt=[1, 2, 3], output=[3, 4, 4], position=3, seed=seed + index)
        for index, each in enumerate(params)
    ]
    together = sample(logits.copy(), rows)
    alone = [sample(logits[[index]], [rows[index]])[0] for index in range(len(rows))]
    backwards = sample(logits[::-1].copy(), rows[::-1])[::-1]
    assert together == alone == backwards


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("params", [GREEDY, SamplingParams(), SamplingParams(top_p=0.5)])
def test_logits_that_are_no_numbers_fail_their_row_alone(bad, params):
    logits = logits_of([0, 1, 2, 0], [0, bad, 5, bad], [7, 1, 2, 0])
    before, failed, after = sample(logits, [row(), row(params), row()])
    assert (before.token_id, after.token_id) == (2, 0)
    assert failed.token_id == -1
    kind = "2 are NaN, 0 are +inf" if np.isnan(bad) else "0 are NaN, 2 are +inf"
    assert kind in failed.error


def test_logits_that_are_all_minus_infinity_fail_their_row():
    (failed,) = sample(np.full((1, 4), -np.inf, np.float32), [row(SamplingParams())])
    assert "of 4, 0 are NaN, 0 are +inf and 4 are -inf" in failed.error


def test_a_row_that_may_choose_nothing_says_so():
    params = SamplingParams(temperature=0.0, allowed_token_ids=[1], min_tokens=1)
    (failed,) = sample(logits_of([0, 1, 2]), [row(params, end=(1,))])
    assert "none of the 3 tokens may be chosen" in failed.error


def test_a_bias_that_overflows_fails_its_row():
    params = SamplingParams(temperature=0.0, logit_bias={1: 1e39})
    (failed,) = sample(logits_of([0, 1, 2]), [row(params)])
    assert "penalties and logit_bias overflow" in failed.error
