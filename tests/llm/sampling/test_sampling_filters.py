"""top_k, top_p, min_p and typical_p against their definitions, and against transformers."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from mindspore_serving.core.sampling_params import SamplingParams
from mindspore_serving.llm.sampling.draw import draw, exclude_top, weigh
from mindspore_serving.llm.sampling.sampler import SampleRow, sample


def probabilities(logits, params):
    """What `params` leaves of `logits`, as probabilities of all tokens."""
    logits = np.array(logits, np.float32)
    ids, weights = weigh(logits.copy(), float(logits.max()), params)
    found = np.zeros(len(logits))
    found[slice(None) if ids is None else ids] = weights
    return found / found.sum()


def kept(logits, **params):
    return np.flatnonzero(probabilities(logits, SamplingParams(**params))).tolist()


LOGITS = np.log([0.1, 0.4, 0.05, 0.25, 0.2])


def test_top_k_keeps_the_largest():
    assert kept(LOGITS, top_k=2) == [1, 3]
    assert kept(LOGITS, top_k=5) == kept(LOGITS, top_k=99) == [0, 1, 2, 3, 4]


def test_top_k_keeps_the_first_of_equal_tokens():
    assert kept([1, 2, 2, 2, 0], top_k=2) == [1, 2]
    assert kept(np.zeros(5000), top_k=3) == [0, 1, 2]


def test_top_p_keeps_the_token_that_crosses_the_limit():
    assert kept(LOGITS, top_p=0.39) == [1]
    assert kept(LOGITS, top_p=0.41) == [1, 3]
    assert kept(LOGITS, top_p=0.86) == [0, 1, 3, 4]
    assert kept(LOGITS, top_p=1e-12) == [1]


def test_top_p_keeps_the_first_of_equal_tokens():
    assert kept(np.zeros(10), top_p=0.35) == [0, 1, 2, 3]
    assert kept(np.zeros(4096), top_p=0.25) == list(range(1024))


def test_min_p_is_a_share_of_the_likeliest():
    assert kept(LOGITS, min_p=0.3) == [1, 3, 4]
    assert kept(LOGITS, min_p=1.0) == [1]


def test_typical_p_can_leave_out_the_likeliest():
    # Surprises are 0.51 of the first and 3.22 of the ten others, 1.59 expected: the first is nearer
    # by 1.08 to 1.63.  With a first of 0.3 they are 1.20, 2.66 and 2.22: the others are nearer.
    assert kept(np.log([0.6, *[0.04] * 10]), typical_p=0.5) == [0]
    assert kept(np.log([0.3, *[0.07] * 10]), typical_p=0.13) == [1, 2]


def test_top_n_sigma_keeps_tokens_near_the_largest_logit():
    # Mean 2, deviations -2, -1, 0, 0, 3: sigma is sqrt(14 / 5) = 1.673, and 5 - 1.8 * 1.673 = 1.99.
    assert kept([0, 1, 2, 2, 5], top_n_sigma=1.8) == [2, 3, 4]
    assert kept([0, 1, 2, 2, 5], top_n_sigma=1.7) == [4]
    assert (
        kept([0, 1, 2, 2, 5], top_n_sigma=0.0)
        == kept([0, 1, 2, 2, 5], top_n_sigma=9)
        == [*range(5)]
    )
    assert kept([3.0, 3.0, 3.0], top_n_sigma=0.5) == [0, 1, 2]  # sigma is 0


def test_top_n_sigma_takes_the_deviation_of_allowed_tokens():
    banned = [0, 1, 2, 2, -np.inf, 5, -np.inf]
    assert kept(banned, top_n_sigma=1.8) == [2, 3, 5]
    assert kept(banned, top_n_sigma=1.8, top_k=2) == [2, 5]


@settings(max_examples=100, deadline=None)
@given(
    st.integers(0, 2**32),
    st.sampled_from([5, 700, 5000]),
    st.sampled_from([0.5, 3.0]),
    st.sampled_from([0.3, 1.0, 2.5]),
    st.sampled_from([0.3, 1.0, 4.0]),
)
def test_top_n_sigma_is_its_definition_at_any_temperature(seed, size, spread, n, temperature):
    logits = np.random.default_rng(seed).standard_normal(size).astype(np.float32) * spread
    exact = logits.astype(np.float64)
    sigma = np.sqrt(np.mean((exact - exact.sum() / size) ** 2))
    margin = exact - (exact.max() - n * sigma)
    expected = np.flatnonzero(margin >= 0).tolist()
    assume(np.abs(margin).min() > 1e-5)
    assert kept(logits, top_n_sigma=n, temperature=temperature) == expected


def excluded(logits, **params):
    """The probabilities that XTC leaves, if it is its turn."""
    params = SamplingParams(**params)
    logits = np.array(logits, np.float32)
    ids, weights = weigh(logits.copy(), float(logits.max()), params)
    exclude_top(weights, params.xtc_threshold)
    found = np.zeros(len(logits))
    found[slice(None) if ids is None else ids] = weights
    return found / found.sum()


def test_xtc_leaves_the_least_likely_of_those_over_the_threshold():
    # 0.4, 0.25 and 0.2 are over 0.15: of them 0.2 stays, with 0.1 and 0.05.
    found = excluded(LOGITS, xtc_threshold=0.15)
    np.testing.assert_allclose(found, [0.1 / 0.35, 0, 0.05 / 0.35, 0, 0.2 / 0.35], rtol=1e-6)
    assert np.flatnonzero(excluded(LOGITS, xtc_threshold=0.3)).tolist() == [0, 1, 2, 3, 4]
    assert np.flatnonzero(excluded(LOGITS, xtc_threshold=0.5)).tolist() == [0, 1, 2, 3, 4]


def test_xtc_comes_behind_the_other_filters():
    # top_k leaves 0.47, 0.29 and 0.24; all are over 0.22, and none would be but two before.
    assert np.flatnonzero(excluded(LOGITS, xtc_threshold=0.22, top_k=3)).tolist() == [4]
    assert np.flatnonzero(excluded([2, 2, 2, 0], xtc_threshold=0.2)).tolist() == [0, 3]


@settings(max_examples=100, deadline=None)
@given(
    st.integers(0, 2**32),
    st.sampled_from([4, 60, 3000]),
    st.sampled_from([1.0, 4.0]),
    st.sampled_from([0.02, 0.1, 0.4]),
    st.sampled_from([{}, {"top_k": 20}, {"min_p": 0.05, "temperature": 1.3}]),
)
def test_xtc_is_its_definition(seed, size, spread, threshold, others):
    logits = np.random.default_rng(seed).standard_normal(size) * spread
    before = probabilities(logits, SamplingParams(**others))
    order = [index for index in np.argsort(-before, kind="stable") if before[index] >= threshold]
    expected = before.copy()
    expected[order[:-1]] = 0
    assume(np.abs(before - threshold).min() > 1e-6)
    found = excluded(logits, xtc_threshold=threshold, **others)
    np.testing.assert_allclose(found, expected / expected.sum(), rtol=1e-4, atol=1e-9)


def test_xtc_is_applied_with_its_probability_and_keeps_proportions():
    params = SamplingParams(xtc_probability=0.25, xtc_threshold=0.15)
    logits = np.array(LOGITS, np.float32)
    best = float(logits.max())
    numbers = (np.arange(4000) + 0.5) / 4000  # all of [0, 1), evenly
    drawn = [draw(logits.copy(), best, params, float(number)) for number in numbers]
    expected = 0.25 * excluded(LOGITS, xtc_threshold=0.15) + 0.75 * np.exp(LOGITS)
    np.testing.assert_allclose(np.bincount(drawn) / 4000, expected, atol=0.001)
    plain = SamplingParams()
    same = SamplingParams(xtc_threshold=0.3)
    for number in numbers[::100]:
        first = draw(logits.copy(), best, plain, float(number))
        assert draw(logits.copy(), best, same, float(number)) == first


def test_a_seed_excludes_the_same_tokens_in_any_batch():
    params = SamplingParams(xtc_probability=0.5, xtc_threshold=0.05)
    logits = np.random.default_rng(3).standard_normal((1, 40)).astype(np.float32) * 2
    others = [SampleRow(SamplingParams(), (), (), (), 0, seed) for seed in range(5)]

    def tokens(batch, place):
        found = []
        for position in range(30):
            rows = [*batch]
            rows.insert(place, SampleRow(params, (), (), (), position, 77))
            found.append(sample(np.repeat(logits, len(rows), 0), rows)[place].token_id)
        return found

    alone = tokens([], 0)
    assert tokens(others, 3) == tokens(others[:2], 0) == alone
    top = set(np.flatnonzero(probabilities(logits[0], SamplingParams()) >= 0.05).tolist())
    assert len(top) > 2
    assert 0 < sum(token in top for token in alone) < 30


def test_tokens_left_by_filters_keep_their_proportions():
    found = probabilities(LOGITS, SamplingParams(top_k=3))
    np.testing.assert_allclose(found, [0, 0.4 / 0.85, 0, 0.25 / 0.85, 0.2 / 0.85], rtol=1e-6)


def test_a_filter_applies_to_tokens_that_the_previous_filter_left():
    # 0.4 of the 0.85 that top_k leaves is 0.47: it holds top_p alone.
    assert kept(LOGITS, top_k=3, top_p=0.45) == [1]
    assert kept(LOGITS, top_p=0.45) == [1, 3]


def nucleus_by_definition(logits, top_p):
    weights = np.exp(np.float64(np.float32(logits)) - np.max(logits))
    order = np.argsort(-weights, kind="stable")
    cumulative = np.cumsum(weights[order])
    return sorted(order[: 1 + int(np.sum(cumulative < top_p * cumulative[-1]))].tolist())


@settings(max_examples=150)
@given(
    st.integers(0, 2**32),
    st.sampled_from([3, 40, 700, 5000]),
    st.sampled_from([0.1, 1.0, 3.0, 10.0]),
    st.integers(1, 99),
)
def test_top_p_is_its_definition_whatever_the_distribution(seed, size, spread, percent):
    logits = np.random.default_rng(seed).standard_normal(size).astype(np.float32) * spread
    top_p = percent / 100 + 0.00123
    found = set(kept(logits, top_p=top_p))
    expected = set(nucleus_by_definition(logits, top_p))
    # A sum of float32 weights may fall on the other side of the border: by one token, if at all.
    assert len(found ^ expected) <= (size > 1000)


@settings(max_examples=100)
@given(st.integers(0, 2**32), st.sampled_from([5, 300, 3000]), st.integers(1, 2000))
def test_top_k_is_its_definition_with_many_equal_logits(seed, size, k):
    logits = np.random.default_rng(seed).integers(-20, 3, size).astype(np.float32)
    expected = np.argsort(-logits, kind="stable")[:k]
    assert kept(logits, top_k=k) == sorted(expected.tolist())


@pytest.mark.torch
@settings(max_examples=60)
@given(
    st.integers(0, 2**32),
    st.sampled_from([30, 1000, 4000]),
    st.sampled_from([1.0, 3.0]),
    st.sampled_from(
        [
            {"temperature": 0.7},
            {"top_k": 7},
            {"top_p": 0.83},
            {"min_p": 0.07},
            {"typical_p": 0.77},
            {"temperature": 1.4, "top_k": 25, "top_p": 0.91},
            {"top_k": 25, "top_p": 0.91, "min_p": 0.02, "typical_p": 0.83},
            {"temperature": 0.6, "top_p": 0.97, "typical_p": 0.5},
        ]
    ),
)
def test_filters_agree_with_those_of_transformers(seed, size, spread, options):
    logits = np.random.default_rng(seed).standard_normal(size).astype(np.float32) * spread
    expected = by_transformers(logits, options)
    found = probabilities(logits, SamplingParams(**options))
    # A token at the border of float32 sums may differ; it is the least likely one of those kept.
    differing = np.flatnonzero((found > 0) != (expected > 0))
    assert len(differing) <= (size > 1000)
    if len(differing) == 0:
        np.testing.assert_allclose(found, expected, rtol=2e-5)


def by_transformers(logits, options):
    torch = pytest.importorskip("torch")
    import transformers

    torch.set_num_threads(1)
    warpers = {
        "temperature": transformers.TemperatureLogitsWarper,
        "top_k": transformers.TopKLogitsWarper,
        "top_p": transformers.TopPLogitsWarper,
        "min_p": transformers.MinPLogitsWarper,
        "typical_p": transformers.TypicalLogitsWarper,
    }
    scores = torch.tensor(logits)[None]
    for name, value in options.items():
        scores = warpers[name](value)(None, scores)
    return torch.softmax(scores.double(), -1)[0].numpy()


class Watched(np.ndarray):
    """Notes how many numbers each sort has."""

    sorted_counts: list[int] = []

    def argsort(self, *args, **options):
        self.sorted_counts.append(self.size)
        return super().argsort(*args, **options)


@pytest.mark.parametrize("filters", [{"top_k": 40}, {"top_p": 0.9}, {"top_k": 40, "top_p": 0.9}])
def test_a_large_vocabulary_is_not_sorted_as_a_whole(filters, monkeypatch):
    monkeypatch.setattr(Watched, "sorted_counts", [])
    logits = np.random.default_rng(0).normal(0, 3, 150_000).astype(np.float32)
    expected = probabilities(logits, SamplingParams(**filters))
    found = weigh(logits.copy().view(Watched), float(logits.max()), SamplingParams(**filters))
    assert np.count_nonzero(found[1]) == np.count_nonzero(expected)
    assert Watched.sorted_counts
    assert max(Watched.sorted_counts) < 2000


def test_the_likeliest_token_is_taken_without_a_softmax(monkeypatch):
    monkeypatch.setattr(np, "exp", None)
    greedy = SamplingParams(temperature=0), SamplingParams(top_k=1)
    rows = [SampleRow(params, [], [], (), 0, 1) for params in greedy]
    logits = np.array([[1, 3, 2], [4, 3, 2]], np.float32)
    assert [one.token_id for one in sample(logits, rows)] == [1, 0]
