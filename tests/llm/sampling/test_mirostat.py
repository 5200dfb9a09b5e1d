"""Mirostat against its definition, written out for sorted probabilities in float64."""

import math

import numpy as np
import pytest

from mindspore_serving.core.sampling_params import SamplingParams
from mindspore_serving.llm.sampling.best import num_best
from mindspore_serving.llm.sampling.edits import SampleRow
from mindspore_serving.llm.sampling.sampler import sample

SIZE = 1000
ZIPF = -1.3 * np.log(np.arange(1, SIZE + 1))
SEED = 5


def row_of(**params):
    return SampleRow(SamplingParams(**params), [], [], [], 0, SEED)


def run(row, logits, count):
    """Return the tokens sampled at the first positions."""
    found = []
    for position in range(count):
        row.position = position
        (sampled,) = sample(np.array([logits], np.float32), [row])
        found.append(sampled.token_id)
        row.output_ids.append(sampled.token_id)
    return found


def kept_by_definition(probabilities, version, limit):
    """Return how many of the descending `probabilities` stay."""
    if version == 2:
        return max(1, int((-np.log2(probabilities) <= limit).sum()))
    top = probabilities[:100]
    t = np.log(np.arange(2, len(top) + 1) / np.arange(1, len(top)))
    b = np.log(top[:-1] / top[1:])
    s = (t * b).sum() / (t * t).sum()
    epsilon = s - 1
    k = ((epsilon * 2**limit) / (1 - len(probabilities) ** -epsilon)) ** (1 / s)
    return min(len(probabilities), max(1, round(k)))


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_tokens_stay_within_the_limits_of_the_definition(version, temperature):
    tau, eta, count = 3.0, 0.2, 60
    order = np.random.default_rng(1).permutation(SIZE)
    logits = np.empty(SIZE)
    logits[order] = ZIPF
    row = row_of(mirostat=version, mirostat_tau=tau, mirostat_eta=eta, temperature=temperature)
    found = run(row, logits, count)
    probabilities = np.exp(ZIPF / temperature)
    probabilities /= probabilities.sum()
    rank_of = {int(token_id): rank for rank, token_id in enumerate(order)}
    limit = 2 * tau
    for token_id in found:
        kept = kept_by_definition(probabilities, version, limit)
        assert rank_of[token_id] < kept
        within = probabilities[:kept] / probabilities[:kept].sum()
        limit -= eta * (-math.log2(within[rank_of[token_id]]) - tau)
    assert row.surprise is not None
    assert row.surprise._limits[-1] == pytest.approx(limit, rel=1e-4)


@pytest.mark.parametrize("version", [1, 2])
def test_surprise_follows_its_target(version):
    probabilities = np.exp(ZIPF) / np.exp(ZIPF).sum()
    tokens = [run(row_of(mirostat=version, mirostat_tau=tau), ZIPF, 300) for tau in (1, 3, 5)]
    means = [float(-np.log2(probabilities[found[100:]]).mean()) for found in tokens]
    assert means[0] + 1 < means[1] < means[2] - 1


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("logits", [np.zeros(300), np.r_[0.0, np.full(9, -1e4)], np.zeros(1)])
def test_flat_and_certain_distributions_have_a_token(version, logits):
    row = row_of(mirostat=version, mirostat_tau=0.0, mirostat_eta=1.0)
    for token_id in run(row, logits, 30):
        assert 0 <= token_id < len(logits)
    high = row_of(mirostat=version, mirostat_tau=100.0, mirostat_eta=1.0)
    assert len(run(high, logits, 30)) == 30


def test_position_that_is_sampled_again_has_the_same_limit():
    """Behind draft tokens that were not accepted, and behind a preemption."""
    plain = row_of(mirostat=2, mirostat_tau=2.0)
    expected = run(plain, ZIPF, 6)
    row = row_of(mirostat=2, mirostat_tau=2.0)
    run(row, ZIPF, 3)
    rows = [row, *[row.after([999] * count) for count in (1, 2)]]
    for position, each in enumerate(rows, 3):
        each.position = position
    sample(np.array([ZIPF] * 3, np.float32), rows)
    for position in range(3, 6):
        row.position = position
        (sampled,) = sample(np.array([ZIPF], np.float32), [row])
        assert sampled.token_id == expected[position]


def test_filters_have_no_effect_and_temperature_0_is_greedy():
    plain = run(row_of(mirostat=2), ZIPF, 20)
    assert run(row_of(mirostat=2, top_k=3, top_p=0.1, min_p=0.9), ZIPF, 20) == plain
    assert run(row_of(mirostat=2, temperature=0.0), ZIPF, 5) == [0] * 5
    assert num_best([row_of(mirostat=2, top_k=3)]) == 0
