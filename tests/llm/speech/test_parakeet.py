"""Parakeet (CTC) against transformers: features, logits, tokens, times of words, damaged files."""

import json

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
from mindspore_serving.llm.speech.transducer import TransducerRunner
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


@pytest.mark.parametrize("kind", ["TDT", "RNNT"])
def test_tokens_of_transducers_are_those_of_transformers(tmp_path, kind):
    reference = hearing.make_parakeet(tmp_path, kind)
    model = open_speech_model(tmp_path)
    runner = TransducerRunner(model, F32)
    written, durations = set(), set()
    for length in LENGTHS:
        features = torch.tensor(normalised_log_mel(sound(length), 80))[None]
        frames = len(runner.compute(sound(length)))
        answer = reference.generate(input_features=features, max_new_tokens=10 * frames - 1)
        emitted = answer.sequences[0].tolist()[1:]
        begins = answer.durations[0].cumsum(0).tolist()  # of the token behind
        expected = [pair for pair in zip(emitted, begins, strict=False) if pair[0] != 268]
        tokens = runner.read(sound(length))
        assert [(token.token, token.begin) for token in tokens] == expected
        written.update(emitted)
        durations.update(answer.durations[0].tolist()[1:])
    assert 268 in written
    assert len(written) > 1
    assert len(durations) > 1
    runner.close()


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


@pytest.mark.parametrize("kind", ["CTC", "TDT"])
def test_recordings_are_answered_with_times_and_other_fields_refused(tmp_path, kind):
    hearing.make_parakeet(tmp_path, kind)
    client = SoundClient(SpeechEngine(str(tmp_path), F32, lambda: None))
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
    ("kind", "changes", "problem"),
    [
        ("CTC", {"encoder_config": None}, "has no encoder_config"),
        ("CTC", {"pad_token_id": 9999}, "pad_token_id is 9999"),
        ("CTC", {"vocab_size": 5}, r"weight' is \[269, 32, 1\], expected \[5, 32, 1\]"),
        ("CTC", {"hidden_act": "relu"}, "hidden_act is 'relu'"),
        ("CTC", {"subsampling_factor": 6}, "subsampling_factor is 6"),
        ("CTC", {"subsampling_factor": 4}, "linear.weight"),
        ("CTC", {"num_hidden_layers": 3}, "no tensor 'encoder.layers.2"),
        ("CTC", {"num_hidden_layers": 10**6}, "num_hidden_layers is 1000000"),
        ("CTC", {"num_mel_bins": 2**40}, "num_mel_bins"),
        ("CTC", {"conv_kernel_size": 8}, "odd sizes"),
        ("TDT", {"durations": [0, 2, 4]}, r"durations are \[0, 2, 4\], expected 0, 1, 2"),
        ("TDT", {"durations": 5}, "durations are 5"),
        ("TDT", {"blank_token_id": "last"}, "blank_token_id is 'last'"),
        ("TDT", {"num_decoder_layers": 3}, "no tensor 'decoder.lstm.weight_ih_l2'"),
        ("TDT", {"max_symbols_per_step": 10**6}, "max_symbols_per_step"),
    ],
)
def test_damaged_settings_are_refused(tmp_path, kind, changes, problem):
    hearing.make_parakeet(tmp_path, kind)
    file = tmp_path / "config.json"
    config = json.loads(file.read_text())
    if changes.keys() <= config.keys():
        config |= changes
    else:
        config["encoder_config"] |= changes
    file.write_text(json.dumps(config))
    with pytest.raises(StartError, match=problem):
        open_speech_model(tmp_path)
