"""Whisper's encoder and decoder against transformers, alone and together with other recordings."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import transformers
from transformers.generation.logits_process import (
    SuppressTokensAtBeginLogitsProcessor,
    SuppressTokensLogitsProcessor,
    WhisperTimeStampLogitsProcessor,
)

from mindspore_serving.core.speech_messages import Transcribe
from mindspore_serving.errors import StartError
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.sounds.features import RATE, features_of, log_mel
from mindspore_serving.llm.speech import request as requests_of_speech
from mindspore_serving.llm.speech.batch import SpeechBatch
from mindspore_serving.llm.speech.request import SpeechRequest
from mindspore_serving.llm.speech.runner import NewTokens, SpeechRunner
from mindspore_serving.llm.speech.settings import is_speech, open_speech_model
from tests.llm import hearing

pytestmark = pytest.mark.torch
F32 = EngineConfig(dtype="f32")


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return tmp_path_factory.mktemp("whisper")


@pytest.fixture(scope="module")
def reference(directory):
    return hearing.make_directory(directory)


@pytest.fixture(scope="module")
def model(reference, directory):
    return open_speech_model(directory)


@pytest.fixture(scope="module")
def runner(model):
    return SpeechRunner(model, F32, 3)


def sound(seed, seconds=2.0):
    random = np.random.default_rng(seed)
    times = np.arange(int(seconds * RATE)) / RATE
    tone = np.sin(2 * np.pi * (200 + 150 * seed) * times) * 0.3
    return (tone + random.standard_normal(len(times)) * 0.05).astype(np.float32)


def logits_of(reference, features, tokens):
    with torch.inference_mode():
        inputs = torch.tensor(features)[None]
        return (
            reference(input_features=inputs, decoder_input_ids=torch.tensor([tokens]))
            .logits[0]
            .numpy()
        )


@pytest.mark.parametrize("count", [1, 4, 5, 17, 70])
def test_logits_after_any_number_of_tokens_are_those_of_transformers(
    runner, model, reference, count
):
    features = log_mel(sound(1), 80)
    tokens = [(7 * place) % 250 for place in range(count + 3)]
    runner.encode(features, 0)
    first = runner.start(0, tokens[:count], [0, count - 1])
    later = [runner.step([NewTokens(0, [tokens[count + i]])])[0][0] for i in range(3)]
    expected = logits_of(reference, features, tokens)
    places = [0, count - 1, *range(count, count + 3)]
    assert np.abs(np.array([*first, *later]) - expected[places]).max() < 1e-4


def test_rows_of_different_lengths_are_computed_as_if_alone(runner, reference):
    recordings = [log_mel(sound(seed), 80) for seed in range(3)]
    texts = [[3, 4], [5, 6, 7, 8, 9, 10], list(range(60))]
    for row, (features, text) in enumerate(zip(recordings, texts, strict=True)):
        runner.encode(features, row)
        runner.start(row, text, [len(text) - 1])
    for token in (11, 12, 13, 14, 15):  # the longest passes a step of the tables
        logits = np.concatenate(runner.step([NewTokens(row, [token]) for row in range(3)]))
        for text in texts:
            text.append(token)
        expected = [
            logits_of(reference, features, text)[-1]
            for features, text in zip(recordings, texts, strict=True)
        ]
        assert np.abs(logits - np.array(expected)).max() < 1e-4
    runner.drop(0)
    (moved,) = runner.step([NewTokens(2, [16])])
    assert np.abs(moved[0] - logits_of(reference, recordings[2], [*texts[2], 16])[-1]).max() < 1e-4


def test_texts_of_a_search_read_the_same_sound(runner, reference):
    features = log_mel(sound(1), 80)
    runner.encode(features, 5)
    runner.start(5, [3, 4], [1])
    runner.step([NewTokens(5, [7, 8, 9], [0, 0, 0])])
    (logits,) = runner.step([NewTokens(5, [10, 11, 12], [2, 0, 2])])
    texts = [[3, 4, 9, 10], [3, 4, 7, 11], [3, 4, 9, 12]]
    expected = [logits_of(reference, features, text)[-1] for text in texts]
    assert np.abs(logits - np.array(expected)).max() < 1e-4
    runner.drop(5)
    assert runner._tables.prompts.num_cells == runner._sizes.num_frames


def transcribe(runner, model, recordings, **fields):
    """The requests and their texts; each joins while those before it are computed."""
    batch = SpeechBatch(runner, model)
    requests = [
        SpeechRequest(str(number), Transcribe(file=b"", **fields), to_samples(samples), model)
        for number, samples in enumerate(recordings)
    ]
    texts = []
    for request in requests:
        while not batch.has_room(fields.get("beam_size", 1)):
            batch.step()
        batch.encode(request.sound())
        request.language = request.language or batch.find_language()
        decoding, owner = request.begin()
        texts.append(decoding)
        batch.add(decoding, owner)
        batch.step()
    while batch.num_running:
        batch.step()
    return requests, texts


def to_samples(samples):
    return np.round(samples * 32767).astype(np.int16)


def test_texts_of_a_batch_are_those_of_transformers(runner, model, reference):
    recordings = [sound(seed) for seed in range(4)]
    _, texts = transcribe(runner, model, recordings, language="de", temperature=1e-6)
    first = model.tokens.first_time
    never = [*model.tokens.never, *range(first, model.sizes.vocab_size)]
    for samples, text in zip(recordings, texts, strict=True):
        features = features_of(to_samples(samples).astype(np.float32) / 32768, 80)
        expected = reference.generate(
            torch.tensor(features)[None], language="de", task="transcribe",
            return_timestamps=False, max_new_tokens=50, do_sample=False, num_beams=1,
            suppress_tokens=never,
        )  # fmt: skip
        tokens = [int(token) for token in expected[0] if int(token) < model.tokens.end]
        assert text.written[: len(tokens)] == tokens
        assert len(text.written) == len(tokens) or len(tokens) >= 45


@pytest.mark.parametrize("has_times", [False, True])
def test_searched_texts_are_those_of_transformers(runner, model, reference, has_times, monkeypatch):
    # A model with random weights writes no text that is likely enough at the first temperature.
    monkeypatch.setattr(requests_of_speech, "TEMPERATURES", (0.0,))
    recordings = [sound(seed) for seed in range(2)]
    options = {"language": "de", "beam_size": 3, "length_penalty": 0.6}
    model = replace(model, sizes=replace(model.sizes, max_tokens=48))  # half of them for a text
    _, texts = transcribe(runner, model, recordings, has_times=has_times, **options)
    tokens = model.tokens
    never = [*tokens.never, tokens.no_times]
    never += [] if has_times else range(tokens.first_time, model.sizes.vocab_size)
    for samples, text in zip(recordings, texts, strict=True):
        features = features_of(to_samples(samples).astype(np.float32) / 32768, 80)
        begin = len(text.prefix)
        rules = [
            SuppressTokensLogitsProcessor(never),
            SuppressTokensAtBeginLogitsProcessor(list(tokens.not_first), begin),
            *([WhisperTimeStampLogitsProcessor(reference.generation_config, begin)] * has_times),
        ]
        # Whisper's own `generate` would go on behind the last time of the text.
        expected = transformers.GenerationMixin.generate(
            reference, torch.tensor(features)[None], decoder_input_ids=torch.tensor([text.prefix]),
            max_new_tokens=model.sizes.max_tokens // 2, do_sample=False, num_beams=3,
            length_penalty=0.6, logits_processor=rules, suppress_tokens=None,
            begin_suppress_tokens=None,
        )  # fmt: skip
        answer = [token for token in expected[0].tolist()[begin:] if token != tokens.end]
        assert text.written == answer


def test_the_language_is_that_of_transformers(runner, model, reference):
    for seed in range(2):
        features = features_of(to_samples(sound(seed)).astype(np.float32) / 32768, 80)
        found = reference.detect_language(torch.tensor(features)[None])
        code = model.tokenizer.token(int(found[0]))
        ((request,), _) = transcribe(runner, model, [sound(seed)], temperature=1e-6)
        assert f"<|{request.language}|>" == code


@pytest.mark.parametrize(
    ("dtype", "bound"), [("float32", 1e-4), ("float16", 0.02), ("int8", 0.5), ("int16", 0.05)]
)
def test_ctranslate2s_files_are_the_same_model(reference, tmp_path, dtype, bound):
    hearing.write_ctranslate2(reference, tmp_path, dtype)
    assert is_speech(tmp_path)
    model = open_speech_model(tmp_path)
    runner = SpeechRunner(model, F32, 1)
    features = log_mel(sound(2), 80)
    runner.encode(features, 0)
    logits = runner.start(0, [1, 2, 3], [2])
    assert np.abs(logits[0] - logits_of(reference, features, [1, 2, 3])[-1]).max() < bound
    assert model.alignment_heads == ((0, 1), (1, 0), (1, 2))
    assert model.tokens.not_first == tuple(reference.generation_config.begin_suppress_tokens)


@pytest.mark.parametrize("keep", [3, 20, 200, 5000, -1])
def test_a_truncated_model_file_is_refused(reference, tmp_path, keep):
    hearing.write_ctranslate2(reference, tmp_path, "float32")
    file = tmp_path / "model.bin"
    file.write_bytes(file.read_bytes()[: keep if keep > 0 else -80])
    with pytest.raises(StartError, match=r"model\.bin|config\.json|safetensors"):
        open_speech_model(tmp_path)


def test_hostile_sizes_in_a_model_file_are_refused_before_they_are_read(reference, tmp_path):
    hearing.write_ctranslate2(reference, tmp_path, "float32")
    file = tmp_path / "model.bin"
    content = file.read_bytes()
    at = content.index(b"encoder/layer_0/ffn/linear_0/weight\0") + 36
    for changed, problem in (
        (b"\xff", "sizes, at most"),
        (b"\x02\xff\xff\xff\xff\xff\xff\xff\x7f", "bytes, not"),
    ):
        file.write_bytes(content[:at] + changed + content[at + len(changed) :])
        with pytest.raises(StartError, match=problem):
            open_speech_model(tmp_path)
