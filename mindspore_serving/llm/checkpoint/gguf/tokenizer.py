"""The tokenizer of a GGUF file as tokenizer.json of the `tokenizers` library.

Kinds are those of `tokenizer.ggml.model`: gpt2 (byte-level BPE), llama (SentencePiece's BPE, whose
merges follow from scores), gemma4 (the same with merges in the file), t5 (SentencePiece's unigram)
and bert (WordPiece).
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import numpy as np

from mindspore_serving import log
from mindspore_serving.errors import StartError
from mindspore_serving.llm.checkpoint.gguf.pre_tokenizers import (
    BEGINNINGS,
    BEGINS_WITH_BOS,
    COMPOSES,
    IGNORES_MERGES,
    patterns_of,
)

KEYS = "tokenizer.ggml."
NORMAL, UNKNOWN, CONTROL, USER = 1, 2, 3, 4  # tokenizer.ggml.token_type
SPACE = "\u2581"  # SentencePiece's
Json = dict[str, Any]
Merges: TypeAlias = list[str] | list[list[str]]  # "piece piece" is faster to read than two texts


class TokenizerSource(Protocol):
    """A file with the metadata of a tokenizer under GGUF's keys."""

    path: Path
    metadata: dict[str, Any]

    def array(self, key: str) -> list[Any]: ...

    def texts(self, key: str) -> list[str]: ...


def tokenizer_of(file: TokenizerSource) -> Json:
    """Build tokenizer.json.  Raises StartError naming what is missing, broken or unsupported."""
    kind = file.metadata.get(f"{KEYS}model")
    build = KINDS.get(str(kind))
    if build is None:
        raise StartError(
            f"{file.path} has a tokenizer of kind {kind!r}, expected one of {', '.join(KINDS)}"
        )
    vocabulary = _Vocabulary(file)
    parts = build(vocabulary)
    begin, end = vocabulary.added_ids(*ADDED.get(str(kind), (False, False)))
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": vocabulary.added_tokens(),
        "post_processor": template(vocabulary.tokens, begin, end),
        **parts,
    }


def warn_without_rule(file: TokenizerSource) -> None:
    """Log that a file does not say how its texts are split."""
    if file.metadata.get(f"{KEYS}model") == "gpt2" and f"{KEYS}pre" not in file.metadata:
        log.warning("%s has no pre-tokenizer rule; that of GPT-2 is used", file.path)


def added_token(index: int, content: str, *, is_special: bool) -> Json:
    """Return the entry of a token that is matched in a text before it is split."""
    flags = dict.fromkeys(("lstrip", "rstrip", "normalized"), False)
    # ChatGLM's "sop" must not match in "philosophy".
    is_word = is_special and content.isascii() and content.isalpha()
    return {
        "id": index, "content": content, "special": is_special, "single_word": is_word, **flags
    }  # fmt: skip


