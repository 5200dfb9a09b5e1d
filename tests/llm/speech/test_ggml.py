"""Files of whisper.cpp: the same model as the directory that they were written from."""

import json
import struct

import numpy as np
import pytest
import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from mindspore_serving.cli.show import describe
from mindspore_serving.errors import StartError
from mindspore_serving.file_check import is_speech_file
from mindspore_serving.llm.checkpoint.ranks import SPELLING
from mindspore_serving.llm.checkpoint.whisper_ggml import LANGUAGES
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.sounds.features import log_mel
from mindspore_serving.llm.speech.runner import SpeechRunner
from mindspore_serving.llm.speech.settings import is_speech, open_speech_model
from mindspore_serving.servable.repository import is_language_model
from tests.llm import hearing
from tests.llm.speech.test_equal import logits_of, sound

pytestmark = pytest.mark.torch
NUM_TEXT, VOCABULARY = 50_257, 51_865
MARKS = ("translate", "transcribe", "startoflm", "startofprev", "nospeech", "notimestamps")
NUM_LANGUAGES = 99


def write_tokenizer(directory, codes):
    """A tokenizer of bytes and of pairs of bytes, as many as Whisper has tokens, and its marks."""
    letters = list(SPELLING.values())
    pairs = [(a, b) for a in letters for b in letters][: NUM_TEXT - len(letters)]
    vocabulary = {
        text: number for number, text in enumerate([*letters, *(a + b for a, b in pairs)])
    }
    tokenizer = Tokenizer(models.BPE(vocabulary, pairs))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    marks = ["endoftext", "startoftranscript", *codes, *MARKS]
    tokenizer.add_special_tokens([f"<|{name}|>" for name in marks])
    tokenizer.save(str(directory / "tokenizer.json"))


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return tmp_path_factory.mktemp("whisper")


@pytest.fixture(scope="module")
def reference(directory):
    write_tokenizer(directory, LANGUAGES[:NUM_LANGUAGES])
    torch.manual_seed(0)
    sizes = {**hearing.SIZES, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64}  # blocks of 32
    config = transformers.WhisperConfig(**sizes, vocab_size=VOCABULARY)
    model = transformers.WhisperForConditionalGeneration(config).eval()
    model.save_pretrained(directory)
    return model


@pytest.fixture(scope="module")
def model(reference, directory):
    return open_speech_model(directory)


@pytest.fixture(scope="module")
def content(model, tmp_path_factory):
    """Bytes of a file."""
    path = tmp_path_factory.mktemp("ggml") / "ggml-tiny.bin"
    hearing.write_ggml(model, path)
    return path.read_bytes()


@pytest.mark.parametrize(
    ("kind", "bound"), [("F32", 1e-4), ("F16", 0.02), ("Q8_0", 0.15), ("Q5_0", 1.0)]
)
def test_a_file_is_the_same_model(model, reference, tmp_path, kind, bound):
    path = tmp_path / "ggml-tiny.bin"
    hearing.write_ggml(model, path, kind)
    assert is_speech(path)
    assert is_language_model(str(path))
    read = open_speech_model(path)
    assert read.sizes == model.sizes
    assert read.tokens.languages == model.tokens.languages
    for name in ("start", "end", "transcribe", "translate", "previous", "no_speech", "first_time"):
        assert getattr(read.tokens, name) == getattr(model.tokens, name)
    text = "ein Satz, 日本"
    ids = model.tokenizer.encode(text, add_special=False)
    assert read.tokenizer.encode(text, add_special=False) == ids
    assert read.tokenizer.decode(ids) == text
    runner = SpeechRunner(read, EngineConfig(dtype="f32"), 1)
    features = log_mel(sound(2), 80)
    runner.encode(features, 0)
    logits = runner.start(0, [1, 2, 3], [2])
    runner.close()
    assert np.abs(logits[0] - logits_of(reference, features, [1, 2, 3])[-1]).max() < bound


def test_a_file_is_shown_as_a_model_of_speech(content, tmp_path):
    path = tmp_path / "ggml-tiny.bin"
    path.write_bytes(content)
    card = describe(str(path), "auto")
    assert (card["kind"], card["problem"]) == ("speech recognition model", "")
    assert len(card["languages"]) == NUM_LANGUAGES
    path.write_bytes(content[:-1])
    assert "truncated" in describe(str(path), "auto")["problem"]


@pytest.mark.parametrize("keep", [3, 30, 5000, 400_000, 2_000_000, -9])
def test_a_truncated_file_is_refused(content, tmp_path, keep):
    path = tmp_path / "ggml-tiny.bin"
    path.write_bytes(content[:keep])
    with pytest.raises(StartError, match=r"truncated|missing|expected|has no tensor"):
        open_speech_model(path)


@pytest.mark.parametrize(
    ("index", "value", "problem"),
    [
        (0, 1000, "a vocabulary of 1000 tokens is none of Whisper's"),
        (0, 1 << 30, "vocab_size is 1073741824, expected 1 to"),
        (2, -5, "d_model is -5, expected 1 to"),
        (6, 31, "text of another width"),
        (11, 128, "has 128 filters, expected 80"),
        (12, 1 << 20, "truncated"),
    ],
)
def test_hostile_sizes_are_refused_before_they_are_read(content, tmp_path, index, value, problem):
    path = tmp_path / "ggml-tiny.bin"
    changed = bytearray(content)
    struct.pack_into("<i", changed, 4 + 4 * index, value)
    path.write_bytes(changed)
    with pytest.raises(StartError, match=problem):
        open_speech_model(path)


def test_other_files_that_end_in_bin_are_none_of_whisper(tmp_path):
    path = tmp_path / "pytorch_model.bin"
    path.write_bytes(json.dumps({}).encode())
    assert not is_speech_file(path)
    assert not is_speech(tmp_path / "absent.bin")
