"""Tokenizers made of tiktoken files alone, against tiktoken."""

import json
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest

from mindspore_serving.errors import StartError
from mindspore_serving.llm.tokenization.tokenizer import Tokenizer, has_tokenizer
from tests.llm.tokenization.test_chatglm import LANGUAGES
from tests.llm.tokenizers_trained import TEXTS

tiktoken = pytest.importorskip("tiktoken", reason="it is the reference")
HAN = r"[\p{Han}]+"
UPPER, LOWER = (r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]",
                r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]")  # fmt: skip
ENDINGS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
OTHERS = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
KIMI = "|".join(
    (HAN, rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+{ENDINGS}?",
     rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*{ENDINGS}?", r"\p{N}{1,3}", OTHERS)
)  # fmt: skip
QWEN = rf"{ENDINGS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{OTHERS}"
KINDS = {
    "kimi": ("tiktoken.model", "TikTokenTokenizer", KIMI),
    "qwen": ("qwen.tiktoken", "QWenTokenizer", QWEN),
}


@pytest.fixture(scope="module")
def ranks() -> dict[bytes, int]:
    """Tokens of two to six bytes of the texts, the most frequent first, after the bytes."""
    from collections import Counter

    counts: Counter[bytes] = Counter()
    for text in (*TEXTS, *LANGUAGES):
        data = text.encode()
        for size in (2, 3, 4, 6):
            counts.update(data[at : at + size] for at in range(len(data) - size + 1))
    found = [bytes([byte]) for byte in range(256)]
    found += [token for token, count in counts.most_common(700) if len(token) > 1 and count > 1]
    return {token: rank for rank, token in enumerate(found)}


def write(
    path: Path, kind: str, ranks: dict[bytes, int], added: dict[int, str] | None = None
) -> Path:
    file, tokenizer_class, _ = KINDS[kind]
    lines = [f"{b64encode(token).decode()} {rank}" for token, rank in ranks.items()]
    (path / file).write_text("\n".join(lines) + "\n")
    options: dict[str, Any] = {"tokenizer_class": tokenizer_class}
    options["added_tokens_decoder"] = {
        str(index): {"content": text, "special": text.startswith("[")}
        for index, text in (added or {}).items()
    }
    (path / "tokenizer_config.json").write_text(json.dumps(options))
    return path


def reference(kind: str, ranks: dict[bytes, int], special: dict[str, int]) -> Any:
    return tiktoken.Encoding(
        kind, pat_str=KINDS[kind][2], mergeable_ranks=ranks, special_tokens=special
    )


@pytest.mark.parametrize("kind", KINDS)
def test_texts_become_the_tokens_of_tiktoken(
    kind: str, ranks: dict[bytes, int], tmp_path: Path
) -> None:
    tokenizer = Tokenizer.open(write(tmp_path, kind, ranks))
    expected = reference(kind, ranks, {})
    for text in (*TEXTS, *LANGUAGES):
        if kind == "qwen":
            from unicodedata import normalize

            text = normalize("NFC", text)
        ids = expected.encode(text, disallowed_special=())
        assert tokenizer.encode(text) == ids, text
        assert tokenizer.decode(ids) == text


def test_special_tokens_of_kimi_are_listed_or_reserved(
    ranks: dict[bytes, int], tmp_path: Path
) -> None:
    count = len(ranks)
    added = {count: "[BOS]", count + 1: "<|tool_calls_section_begin|>"}
    tokenizer = Tokenizer.open(write(tmp_path, "kimi", ranks, added))
    assert tokenizer.vocab_size == count + 256
    special = {text: index for index, text in added.items()}
    special[f"<|reserved_token_{count + 9}|>"] = count + 9
    text = f"[BOS]Hello<|tool_calls_section_begin|>x<|reserved_token_{count + 9}|>"
    expected = reference("kimi", ranks, special).encode(text, allowed_special="all")
    assert tokenizer.encode(text) == expected
    assert tokenizer.decode(expected) == "Hello<|tool_calls_section_begin|>x"


def test_special_tokens_of_qwen_follow_the_ranks(ranks: dict[bytes, int], tmp_path: Path) -> None:
    tokenizer = Tokenizer.open(write(tmp_path, "qwen", ranks))
    assert tokenizer.vocab_size == len(ranks) + 208
    assert tokenizer.token_id("<|im_end|>") == len(ranks) + 2
    assert tokenizer.token_id("<|extra_204|>") == len(ranks) + 207


def test_a_tokenizer_whose_rule_is_code_is_refused(ranks: dict[bytes, int], tmp_path: Path) -> None:
    write(tmp_path, "kimi", ranks)
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "MyTokenizer"}')
    assert has_tokenizer(tmp_path)
    with pytest.raises(StartError, match="tokenizer_class 'MyTokenizer', whose rule for splitting"):
        Tokenizer.open(tmp_path)


def test_added_tokens_of_other_ids_are_refused(ranks: dict[bytes, int], tmp_path: Path) -> None:
    write(tmp_path, "kimi", ranks, {5: "[BOS]"})
    with pytest.raises(StartError, match="has added tokens {5: '\\[BOS\\]'}, expected 256 after"):
        Tokenizer.open(tmp_path)


def test_several_vocabularies_are_refused(ranks: dict[bytes, int], tmp_path: Path) -> None:
    write(tmp_path, "qwen", ranks)
    (tmp_path / "other.tiktoken").touch()
    with pytest.raises(StartError, match=r"several vocabularies \(other.tiktoken, qwen.tiktoken\)"):
        Tokenizer.open(tmp_path)
