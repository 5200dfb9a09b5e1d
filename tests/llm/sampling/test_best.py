"""Sampling from the best logits only, against sampling from all of them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mindspore_serving.core.sampling_params import SamplingParams
from mindspore_serving.llm.sampling.best import likeliest_below, num_best, sample_best
from mindspore_serving.llm.sampling.edits import SampleRow
from mindspore_serving.llm.sampling.sampler import sample
from mindspore_serving.llm.step import BestLogits

NUM_READ, VOCAB = 16, 300
GREEDY = SamplingParams(temperature=0.0)


def row(params: SamplingParams, position: int = 0, **more) -> SampleRow:
    return SampleRow(params, [], [], (), position, 7, **more)


def best_of(logits: np.ndarray, num_read: int = NUM_READ) -> BestLogits:
    """The largest in any order among equals."""
    ids = np.argsort(-logits, axis=1)[:, :num_read].astype(np.int32)
    return BestLogits(np.take_along_axis(logits, ids, 1), ids, lambda: logits)


@given(
    seed=st.integers(0, 2**32 - 1),
    step=st.sampled_from([0.0, 0.25, 1.0]),
    temperature=st.sampled_from([0.0, 0.3, 1.0, 5.0]),
    top_k=st.integers(1, NUM_READ - 1),
    filters=st.sampled_from([{}, {"top_p": 0.7}, {"min_p": 0.2}, {"typical_p": 0.6},
                             {"xtc_probability": 0.5}]),
)  # fmt: skip
def test_tokens_are_those_of_all_logits(
    seed: int, step: float, temperature: float, top_k: int, filters: dict[str, float]
) -> None:
    """Also where logits are equal, as those of bfloat16 often are."""
    logits = np.random.default_rng(seed).normal(size=(5, VOCAB)).astype(np.float32)
    if step:
        logits = np.round(logits / step) * np.float32(step)
    params = SamplingParams(temperature=temperature, top_k=top_k, **filters)
    rows = [row(params, position) for position in range(len(logits))]
    sampled = sample_best(best_of(logits), rows)
    assert num_best(rows) == (1 if temperature == 0 or top_k == 1 else top_k)
    if sampled is not None or not step:
        assert sampled == sample(logits.copy(), rows)


def test_equal_logits_beyond_those_read_need_all() -> None:
    logits = np.zeros((1, VOCAB), np.float32)
    assert sample_best(best_of(logits), [row(GREEDY)]) is None
    logits[0, 200:215] = 1
    (sampled,) = sample_best(best_of(logits), [row(GREEDY)]) or ()
    assert sampled.token_id == 200


@pytest.mark.parametrize("value", [np.inf, np.nan])
def test_logits_that_are_not_finite_need_all(value: float) -> None:
    logits = np.arange(VOCAB, dtype=np.float32)[None] * [[1], [1]]
    logits[1, 3] = value
    shown = np.where(np.isnan(logits), np.inf, logits)
    assert sample_best(best_of(shown), [row(GREEDY)] * 2) is None


@pytest.mark.parametrize(
    ("params", "more"),
    [
        ({}, {}),
        ({"top_k": 5, "logprobs": 0}, {}),
        ({"top_k": 5, "top_n_sigma": 1.0}, {}),
        ({"top_k": 5, "presence_penalty": 0.5}, {}),
        ({"top_k": 5, "allowed_token_ids": [1]}, {}),
        ({"top_k": 5}, {"mask": np.ones(VOCAB, np.bool_)}),
        ({"top_k": 5}, {"forced": 3}),
    ],
)
def test_rows_that_depend_on_more_logits_need_all(params: dict, more: dict) -> None:
    assert num_best([row(GREEDY), row(SamplingParams(**params), **more)]) == 0
    assert num_best([row(GREEDY), row(SamplingParams(top_k=5))]) == 5


def test_likeliest_token_of_a_smaller_vocabulary_may_need_all_logits() -> None:
    logits = np.arange(VOCAB, dtype=np.float32)[None].repeat(2, 0)
    logits[1, [3, 5]] = 400
    assert likeliest_below(best_of(logits), VOCAB) == [VOCAB - 1, 3]
    assert likeliest_below(best_of(logits), 290) == [289, 3]
    assert likeliest_below(best_of(logits), 9) == [8, 3]
