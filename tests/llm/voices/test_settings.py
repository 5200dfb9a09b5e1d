"""Which files are voices, how their phonemes become ids, and files that are broken."""

import json
import pickle

import numpy as np
import pytest

from mindspore_serving.errors import InvalidField, StartError
from mindspore_serving.file_check import find_voice
from mindspore_serving.llm.voices.runner import VoiceRunner
from mindspore_serving.llm.voices.settings import open_voices
from mindspore_serving.servable.repository import is_language_model
from tests.llm.voices.tiny import PIPER, write_kokoro, write_piper


@pytest.mark.onnx
def test_voices_are_recognised_by_their_files(tmp_path):
    file = write_piper(tmp_path)
    assert find_voice(file) == find_voice(tmp_path) == str(file)
    assert is_language_model(str(file))
    assert is_language_model(str(tmp_path))
    write_piper(tmp_path, "other")
    assert find_voice(tmp_path) == ""  # each is served by its own path
    kokoro = tmp_path / "kokoro"
    kokoro.mkdir()
    write_kokoro(kokoro)
    assert find_voice(kokoro) == str(kokoro / "model.onnx")
    assert is_language_model(str(kokoro))
    (kokoro / "servable_config.py").write_text("")
    assert not is_language_model(str(kokoro))
    (kokoro / "config.json").write_text('{"vocabulary": {}}')
    assert find_voice(kokoro) == ""
    assert not is_language_model(str(file.with_name("absent.onnx")))


@pytest.mark.onnx
def test_phonemes_of_piper_have_pads_between_them(tmp_path):
    voices = open_voices(write_piper(tmp_path))
    assert voices.to_ids(list("ab.")) == [1, 0, 5, 0, 6, 0, 4, 0, 2]
    assert voices.split(list("aéb")) == [["a", "b"]]  # a phoneme that the voice lacks is left out
    long = voices.split(list("word " * 200))
    assert max(map(len, long)) <= voices.max_phonemes
    assert "".join("".join(piece) for piece in long) == "word " * 200
    assert all(piece[-1] == " " for piece in long[:-1])
    assert [len(piece) for piece in voices.split(["a"] * 1000)] == [400, 400, 200]


@pytest.mark.onnx
def test_phonemes_of_kokoro_are_its_letters(tmp_path):
    voices = open_voices(write_kokoro(tmp_path))
    (piece,) = voices.split(list("dʒˈeɪ aʊ"))
    assert "".join(piece) == "ʤˈA W"
    assert voices.to_ids(piece)[0] == voices.to_ids(piece)[-1] == 0
    assert voices.style("bm_two", 3)[0, 0] == pytest.approx(4e-5)
    assert voices.style("af_one", 9999)[0, 0] == pytest.approx(509e-5)
    assert voices.read_as("af_one", "").language == "en-us"
    assert voices.read_as("bm_two", "").language == "en"  # as espeak-ng calls it
    assert voices.read_as("jf_three", "fr-fr").language == "fr"
    with pytest.raises(InvalidField, match="jf_three has none here, expected one of en-gb"):
        voices.read_as("jf_three", "")
    with pytest.raises(InvalidField, match="is 'xx', expected one of"):
        voices.read_as("af_one", "xx")


@pytest.mark.onnx
def test_speakers_of_piper_are_voices_and_the_default_is_first(tmp_path):
    names = {"ann": 0, "bob": 1, "eve": 2}
    path = write_piper(tmp_path, num_speakers=3, speaker_id_map=names, default_speaker_id=1)
    assert open_voices(path).voices == ("bob", "ann", "eve")


@pytest.mark.onnx
@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"audio": {}}, "missing required field `sample_rate`"),
        ({"audio": {"sample_rate": 10}}, "sample_rate is 10, expected 8,000"),
        ({"phoneme_type": "pinyin"}, "phoneme_type is 'pinyin', expected espeak or text"),
        ({"phoneme_id_map": {"_": [0], "^": [1]}}, "phoneme_id_map has no '\\$'"),
        ({"num_symbols": 7}, "expected 0 to 6"),
        ({"num_speakers": 2, "speaker_id_map": {"ann": 5}}, "'ann' is 5, expected 0 to 1"),
    ],
)
def test_settings_of_piper_that_are_wrong_are_named(tmp_path, changes, problem):
    file = write_piper(tmp_path)
    file.with_name("tiny.onnx.json").write_text(json.dumps({**PIPER, **changes}))
    with pytest.raises(StartError, match=problem):
        open_voices(file)


@pytest.mark.onnx
def test_voices_of_kokoro_that_are_broken_are_refused(tmp_path):
    file = write_kokoro(tmp_path) / "voices-v1.0.bin"
    for content in (b"", b"PK\x03\x04", pickle.dumps({"a": 1})):
        file.write_bytes(content)
        with pytest.raises(StartError, match="no file of voices"):
            open_voices(tmp_path)
    for styles in (
        {"a": np.array([["x"]], object)},
        {"a": np.full((3, 4), np.nan)},
        {"a": np.ones((3, 4)), "b": np.ones((3, 5))},
    ):
        with file.open("wb") as opened:
            np.savez(opened, **styles)
        with pytest.raises(StartError, match="no file of voices|broken voices"):
            open_voices(tmp_path)
    (tmp_path / "config.json").write_text('{"vocab": {"a": 0}}')
    with pytest.raises(StartError, match="a number from 1"):
        open_voices(tmp_path)


@pytest.mark.onnx
def test_models_that_are_broken_or_of_another_kind_are_refused(tmp_path):
    file = write_piper(tmp_path)
    several = write_piper(tmp_path, "several", num_speakers=2)
    kokoro = tmp_path / "kokoro"
    kokoro.mkdir()
    write_kokoro(kokoro)
    whole = file.read_bytes()
    for content, problem in (
        (whole[:-40], "is broken"),
        (b"", "is empty"),
        (b"version https://git-lfs.github.com/spec/v1\nsize 5\n", "Git LFS pointer"),
        ((kokoro / "model.onnx").read_bytes(), "those of a model of Piper are"),
        (several.read_bytes(), "has the inputs .*sid"),
    ):
        file.write_bytes(content)
        with pytest.raises(StartError, match=problem):
            VoiceRunner(open_voices(file), 1)