class _Vocabulary:
    """Arrays of the file with an element per token."""

    def __init__(self, file: TokenizerSource) -> None:
        self.file = file
        self.tokens: list[str] = file.texts(f"{KEYS}tokens")
        self.types = self._of_tokens("token_type") or [1] * len(self.tokens)
        self.ids = {token: index for index, token in enumerate(self.tokens)}

    def option(self, name: str, default: object = None) -> Any:
        return self.file.metadata.get(f"{KEYS}{name}", default)

    def scores(self) -> list[float]:
        scores = self._of_tokens("scores")
        if not scores:
            raise StartError(f"{self.file.path} has no {KEYS}scores, which its tokenizer needs")
        return scores

    def merges(self) -> Merges:
        """Return the merges whose pieces and results are tokens."""
        ids, usable = self.ids, []
        for text in self.file.texts(f"{KEYS}merges"):
            first, _, second = text.partition(" ")
            if not second or " " in second:
                raise StartError(f"{self.file.path} has a merge {text!r}, expected two pieces")
            if first in ids and second in ids and first + second in ids:
                usable.append(text)
        return usable if _are_readable(usable) else [text.split(" ") for text in usable]

    def added_tokens(self) -> list[Json]:
        """Return the tokens that are matched in a text before it is split."""
        return [
            added_token(index, self.tokens[index], is_special=kind != USER)
            for index, kind in enumerate(self.types)
            if kind in (UNKNOWN, CONTROL, USER) and self.tokens[index]
        ]

    def added_ids(self, begins: bool, ends: bool) -> tuple[list[int], list[int]]:
        """Return the tokens before and after a text.

        Options of the file take precedence, except over tokens that models of the kind always have.
        """
        begins = begins or self.option("pre") in BEGINS_WITH_BOS
        around = []
        for role, alias, is_default in (("bos", "cls", begins), ("eos", "seperator", ends)):
            token_id = self.option(f"{role}_token_id", self.option(f"{alias}_token_id"))
            is_added = self.option(f"add_{role}_token", is_default)
            around.append([token_id] if is_added and self._is_id(token_id) else [])
        always = [self.ids.get(token) for token in BEGINNINGS.get(str(self.option("pre")), ())]
        return [index for index in always if index is not None] or around[0], around[1]

    def unknown(self) -> int | None:
        token_id = self.option("unknown_token_id")
        return token_id if self._is_id(token_id) else None

    def _is_id(self, value: object) -> bool:
        return type(value) is int and 0 <= value < len(self.tokens)

    def _of_tokens(self, name: str) -> list[Any]:
        if f"{KEYS}{name}" not in self.file.metadata:
            return []
        values = self.file.array(f"{KEYS}{name}")
        if len(values) != len(self.tokens):
            raise StartError(
                f"{self.file.path} has {len(values)} {KEYS}{name}, expected {len(self.tokens)}"
            )
        return values


def _byte_level(vocabulary: _Vocabulary) -> Json:
    name = vocabulary.option("pre")
    path = str(vocabulary.file.path)
    is_ranked = vocabulary.option("merges") is None and vocabulary.option("scores") is not None
    merges = _merges_of(vocabulary) if is_ranked else vocabulary.merges()
    pieces = [_split(pattern) for pattern in patterns_of(name or "default", path)]
    is_spaced = bool(vocabulary.option("add_space_prefix", False))
    to_bytes = {"type": "ByteLevel", "add_prefix_space": is_spaced, "trim_offsets": True}
    to_bytes["use_regex"] = False
    return {
        "normalizer": {"type": "NFC"} if name in COMPOSES else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*pieces, to_bytes]},
        "decoder": dict(to_bytes),
        "model": _bpe(vocabulary, merges, ignore_merges=is_ranked or name in IGNORES_MERGES),
    }


def _split(pattern: str) -> Json:
    return {
        "type": "Split",
        "pattern": {"Regex": pattern},
        "behavior": "Isolated",
        "invert": False,
    }


def _bpe(vocabulary: _Vocabulary, merges: Merges, **options: Any) -> Json:
    model = {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
    }
    return {**model, **options, "vocab": vocabulary.ids, "merges": merges}


def _sentence_piece(vocabulary: _Vocabulary, merges: Merges | None = None) -> Json:
    unknown = vocabulary.unknown()
    token = None if unknown is None else vocabulary.tokens[unknown]
    options = {"unk_token": token, "fuse_unk": True, "byte_fallback": True}
    merges = merges or _merges_of(vocabulary)
    return {**_spaced(vocabulary), "model": _bpe(vocabulary, merges, **options)}


def _sentence_piece_with_merges(vocabulary: _Vocabulary) -> Json:
    return _sentence_piece(vocabulary, vocabulary.merges())


def _merges_of(vocabulary: _Vocabulary) -> Merges:
    """Return every split of a token into two tokens, those of the best scores first.

    Splits of one token are in the order of their ids; tokens of equal scores in that of theirs.
    """
    ids, tokens = vocabulary.ids, vocabulary.tokens
    splits = [
        (index, first, second)
        for index, token in enumerate(tokens)
        if vocabulary.types[index] == NORMAL
        for at in range(1, len(token))
        if (first := ids.get(token[:at])) is not None
        and (second := ids.get(token[at:])) is not None
    ]
    whole, first, second = np.array(splits, np.int64).reshape(-1, 3).T
    scores = np.array(vocabulary.scores(), np.float64)
    order = np.lexsort((second, first, whole, -scores[whole]))
    pairs = list(zip(first[order].tolist(), second[order].tolist(), strict=True))
    texts = [f"{tokens[first]} {tokens[second]}" for first, second in pairs]
    if _are_readable(texts):
        return texts
    return [[tokens[first], tokens[second]] for first, second in pairs]


