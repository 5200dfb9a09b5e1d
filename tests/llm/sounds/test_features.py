"""Log-mel features beside those of transformers."""

import numpy as np
import pytest

from mindspore_serving.llm.sounds.features import features_of, log_mel

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("bins", [80, 128])
@pytest.mark.parametrize("count", [1, 777, 16_000 * 5 + 3, 16_000 * 30])
def test_features_are_those_of_transformers(bins, count):
    from transformers import WhisperFeatureExtractor

    sound = (np.random.default_rng(count).standard_normal(count) * 0.1).astype(np.float32)
    extractor = WhisperFeatureExtractor(feature_size=bins)
    expected = extractor(sound, sampling_rate=16_000, return_tensors="np")["input_features"][0]
    features = log_mel(sound, bins)
    assert features.shape == expected.shape == (bins, 3000)
    assert np.abs(features - expected).max() < 5e-5


def test_silence_has_the_lowest_level_everywhere():
    features = log_mel(np.zeros(16_000, np.float32), 80)
    assert np.ptp(features) == 0


def test_features_after_a_piece_are_zero_as_in_the_reference():
    sound = (np.random.default_rng(0).standard_normal(16_000) * 0.1).astype(np.float32)
    features = features_of(sound, 80)
    assert np.array_equal(features[:, :100], log_mel(sound, 80)[:, :100])
    assert not features[:, 100:].any()
