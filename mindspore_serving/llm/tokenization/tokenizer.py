"""Text to tokens and back, by a model directory's tokenizer.json or tokenizer.model.

Knows nothing of sampling or of chats; needs the `tokenizers` library.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import numpy as np

from mindspore_serving import file_check
from mindspore_serving.errors import StartError
from mindspore_serving.llm.checkpoint import chatglm, marian, mistral, sentencepiece, vocabularies
from mindspore_serving.llm.checkpoint.built_files import key_of, read_or_build, source_digest
from mindspore_serving.llm.checkpoint.gguf.files import has_file, read_tokenizer
from mindspore_serving.llm.checkpoint.model_files import (
    read_eos_ids,
    read_json,
    read_optional_json,
)
from mindspore_serving.llm.tokenization.decoders import (
    Config,
    DecoderChain,
    byte_level_bytes,
    fallback_byte,
)

TOKENIZER = "tokenizer.json"
TOKENIZER_FILES = (TOKENIZER, sentencepiece.NAME, marian.NAME)
_SPECIAL_NAMES = (
    "bos_token",
    "eos_token",
    "unk_token",
    "pad_token",
    "sep_token",
    "cls_token",
    "mask_token",
)


@dataclass(frozen=True, slots=True)
class TokenizedInput:
    """Tokens of one text, or of a pair of texts."""

    ids: list[int]
    types: list[int]  # token type ids: 1 in the second text
    offsets: list[tuple[int, int]]  # begin and end of each in its text, in characters
    is_special: list[bool]  # added by the tokenizer


class Tokenizer:
    """Vocabulary of a model, and how it splits text.  Threads may share it.

    Attributes:
        vocab_size: one more than the largest token id.
        eos_ids: tokens that end an answer: the eos_token, those of `read_eos_ids`, and those that
            begin a turn in chats with ChatGLM.
        special_tokens: text by the name in chat templates ("bos_token": "<s>").
        decoders: how tokens become text, as in tokenizer.json.
    """

    def __init__(
        self,
        inner: Any,
        special_tokens: Mapping[str, str] | None = None,
        eos_ids: Sequence[int] = (),
        *,
        vocab_size: int | None = None,
        digest: bytes | None = None,
    ) -> None:
        """Wrap a `tokenizers.Tokenizer`, whose truncation and padding are turned off.

        Its vocabulary is only read if `vocab_size` is not known.  Tokenizers with the same `digest`
        are the same.

        Raises StartError if its decoder is not supported.
        """
        inner.no_truncation()
        inner.no_padding()
        self._inner = inner
        decoder = b'{"type": "None"}' if inner.decoder is None else inner.decoder.__getstate__()
        self.decoders: Sequence[Config] = _flatten(json.loads(decoder))
        DecoderChain(self.decoders)  # raises for one that is not supported
        self._special_ids = frozenset(
            token_id
            for token_id, token in inner.get_added_tokens_decoder().items()
            if token.special
        )
        if vocab_size is None:
            vocab_size = 1 + max(inner.get_vocab(with_added_tokens=True).values(), default=-1)
        self.vocab_size = vocab_size
        self.digest = digest
        self.special_tokens = dict(special_tokens or {})
        eos_id = inner.token_to_id(self.special_tokens.get("eos_token", ""))
        first = () if eos_id is None else (eos_id,)
        self.eos_ids: tuple[int, ...] = tuple(dict.fromkeys((*first, *eos_ids)))

    @classmethod
    def open(cls, directory: str | Path) -> "Tokenizer":
        """Open the tokenizer of a model directory.

        Raises StartError if tokenizer.json is missing or broken, or a file beside it is broken.
        """
        from tokenizers import Tokenizer as Inner

        directory = Path(directory)
        path = directory / TOKENIZER
        if not has_tokenizer(directory):
            raise StartError(
                f"{path} does not exist; create it with the transformers library: "
                "AutoTokenizer.from_pretrained(directory).save_pretrained(directory)"
            )
        vocab_size: int | None = None
        digest: bytes | None = None
        try:
            if has_file(path):
                content, vocab_size = read_tokenizer(directory)
                digest = hashlib.sha256(content).digest()
                inner = Inner.from_buffer(content)
            elif path.is_file():
                inner = Inner.from_file(str(path))
            else:
                inner = Inner.from_str(json.dumps(_converted(path)))
        except StartError:
            raise
        except Exception as error:  # the library raises plain Exception
            why = file_check.why_no_model(path) or f"cannot be read: {error}"
            raise StartError(f"{path} {why}") from error
        ends = [*read_eos_ids(directory), *chatglm.turn_ends(inner.token_to_id)]
        special_tokens = _special_tokens(directory)
        return cls(inner, special_tokens, ends, vocab_size=vocab_size, digest=digest)

    @classmethod
    def of(cls, settings: dict[str, Any]) -> "Tokenizer":
        """Return the tokenizer that the content of a tokenizer.json describes."""
        from tokenizers import Tokenizer as Inner

        return cls(Inner.from_str(json.dumps(settings)))

    def encode(self, text: str, add_special: bool = True) -> list[int]:
        """Return the ids of `text`; `add_special` adds the special tokens of the model (<s>)."""
        # `encode` holds the GIL, for seconds if the text is a book; the batch call releases it.
        (encoding,) = self._inner.encode_batch_fast([text], add_special_tokens=add_special)
        return list(encoding.ids)

    def encode_with_offsets(
        self, text: str, add_special: bool = True
    ) -> tuple[list[int], list[tuple[int, int]]]:
        """Return the ids as `encode` does, and begin and end of each in `text`, in characters."""
        (encoding,) = self._inner.encode_batch([text], add_special_tokens=add_special)
        return encoding.ids, encoding.offsets

    def encode_whole(
        self, text: str, pair: str | None = None, max_tokens: int | None = None, side: str = "right"
    ) -> TokenizedInput:
        """Return everything that an encoder needs of a text or a pair, special tokens included.

        A longer input is truncated to `max_tokens`, at its `side`, the longer text first.
        """
        texts = [text] if pair is None else [text, pair]
        parts = self._inner.encode_batch(texts, add_special_tokens=False)
        if max_tokens is not None:
            limit = max(max_tokens - self._inner.num_special_tokens_to_add(pair is not None), 0)
            counts = _truncated_lengths([len(part.ids) for part in parts], limit)
            for part, count in zip(parts, counts, strict=True):
                part.truncate(count, direction=side)
        encoding = self._inner.post_process(*parts)
        special = [bool(flag) for flag in encoding.special_tokens_mask]
        return TokenizedInput(encoding.ids, encoding.type_ids, encoding.offsets, special)

    def encode_words(self, words: Iterable[str]) -> list[list[int]]:
        """Return the ids of each word, at the start of a text and after a space, for bad words."""
        encoded: dict[tuple[int, ...], None] = {}
        for word in words:
            for text in (word, " " + word):
                encoded[tuple(self.encode(text, add_special=False))] = None
        return [list(ids) for ids in encoded if ids]

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Return the text of `ids`; ids outside the vocabulary are skipped."""
        return str(self._inner.decode(list(ids), skip_special_tokens=skip_special_tokens))

    def vocabulary(self) -> dict[str, int]:
        """Return the id of each token, as the vocabulary spells it."""
        return dict(self._inner.get_vocab(with_added_tokens=True))

    def token(self, token_id: int) -> str | None:
        """Return the token as the vocabulary spells it, None for an unknown id."""
        return cast("str | None", self._inner.id_to_token(token_id))

    def bos_ids(self) -> list[int]:
        """Return the token that the model's texts begin with, none if they have none."""
        ids = self.encode("")
        bos_id = self.token_id(self.special_tokens.get("bos_token", ""))
        return ids[:1] if ids and ids[0] == bos_id else []

    def token_id(self, token: str) -> int | None:
        """Return the id of a token as the vocabulary spells it, None for an unknown token."""
        return cast("int | None", self._inner.token_to_id(token))

    def special(self) -> list[tuple[int, str]]:
        """Return the special tokens: their ids, and how the vocabulary spells them."""
        return [(token_id, self.token(token_id) or "") for token_id in sorted(self._special_ids)]

    def is_special(self, token_id: int) -> bool:
        return token_id in self._special_ids

    def token_text(self, token_id: int) -> str:
        """Return the text of one token inside a text, with its leading space.

        Part of a character becomes U+FFFD; an unknown id is "".
        """
        token = self.token(token_id)
        chain = DecoderChain(self.decoders, continues=True)
        return "" if token is None else chain.push(token) + chain.flush()

    def all_bytes(self) -> list[bytes]:
        """Return `token_bytes` of all tokens.

        They take 2 s with 262,144 tokens, and are kept for other processes if the tokenizer has a
        `digest`.
        """

        def build() -> bytes:
            return _join([self.token_bytes(token_id) for token_id in range(self.vocab_size)])

        if self.digest is None:
            return _split(build())
        source = source_digest(Path(__file__).parent)
        return _split(read_or_build(key_of((b"bytes of tokens", self.digest, source)), build))

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes of one token inside a text, also of part of a character."""
        token = self.token(token_id)
        if token is None:
            return b""
        kinds = {config["type"] for config in self.decoders}
        if "ByteLevel" in kinds:
            return byte_level_bytes(token)
        byte = fallback_byte(token) if "ByteFallback" in kinds else None
        return self.token_text(token_id).encode() if byte is None else byte


def _join(parts: Sequence[bytes]) -> bytes:
    """Join parts behind their number and their lengths."""
    return np.array([len(parts), *map(len, parts)], "<u4").tobytes() + b"".join(parts)


def _split(joined: bytes) -> list[bytes]:
    (count,) = np.frombuffer(joined, "<u4", 1).tolist()
    ends = np.cumsum(np.frombuffer(joined, "<u4", count, 4), dtype=np.int64) + 4 * (count + 1)
    bounds = [4 * (count + 1), *ends.tolist()]
    return [joined[begin:end] for begin, end in pairwise(bounds)]


def _truncated_lengths(counts: Sequence[int], limit: int) -> list[int]:
    """Return the length to which each of one or two texts is truncated, the longer one first."""
    if sum(counts) <= limit:
        return list(counts)
    if len(counts) == 1:
        return [limit]
    shorter = min(*counts, limit // 2)
    is_first = counts[0] <= counts[1]
    return [shorter, limit - shorter] if is_first else [limit - shorter, shorter]


def has_tokenizer(directory: Path) -> bool:
    """Return whether the directory has a tokenizer of a known format."""
    path = directory / TOKENIZER
    is_json = path.is_file() or has_file(path) or mistral.has_file(path)
    is_model = (directory / sentencepiece.NAME).is_file() or marian.has_files(directory)
    return is_json or is_model or bool(vocabularies.find(directory))


def _converted(path: Path) -> Config:
    """Build tokenizer.json from Mistral's tekken.json or from tokenizer.model."""
    is_made = mistral.has_file(path)
    return read_json(path) if is_made else sentencepiece.tokenizer_from(path.parent)


def _flatten(config: Config) -> list[Config]:
    if config["type"] != "Sequence":
        return [config]
    return [inner for part in config["decoders"] for inner in _flatten(part)]


def _special_tokens(directory: Path) -> dict[str, str]:
    """Return the tokens of tokenizer_config.json and, where missing, of special_tokens_map.json."""
    tokens: dict[str, str] = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        config = read_optional_json(directory / name)
        for key in _SPECIAL_NAMES:
            token = config.get(key)
            text = token.get("content") if isinstance(token, dict) else token
            if isinstance(text, str):
                tokens[key] = text
    return tokens
