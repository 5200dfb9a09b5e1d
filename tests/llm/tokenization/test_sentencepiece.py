"""A tokenizer.model without a tokenizer.json cuts text as SentencePiece does.

The three models in `sentencepiece/`, and what their texts become, were made by the library of that
name (0.2.3), from the texts of `tokenizers_trained`: BPE with bytes and a symbol of spaces, unigram
with rules that replace characters, BPE without a space before the text.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from mindspore_serving.errors import StartError
from mindspore_serving.llm.tokenization.tokenizer import Tokenizer, has_tokenizer

MODELS = Path(__file__).parent / "sentencepiece"
EXPECTED = json.loads((MODELS / "expected.json").read_text())


def directory(
    path: Path, model: str = "bpe", config: dict[str, Any] | None = None, **files: Any
) -> Path:
    shutil.copyfile(MODELS / f"{model}.model", path / "tokenizer.model")
    (path / "tokenizer_config.json").write_text(json.dumps(config or {}))
    for name, content in files.items():
        (path / f"{name}.json").write_text(json.dumps(content))
    return path


@pytest.mark.parametrize("model", EXPECTED)
def test_texts_become_the_tokens_of_the_library(model: str, tmp_path: Path) -> None:
    tokenizer = Tokenizer.open(directory(tmp_path, model))
    for text, ids in EXPECTED[model]:
        assert tokenizer.encode(text, add_special=False) == ids, text


@pytest.mark.parametrize("model", ["bpe", "gemma"])
def test_tokens_become_the_texts_again(model: str, tmp_path: Path) -> None:
    tokenizer = Tokenizer.open(directory(tmp_path, model))
    for text, ids in EXPECTED[model]:
        assert tokenizer.decode(ids, skip_special_tokens=False) == text


@pytest.mark.parametrize(
    "config",
    [
        {"legacy": True},
        # Each text between special tokens is one of the library's.
        {"tokenizer_class": "Telechat2Tokenizer"},
        {"tokenizer_class": "PanguTokenizer"},
    ],
)
def test_a_space_comes_before_the_text_alone_or_behind_each_special_token(
    config: dict[str, Any], tmp_path: Path
) -> None:
    text = "a<|im_start|>a"
    plain = Tokenizer.open(directory(tmp_path)).encode(text, add_special=False)
    assert plain[0] != plain[2]
    legacy = Tokenizer.open(directory(tmp_path, config=config))
    again = legacy.encode(text, add_special=False)
    assert again[0] == again[2] == plain[0]


@pytest.mark.parametrize(
    ("config", "before", "after"),
    [
        ({}, [1], []),
        ({"add_bos_token": False}, [], []),
        ({"add_eos_token": True}, [1], [2]),
    ],
)
def test_tokens_around_a_text_are_an_option(
    config: dict[str, Any], before: list[int], after: list[int], tmp_path: Path
) -> None:
    tokenizer = Tokenizer.open(directory(tmp_path, config=config))
    bare = tokenizer.encode("the sea", add_special=False)
    assert tokenizer.encode("the sea") == [*before, *bare, *after]


def test_tokens_of_neighbouring_files_are_added(tmp_path: Path) -> None:
    size = Tokenizer.open(directory(tmp_path)).vocab_size
    end = {"content": "<|im_end|>", "special": True}
    config = {"added_tokens_decoder": {str(size + 1): end}, "eos_token": "<|im_end|>"}
    tokenizer = Tokenizer.open(directory(tmp_path, config=config, added_tokens={"<pad>": size}))
    assert tokenizer.encode("<pad><|im_end|>", add_special=False) == [size, size + 1]
    assert tokenizer.is_special(size + 1)
    assert tokenizer.eos_ids == (size + 1,)


def test_a_tokenizer_json_comes_first(tmp_path: Path) -> None:
    inner = {"model": {"type": "WordLevel", "vocab": {"sea": 0}, "unk_token": "sea"}}
    tokenizer = Tokenizer.open(directory(tmp_path, tokenizer={"version": "1.0", **inner}))
    assert tokenizer.encode("sea") == [0]


def test_a_class_that_changes_ids_is_refused_with_advice(tmp_path: Path) -> None:
    config = {"tokenizer_class": "XLMRobertaTokenizerFast"}
    with pytest.raises(StartError, match=r"'XLMRobertaTokenizer', whose ids may .* LlamaTokenizer"):
        Tokenizer.open(directory(tmp_path, config=config))


@pytest.mark.parametrize("content", [b"\x00", b"IQ== 0\nIg== 1\n", b"\x0a\xff\xff\xff\xff\x0f"])
def test_a_file_that_is_no_model_of_sentencepiece_is_refused(
    content: bytes, tmp_path: Path
) -> None:
    """As Llama 3's original one, which is tiktoken's."""
    (tmp_path / "tokenizer.model").write_bytes(content)
    assert has_tokenizer(tmp_path)
    with pytest.raises(StartError, match="tokenizer.model is no SentencePiece model"):
        Tokenizer.open(tmp_path)


@pytest.mark.parametrize("files", [{"added_tokens": {"<pad>": "x"}}, {"added_tokens": {"<p>": -1}}])
def test_added_tokens_without_an_id_are_refused(files: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(StartError, match=r"added_tokens.json.*expected an id"):
        Tokenizer.open(directory(tmp_path, **files))
