"""Byte-level BPE in GGUF files cuts text by the rule that they name, as models' own files do."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from mindspore_serving.llm.checkpoint.gguf.pre_tokenizers import PATTERNS
from mindspore_serving.llm.checkpoint.ranks import SPELLING
from tests.llm.gguf_files import write_tokenizer
from tests.llm.tokenization.test_gguf_tokenizer import (
    CONTROL,
    NORMAL,
    OTHERS,
    assert_same,
    by_id,
    merges_of,
    opened,
)
from tests.llm.tokenizers_trained import TEXTS


def byte_level(patterns: Sequence[Any]) -> Tokenizer:
    """Trained on short texts, with one regular expression or built-in rule after another."""
    tokenizer = Tokenizer(models.BPE())
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    is_bytes = any(isinstance(rule, pre_tokenizers.ByteLevel) for rule in patterns)
    last = [] if is_bytes else [to_bytes]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*patterns, *last])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=700,
        special_tokens=["<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([*TEXTS, *OTHERS * 3], trainer)
    return tokenizer


def written(directory: Path, rule: str, source: Tokenizer) -> Path:
    return write_tokenizer(
        directory / "t.gguf",
        by_id(source),
        types=[CONTROL] * 2 + [NORMAL] * (source.get_vocab_size() - 2),
        merges=merges_of(source),
        pre=rule,
    )


def split(pattern: str) -> Any:
    return pre_tokenizers.Split(Regex(pattern), "isolated")


# As the tokenizer.json of models have them.
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
    r"\s*[\r\n]+|\s+(?!\S)|\s+"
)
GPT4O = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
HAN = r"&&[^\p{Han}]]"
KIMI = r"[\p{Han}]+|" + GPT4O.replace(r"\p{Lo}\p{M}]", r"\p{Lo}\p{M}" + HAN).replace("n/]", "n]")
BLOOM = " ?[^(\\s|[.,!?…。，、।۔،])]+"
RULES: dict[str, list[Any]] = {
    "gpt-2": [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)],
    "smollm": [
        pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
    ],
    "llama-bpe": [split(LLAMA3)],
    "falcon-h1": [split(LLAMA3)],  # so llama.cpp cuts it
    "qwen2": [split(LLAMA3.replace("{1,3}", ""))],
    "minicpm5": [split(r"\p{N}{1,3}"), split(LLAMA3.replace("{1,3}", "+"))],
    "falcon": [
        pre_tokenizers.Punctuation("contiguous"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        pre_tokenizers.Digits(individual_digits=False),
        split("[0-9][0-9][0-9]"),
    ],
    "bloom": [split(BLOOM)],
    "viking": [split(BLOOM), pre_tokenizers.Digits(individual_digits=True)],
    "tiny_aya": [split(r"\d{1,3}(?=(?:\d{3})*\b)"), split(GPT4O)],
    "deepseek-llm": [
        split(r"[\r\n]"),
        split(r"\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-Ⴥꭰ-ꮿﬀ-ﬆ]+"),
        split(r"\s?[!-/:-~！-／：-～‘-‟　-。]+"),
        split(r"\s+$"),
        split("[一-龥ࠀ-一가-퟿]+"),
        pre_tokenizers.Digits(individual_digits=True),
    ],
}


@pytest.mark.parametrize("rule", [rule for rule in RULES if rule not in ("gpt-2", "smollm")])
def test_byte_level_bpe_cuts_text_by_the_rule_that_the_file_names(
    rule: str, tmp_path: Path
) -> None:
    source = byte_level(RULES[rule])
    assert_same(written(tmp_path, rule, source), source, [*TEXTS, *OTHERS])


def test_kimi_cuts_text_as_tiktoken_does(tmp_path: Path) -> None:
    tiktoken = pytest.importorskip("tiktoken")
    texts = [*TEXTS, *OTHERS, "漢字WE'LLと12345", "ABc'dẽ中e国"]
    source = byte_level([split(KIMI)])
    found = opened(written(tmp_path, "kimi-k2", source))
    tokens = by_id(source)
    letters = {letter: byte for byte, letter in SPELLING.items()}
    ranks = {bytes(letters[one] for one in tokens[i]): i for i in range(2, len(tokens))}
    expected = tiktoken.Encoding("kimi", pat_str=KIMI, mergeable_ranks=ranks, special_tokens={})
    for text in texts:
        assert found.encode(text, add_special=False) == expected.encode(text), text


@pytest.mark.parametrize("rule", ["gpt-2", "smollm"])
def test_rules_split_text_as_the_library_does(rule: str) -> None:
    ours = pre_tokenizers.Sequence([split(pattern) for pattern in PATTERNS[rule]])
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    mine = pre_tokenizers.Sequence([ours, to_bytes])
    theirs = pre_tokenizers.Sequence(RULES[rule])
    for text in [*TEXTS, *OTHERS]:
        found = [piece for piece, _ in mine.pre_tokenize_str(text)]
        assert found == [piece for piece, _ in theirs.pre_tokenize_str(text)], text


@pytest.mark.parametrize("rule", PATTERNS)
def test_every_rule_is_a_pattern_that_loses_nothing(rule: str) -> None:
    ours = pre_tokenizers.Sequence([split(pattern) for pattern in PATTERNS[rule]])
    for text in [*TEXTS, *OTHERS]:
        assert "".join(piece for piece, _ in ours.pre_tokenize_str(text)) == text
