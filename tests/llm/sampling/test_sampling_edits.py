"""Penalties, biases and bans by hand, and against transformers."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mindspore_serving.core.sampling_params import SamplingParams
from mindspore_serving.errors import InvalidInputs
from mindspore_serving.llm.sampling.edits import SampleRow, check_ids
from mindspore_serving.llm.sampling.sampler import sample

INF = np.inf


def edited(logits, *, prompt=(), output=(), end=(), mask=None, bad_words=(), **params):
    row = SampleRow(
        SamplingParams(**params), list(prompt), list(output), end, len(output), 1, mask, bad_words
    )
    logits = np.array(logits, np.float32)
    row.edit(logits)
    return logits.tolist()


def test_a_repetition_penalty_divides_positive_and_multiplies_negative():
    found = edited([4, -4, 2, 0, 1], prompt=[0, 1, 0], output=[2, 0], repetition_penalty=2.0)
    assert found == [2, -8, 1, 0, 1]


def test_frequency_counts_presence_does_not_and_both_ignore_the_prompt():
    found = edited(
        [1, 1, 1, 1],
        prompt=[0, 0],
        output=[1, 2, 2],
        frequency_penalty=0.5,
        presence_penalty=0.25,
    )
    assert found == [1, 0.25, -0.25, 1]


def test_negative_penalties_favour_tokens_of_the_text():
    assert edited([1, 1], output=[1, 1], frequency_penalty=-1, presence_penalty=-0.5) == [1, 3.5]


def test_biases_are_added_after_penalties():
    found = edited([4, 4, 4], prompt=[0], repetition_penalty=2.0, logit_bias={0: 1, 2: -1.5})
    assert found == [3, 4, 2.5]


def test_end_tokens_are_banned_until_there_are_enough_tokens():
    assert edited([1, 2, 3], end=(0, 2), output=[1], min_tokens=2) == [-INF, 2, -INF]
    assert edited([1, 2, 3], end=(0, 2), output=[1, 1], min_tokens=2) == [1, 2, 3]


def test_allowed_tokens_are_all_that_is_left():
    assert edited([1, 2, 3, 4], allowed_token_ids=[2, 0, 2]) == [1, -INF, 3, -INF]


def test_a_mask_of_bools_forbids_tokens_past_its_end():
    assert edited([1, 2, 3, 4], mask=np.array([True, False, True])) == [1, -INF, 3, -INF]


@pytest.mark.parametrize("dtype", [np.uint32, np.int32])
def test_a_mask_of_words_allows_the_bits_that_are_set(dtype):
    words = np.array([1 << 31 | 1 << 2, 1 << 1], np.uint32).view(dtype)
    found = edited(np.arange(40), mask=words)
    assert [token for token, logit in enumerate(found) if logit > -INF] == [2, 31, 33]


def test_a_mask_of_another_type_is_a_bug():
    with pytest.raises(TypeError, match="float32"):
        edited([1, 2], mask=np.ones(2, np.float32))


def test_a_bad_word_is_banned_when_all_but_its_last_token_is_there():
    words = [[1], [2, 3], [0, 2, 0]]
    assert edited([1, 1, 1, 1], output=[0], bad_words=words) == [1, -INF, 1, 1]
    assert edited([1, 1, 1, 1], output=[3, 2], bad_words=words) == [1, -INF, 1, -INF]
    assert edited([1, 1, 1, 1], prompt=[0], output=[2], bad_words=words) == [-INF, -INF, 1, -INF]


def test_tokens_without_a_logit_are_passed_over():
    found = edited(
        [1, 1],
        prompt=[7, -1],
        output=[0, 9],
        end=(5,),
        min_tokens=9,
        repetition_penalty=2.0,
        frequency_penalty=0.5,
        logit_bias={9: 5.0},
        bad_words=[[8], [9, 7], []],
        allowed_token_ids=[0, 1, 12],
    )
    assert found == [0, 1]


def test_a_kept_row_counts_added_and_rejected_tokens():
    output = [1, 2]
    row = SampleRow(SamplingParams(frequency_penalty=1.0), [], output, (), 0, 1)
    for change, expected in [
        (lambda: None, [0, -1, -1]),
        (lambda: output.append(2), [0, -1, -2]),
        (lambda: output.__setitem__(slice(None), [0, 0, 2, 2]), [-2, 0, -2]),
        (output.clear, [0, 0, 0]),
    ]:
        change()
        logits = np.zeros(3, np.float32)
        row.edit(logits)
        assert logits.tolist() == expected


def test_a_mask_decides_greedy_and_random_tokens():
    mask = np.array([False, True, False])
    rows = [
        SampleRow(SamplingParams(temperature=temperature), [], [], (), 0, 1, mask)
        for temperature in (0.0, 1.0)
    ]
    logits = np.array([[9, 0, 8]] * 2, np.float32)
    assert [sampled.token_id for sampled in sample(logits, rows)] == [1, 1]


@pytest.mark.torch
@settings(max_examples=60)
@given(
    st.integers(0, 2**32),
    st.lists(st.integers(0, 19), min_size=1, max_size=12),
    st.lists(st.integers(0, 19), max_size=12),
    st.lists(st.lists(st.integers(0, 19), min_size=1, max_size=3), min_size=1, max_size=6),
)
def test_penalties_and_bans_are_those_of_transformers(seed, prompt, output, words):
    torch = pytest.importorskip("torch")
    import transformers

    torch.set_num_threads(1)
    logits = np.random.default_rng(seed).standard_normal(20).astype(np.float32) * 4
    ids = torch.tensor([prompt + output])
    words = [word for word in words if word != [0]]  # which transformers takes for the end token
    scores = transformers.RepetitionPenaltyLogitsProcessor(1.7)(ids, torch.tensor(logits)[None])
    if words:
        scores = transformers.NoBadWordsLogitsProcessor(words, eos_token_id=0)(ids, scores)
    minimum = transformers.MinNewTokensLengthLogitsProcessor(len(prompt), 4, [0, 5])
    expected = minimum(ids, scores)[0].numpy()
    found = edited(
        logits,
        prompt=prompt,
        output=output,
        end=(0, 5),
        min_tokens=4,
        repetition_penalty=1.7,
        bad_words=words,
    )
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("params", "text"),
    [
        (
            {"logit_bias": {8: 1.0}},
            "logit_bias has token id 8, expected an int of 0 to 7",
        ),
        (
            {"stop_token_ids": [3, -1]},
            "stop_token_ids has token id -1, expected an int of 0 to 7",
        ),
        (
            {"allowed_token_ids": [True]},
            "allowed_token_ids has token id True, expected an int of 0 to 7",
        ),
        ({"allowed_token_ids": []}, "allowed_token_ids is empty, expected at least one token id"),
        (
            {"logit_bias": {3: float("nan")}},
            "logit_bias of token 3 is nan, expected a finite number",
        ),
    ],
)
def test_ids_that_the_model_does_not_have_are_refused(params, text):
    with pytest.raises(InvalidInputs) as caught:
        check_ids(SamplingParams(**params), 8)
    assert str(caught.value) == text


def test_ids_that_the_model_has_are_taken():
    params = SamplingParams(logit_bias={0: -1}, stop_token_ids=[7], allowed_token_ids=[1])
    check_ids(params, 8)
    with pytest.raises(InvalidInputs, match="7"):
        check_ids(params, 7)
