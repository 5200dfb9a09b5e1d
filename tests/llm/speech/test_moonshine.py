"""Moonshine against transformers: sounds of odd lengths, several at once, and damaged files."""

import json
import shutil

import numpy as np
import pytest
import torch

from mindspore_serving.core.llm_messages import Refused
from mindspore_serving.core.speech_messages import Transcribe, Transcribed
from mindspore_serving.errors import StartError
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.speech.batch import SpeechBatch
from mindspore_serving.llm.speech.engine import SpeechEngine
from mindspore_serving.llm.speech.moonshine import num_frames, samples_of
from mindspore_serving.llm.speech.request import SpeechRequest
from mindspore_serving.llm.speech.runner import NewTokens, SpeechRunner
from mindspore_serving.llm.speech.settings import is_speech, open_speech_model
from tests.llm import hearing
from tests.llm.sounding import SoundClient
from tests.llm.sounds.test_decoding import wav
from tests.moonshine_weights import make_moonshine_tiny
from tests.speaking import spoken, words_of

pytestmark = pytest.mark.torch
F32 = EngineConfig(dtype="f32")
LENGTHS = (900, 16_001, 23_456, 40_000)  # samples


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return tmp_path_factory.mktemp("moonshine")


@pytest.fixture(scope="module")
def reference(directory):
    return hearing.make_moonshine(directory)


@pytest.fixture(scope="module")
def model(reference, directory):
    return open_speech_model(directory)


@pytest.fixture(scope="module")
def runner(model):
    return SpeechRunner(model, F32, 4)


def sound(length):
    random = np.random.default_rng(length)
    tone = np.sin(np.arange(length) * random.uniform(0.05, 0.4)) * 0.3
    return np.round((tone + random.standard_normal(length) * 0.05) * 32767).astype(np.int16)


def floats(samples):
    return samples.astype(np.float32) / 32768


def logits_of(reference, samples, tokens):
    with torch.inference_mode():
        inputs = torch.tensor(floats(samples))[None]
        answer = reference(input_values=inputs, decoder_input_ids=torch.tensor([tokens]))
    return answer.logits[0].numpy()


@pytest.mark.parametrize("length", LENGTHS)
def test_keys_of_the_encoder_are_those_of_transformers(runner, reference, length):
    samples = sound(length)
    runner.encode(samples_of(floats(samples)), 0)
    with torch.inference_mode():
        states = reference.model.encoder(torch.tensor(floats(samples))[None]).last_hidden_state
        for layer, block in enumerate(reference.model.decoder.layers):
            expected = block.encoder_attn.k_proj(states).unflatten(-1, (4, -1)).transpose(1, 2)
            keys = runner._encoder.get_tensor(f"cross_key.{layer}").data
            assert keys.shape == expected.shape == (1, 4, num_frames(length), 8)
            assert np.abs(keys - expected.numpy()).max() < 1e-4


def test_logits_of_sounds_together_are_those_that_each_has_alone(runner, reference):
    texts = [[1, 3, 4], [1], [1, *range(5, 45)], [1, 9]]
    for key, (length, text) in enumerate(zip(LENGTHS, texts, strict=True)):
        runner.encode(samples_of(floats(sound(length))), key)
        first = runner.start(key, text, [0, len(text) - 1])
        expected = logits_of(reference, sound(length), text)[[0, len(text) - 1]]
        assert np.abs(first - expected).max() < 1e-4
    for token in (11, 12, 13):
        logits = np.concatenate(runner.step([NewTokens(key, [token]) for key in range(4)]))
        for text, length, row in zip(texts, LENGTHS, logits, strict=True):
            text.append(token)
            assert np.abs(row - logits_of(reference, sound(length), text)[-1]).max() < 1e-4
    runner.drop(0)
    (moved,) = runner.step([NewTokens(2, [16])])
    expected = logits_of(reference, sound(LENGTHS[2]), [*texts[2], 16])[-1]
    assert np.abs(moved[0] - expected).max() < 1e-4


