"""Parakeet (CTC) against transformers: features, logits, tokens, times of words, damaged files."""

import json
import shutil

import numpy as np
import pytest
import torch
import transformers

from mindspore_serving.core.llm_messages import Refused
from mindspore_serving.core.speech_messages import Heard, Transcribe, Transcribed
from mindspore_serving.errors import StartError
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.sounds.features import normalised_log_mel
from mindspore_serving.llm.speech.engine import SpeechEngine
from mindspore_serving.llm.speech.frames import FrameRunner, FrameToken, tokens_of, write
from mindspore_serving.llm.speech.pieces import SoundPiece
from mindspore_serving.llm.speech.settings import open_speech_model
from tests.llm import hearing
from tests.llm.sounding import SoundClient
from tests.llm.sounds.test_decoding import wav

pytestmark = pytest.mark.torch
F32 = EngineConfig(dtype="f32")
LENGTHS = (1600, 16_001, 23_456, 48_111)  # samples


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return tmp_path_factory.mktemp("parakeet")


@pytest.fixture(scope="module")
def reference(directory):
    return hearing.make_parakeet(directory)


@pytest.fixture(scope="module")
def model(reference, directory):
    return open_speech_model(directory)


@pytest.fixture(scope="module")
def runner(model):
    return FrameRunner(model, F32)


@pytest.fixture(scope="module")
def extractor():
    return transformers.ParakeetFeatureExtractor()


def sound(length):
    random = np.random.default_rng(length)
    loudness = np.sin(np.arange(length) / 2000) ** 2
    return (random.standard_normal(length) * loudness * 0.2).astype(np.float32)


@pytest.mark.parametrize("length", LENGTHS)
def test_features_are_those_of_transformers(extractor, length):
    inputs = extractor(sound(length), sampling_rate=16_000)
    features = normalised_log_mel(sound(length), 80)
    count = int(inputs.attention_mask.sum())
    assert features.shape == (count, 80)
    assert np.abs(features - inputs.input_features[0, :count].numpy()).max() < 1e-3


@pytest.mark.parametrize("length", LENGTHS)
def test_logits_are_those_of_transformers(runner, reference, length):
    features = torch.tensor(normalised_log_mel(sound(length), 80))[None]
    with torch.inference_mode():
        expected = reference(input_features=features).logits[0].numpy()
    logits = runner.compute(sound(length))
    assert logits.shape == expected.shape
    assert np.abs(logits - expected).max() < 1e-4


@pytest.mark.parametrize("length", LENGTHS)
def test_tokens_are_those_of_transformers(runner, model, reference, extractor, length):
    inputs = extractor(sound(length), sampling_rate=16_000)
    frames = reference.generate(**inputs)[0].tolist()
    tokens = tokens_of(runner.compute(sound(length)), model.tokens.end)
    for token in tokens:
        assert set(frames[token.begin : token.end]) == {token.token}
    written = {frame for token in tokens for frame in range(token.begin, token.end)}
    blanks = set(range(len(frames))) - written
    assert {frames[frame] for frame in blanks} <= {268}
    assert all(
        first.end < second.begin or first.token != second.token
        for first, second in zip(tokens, tokens[1:], strict=False)
    )


def test_words_have_the_times_of_their_frames(model):
    ids = {character: 259 + number for number, character in enumerate("▁abcdefgh")}
    spelt = [("▁", 2), ("a", 3), ("b", 4), ("▁", 8), ("c", 9), ("▁", 30), ("d", 31)]
    tokens = [FrameToken(ids[text], frame, frame + 1, 0.5) for text, frame in spelt]
    piece = SoundPiece(16_000, 16_000 + 16_000 * 3)
    text = write(tokens, piece, model, has_times=True)
    words = [[(word.text, word.start, word.end) for word in row.words] for row in text.segments]
    assert words == [[(" ab", 1.16, 1.4), (" c", 1.64, 1.8)], [(" d", 3.4, 3.56)]]
    assert [(row.text, row.start, row.end) for row in text.segments] == [
        (" ab c", 1.16, 1.8),
        (" d", 3.4, 3.56),
    ]
    assert [token for row in text.segments for token in row.tokens] == [ids[c] for c, _ in spelt]
    assert text.segments[0].words[0].probability == 0.5
    (whole,) = write(tokens, piece, model, has_times=False).segments
    assert (whole.text, whole.start, whole.end) == (" ab c d", 1.0, 4.0)
    assert write([], piece, model, has_times=True).segments == []


def test_recordings_are_answered_with_times_and_other_fields_refused(reference, directory):
    client = SoundClient(SpeechEngine(str(directory), F32, lambda: None))
    try:
        client.send(Transcribe(file=wav(seconds=62), has_times=True, has_words=True))
        client.send(Transcribe(file=wav(seconds=0.02)))
        refused = {
            "temperature": {"temperature": 0.5},
            "beam_size": {"beam_size": 2},
            "prompt": {"prompt": "Anna"},
            "language": {"language": "en"},
            "model": {"translates": True},
        }
        for fields in refused.values():
            client.send(Transcribe(file=wav(seconds=0.3), **fields))
        client.wait(2 + len(refused))
        *events, end = client.events[0]
        assert isinstance(end, Transcribed)
        assert end.seconds == 62
        assert all(isinstance(event, Heard) for event in events)
        times = [word.start for event in events for row in event.segments for word in row.words]
        assert times == sorted(times)
        assert times[-1] > 31
        assert isinstance(client.events[1][-1], Transcribed)
        for number, name in enumerate(refused, 2):
            (problem,) = client.events[number]
            assert isinstance(problem, Refused)
            assert problem.field == name
    finally:
        client.engine.close()


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"encoder_config": None}, "has no encoder_config"),
        ({"pad_token_id": 9999}, "pad_token_id is 9999"),
        ({"vocab_size": 5}, r"ctc_head.weight' is \[269, 32, 1\], expected \[5, 32, 1\]"),
        ({"hidden_act": "relu"}, "hidden_act is 'relu'"),
        ({"subsampling_factor": 6}, "subsampling_factor is 6"),
        ({"subsampling_factor": 4}, "linear.weight"),
        ({"num_hidden_layers": 3}, "no tensor 'encoder.layers.2"),
        ({"num_mel_bins": 2**40}, "num_mel_bins"),
        ({"conv_kernel_size": 8}, "odd sizes"),
    ],
)
def test_damaged_settings_are_refused(model, directory, tmp_path, changes, problem):
    damaged = tmp_path / "damaged"
    shutil.copytree(directory, damaged)
    config = json.loads((damaged / "config.json").read_text())
    if changes.keys() <= config.keys():
        config |= changes
    else:
        config["encoder_config"] |= changes
    (damaged / "config.json").write_text(json.dumps(config))
    with pytest.raises(StartError, match=problem):
        open_speech_model(damaged)