def _are_readable(merges: list[str]) -> bool:
    """Return whether the library reads all texts as two pieces; it skips "#version ..."."""
    return not any(text.count(" ") != 1 or text.startswith("#version") for text in merges)


def _spaced(vocabulary: _Vocabulary) -> Json:
    """Return the parts that mark spaces, prepend a space, and decode byte tokens."""
    is_spaced = bool(vocabulary.option("add_space_prefix", True))
    mark = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
    prefix = [{"type": "Prepend", "prepend": SPACE}] if is_spaced else []
    unmark = {"type": "Replace", "pattern": {"String": SPACE}, "content": " "}
    strip = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if is_spaced else []
    decoders = [unmark, {"type": "ByteFallback"}, {"type": "Fuse"}, *strip]
    return {
        "normalizer": {"type": "Sequence", "normalizers": [*prefix, mark]},
        "pre_tokenizer": None,
        "decoder": {"type": "Sequence", "decoders": decoders},
    }


def _unigram(vocabulary: _Vocabulary) -> Json:
    pieces = [list(pair) for pair in zip(vocabulary.tokens, vocabulary.scores(), strict=True)]
    has_bytes = "<0x00>" in vocabulary.ids
    unknown = vocabulary.unknown()
    model = {"type": "Unigram", "unk_id": unknown, "vocab": pieces, "byte_fallback": has_bytes}
    return {**_spaced(vocabulary), "model": model}


def _word_piece(vocabulary: _Vocabulary) -> Json:
    """Build WordPiece: the file marks tokens that begin a word, the library other tokens."""
    words = {}
    for index, token in enumerate(vocabulary.tokens):
        is_word = token.startswith(SPACE) or vocabulary.types[index] != 1
        words[token.removeprefix(SPACE) if is_word else f"##{token}"] = index
    unknown = vocabulary.unknown()
    is_lower = not any(
        token.removeprefix(SPACE)[:1].isupper() for token in words if token[:1] != "["
    )
    cleaning = {"clean_text": True, "handle_chinese_chars": True, "strip_accents": None}
    return {
        "normalizer": {"type": "BertNormalizer", **cleaning, "lowercase": is_lower},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {
            "type": "WordPiece",
            "unk_token": "[UNK]" if unknown is None else vocabulary.tokens[unknown],
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": words,
        },
    }


def template(
    tokens: Sequence[str] | Mapping[int, str], begin: Sequence[int], end: Sequence[int]
) -> Json | None:
    """Return the post-processor that puts tokens around a text, None without any."""
    if not begin and not end:
        return None

    def around(*sequences: str) -> list[Json]:
        items = [{"Sequence": {"id": name, "type_id": 0}} for name in sequences]
        before, after = (
            [{"SpecialToken": {"id": tokens[token], "type_id": 0}} for token in some]
            for some in (begin, end)
        )
        return [*before, *items, *after]

    used = {tokens[token]: token for token in (*begin, *end)}
    special = {name: {"id": name, "ids": [i], "tokens": [name]} for name, i in used.items()}
    return {
        "type": "TemplateProcessing",
        "single": around("A"),
        "pair": around("A", "B"),
        "special_tokens": special,
    }


KINDS: dict[str, Callable[[_Vocabulary], Json]] = {
    "gpt2": _byte_level,
    "llama": _sentence_piece,
    "gemma4": _sentence_piece_with_merges,
    "t5": _unigram,
    "bert": _word_piece,
}
# Defaults: whether a text begins with <s>, and whether it ends with </s>.
ADDED = {"llama": (True, False), "t5": (False, True), "bert": (True, True)}