@pytest.mark.parametrize("beam_size", [1, 2])
def test_texts_are_those_of_transformers(runner, model, reference, beam_size):
    batch = SpeechBatch(runner, model)
    texts = []
    for length in LENGTHS:
        body = Transcribe(file=b"", temperature=1e-6 if beam_size == 1 else 0, beam_size=beam_size)
        request = SpeechRequest("", body, sound(length), model)
        while not batch.has_room(beam_size):
            batch.step()
        batch.encode(request.sound())
        decoding, owner = request.begin()
        decoding._temperatures.clear()  # random weights write no text that is likely enough
        batch.add(decoding, owner)
        texts.append(decoding)
        batch.step()
    while batch.num_running:
        batch.step()
    for length, text in zip(LENGTHS, texts, strict=True):
        expected = reference.generate(
            torch.tensor(floats(sound(length)))[None], num_beams=beam_size, do_sample=False,
            max_new_tokens=model.max_text(length / 16_000, 1),
        )  # fmt: skip
        assert text.written == [token for token in expected[0].tolist()[1:] if token != 2]
        assert text.written


def test_a_sound_shorter_than_a_frame_is_followed_by_silence(runner, reference):
    padded = samples_of(floats(sound(200)))
    assert (num_frames(len(padded)), num_frames(len(padded) - 1)) == (1, 0)
    runner.encode(padded, 7)
    logits = runner.start(7, [1], [0])
    whole = np.pad(sound(200), (0, len(padded) - 200))
    assert np.abs(logits - logits_of(reference, whole, [1])).max() < 1e-4
    runner.drop(7)


SPOKEN = {
    "Good morning everyone, the weather is very nice today.": "good morning everyone",
    "I would like to have a cup of coffee and a piece of cake.": "coffee and a piece of cake",
    "My brother has lived in New York for twenty years.": "lived in new york for twenty years",
}


def test_spoken_sentences_have_the_right_words(tmp_path):
    make_moonshine_tiny(tmp_path)
    client = SoundClient(SpeechEngine(str(tmp_path), F32, lambda: None))
    try:
        for text in SPOKEN:
            client.send(Transcribe(file=spoken(text)))
        client.wait(len(SPOKEN))
        for number, known in enumerate(SPOKEN.values()):
            heard = client.events[number][:-1]
            text = "".join(row.text for event in heard for row in event.segments)
            assert known in words_of(text)
    finally:
        client.engine.close()


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"language": "en"}, "language"),
        ({"translates": True}, "model"),
        ({"prompt": "Anna"}, "prompt"),
        ({"has_times": True}, "response_format"),
    ],
)
def test_fields_without_a_use_are_refused(reference, directory, fields, name):
    client = SoundClient(SpeechEngine(str(directory), F32, lambda: None))
    try:
        client.send(Transcribe(file=wav(seconds=0.3), **fields))
        client.send(Transcribe(file=wav(seconds=0.3), temperature=1e-6))
        client.wait(2)
        (problem,), *_, end = client.events[0], client.events[1][-1]
        assert isinstance(problem, Refused)
        assert problem.field == name
        assert isinstance(end, Transcribed)
        assert (end.language, round(end.seconds, 2)) == ("", 0.3)
        assert client.engine.card.languages == ()
    finally:
        client.engine.close()


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"hidden_size": 40}, "expected"),
        ({"hidden_size": "wide"}, "hidden_size is 'wide'"),
        ({"vocab_size": 300}, r"embed_tokens.weight' is \[270, 32\], expected \[300, 32\]"),
        ({"encoder_num_key_value_heads": 2}, "encoder_num_key_value_heads is 2, expected 4"),
        ({"decoder_num_hidden_layers": 9}, "has no tensor 'model.decoder.layers.2"),
        ({"decoder_num_hidden_layers": 10**6}, "decoder_num_hidden_layers is 1000000"),
        ({"encoder_hidden_act": "relu"}, "encoder_hidden_act is 'relu'"),
        ({"max_position_embeddings": 10**9}, "max_position_embeddings is 1000000000"),
        ({"rope_parameters": {"rope_type": "yarn"}}, "rope_parameters"),
        ({"rope_parameters": {"partial_rotary_factor": -1}}, "partial_rotary_factor"),
        ({"eos_token_id": 10**6}, "eos_token_id"),
        ({"model_type": ["moonshine"]}, "d_model is None"),
    ],
)
def test_damaged_settings_are_refused(reference, directory, tmp_path, changes, problem):
    damaged = tmp_path / "damaged"
    shutil.copytree(directory, damaged)
    (damaged / "generation_config.json").unlink()
    config = json.loads((damaged / "config.json").read_text())
    (damaged / "config.json").write_text(json.dumps({**config, **changes}))
    with pytest.raises(StartError, match=problem):
        open_speech_model(damaged)
    assert is_speech(directory)
