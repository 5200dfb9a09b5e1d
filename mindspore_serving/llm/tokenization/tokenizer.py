"""Text to tokens and back, by a model directory's tokenizer.json or tokenizer.model.

Knows nothing of sampling or of chats; needs the `tokenizers` library.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from mindspore_serving.errors import StartError
from mindspore_serving.llm.checkpoint import chatglm, sentencepiece
from mindspore_serving.llm.checkpoint.gguf.files import has_file
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
    """The tokens of one text, or of two that belong together."""

    ids: list[int]
    types: list[int]  # 1 where the second text is, for models that tell the two apart
    offsets: list[tuple[int, int]]  # where in its text each begins and ends, in characters
    is_special: list[bool]  # whether the tokenizer has added it


class Tokenizer:
    """A model's vocabulary and how text is cut by it.  Threads may share it.

    Attributes:
        vocab_size: one more than the largest token id.
        eos_ids: the tokens that end an answer: the eos_token, those of `read_eos_ids`, and those
            that begin a turn in chats with ChatGLM.
        special_tokens: by the name a chat template gives them ("bos_token": "<s>").
        decoders: how tokens become text, as in tokenizer.json.
    """

    def __init__(
        self,
        inner: Any,
        special_tokens: Mapping[str, str] | None = None,
        eos_ids: Sequence[int] = (),
    ) -> None:
        """`inner` is a `tokenizers.Tokenizer`; its truncation and padding are turned off.

        Raises StartError if its decoder is not supported.
        """
        inner.no_truncation()
        inner.no_padding()
        self._inner = inner
        found = b'{"type": "None"}' if inner.decoder is None else inner.decoder.__getstate__()
        self.decoders: Sequence[Config] = _flatten(json.loads(found))
        DecoderChain(self.decoders)  # raises for one that is not supported
        self._special_ids = frozenset(
            token_id
            for token_id, token in inner.get_added_tokens_decoder().items()
            if token.special
        )
        self.vocab_size = 1 + max(inner.get_vocab(with_added_tokens=True).values(), default=-1)
        self.special_tokens = dict(special_tokens or {})
        own_eos = inner.token_to_id(self.special_tokens.get("eos_token", ""))
        own = () if own_eos is None else (own_eos,)
        self.eos_ids: tuple[int, ...] = tuple(dict.fromkeys((*own, *eos_ids)))

    @classmethod
    def open(cls, directory: str | Path) -> "Tokenizer":
        """Raises StartError if tokenizer.json is missing or broken, or a file beside it is."""
        from tokenizers import Tokenizer as Inner

        directory = Path(directory)
        path = directory / TOKENIZER
        if not has_tokenizer(directory):
            raise StartError(
                f"{path} does not exist; a model without it can be given one by the transformers "
                "library: AutoTokenizer.from_pretrained(directory).save_pretrained(directory)"
            )
        try:
            if path.is_file():
                inner = Inner.from_file(str(path))
            else:
                inner = Inner.from_str(json.dumps(_made(path)))
        except StartError:
            raise
        except Exception as error:  # the library raises plain Exception
            raise StartError(f"{path} cannot be read: {error}") from error
        ends = [*read_eos_ids(directory), *chatglm.turn_ends(inner.token_to_id)]
        return cls(inner, _special_tokens(directory), ends)

    def encode(self, text: str, add_special: bool = True) -> list[int]:
        """The ids of `text`; `add_special` adds the special tokens that the model expects (<s>)."""
        # `encode` keeps the interpreter's lock, for seconds if the text is a book; batches do not.
        (encoding,) = self._inner.encode_batch_fast([text], add_special_tokens=add_special)
        return list(encoding.ids)

    def encode_with_offsets(
        self, text: str, add_special: bool = True
    ) -> tuple[list[int], list[tuple[int, int]]]:
        """As `encode`, and where in `text` each token begins and ends, in characters."""
        (encoding,) = self._inner.encode_batch([text], add_special_tokens=add_special)
        return encoding.ids, encoding.offsets

    def encode_whole(
        self, text: str, pair: str | None = None, most: int | None = None, side: str = "right"
    ) -> TokenizedInput:
        """All that an encoder needs of one text or of two, with special tokens; of at most `most`
        tokens, cut at their `side` from the longer text.
        """
        texts = [text] if pair is None else [text, pair]
        cut = self._inner.encode_batch(texts, add_special_tokens=False)
        if most is not None:
            room = max(most - self._inner.num_special_tokens_to_add(pair is not None), 0)
            for one, count in zip(cut, _shares([len(one.ids) for one in cut], room), strict=True):
                one.truncate(count, direction=side)
        found = self._inner.post_process(*cut)
        special = [bool(flag) for flag in found.special_tokens_mask]
        return TokenizedInput(found.ids, found.type_ids, found.offsets, special)

    def encode_words(self, words: Iterable[str]) -> list[list[int]]:
        """The ids of each word, at the start of a text and after a space, for bad words."""
        found: dict[tuple[int, ...], None] = {}
        for word in words:
            for text in (word, " " + word):
                found[tuple(self.encode(text, add_special=False))] = None
        return [list(ids) for ids in found if ids]

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """The text of `ids`; ids that are not in the vocabulary add nothing."""
        return str(self._inner.decode(list(ids), skip_special_tokens=skip_special_tokens))

    def vocabulary(self) -> dict[str, int]:
        """The id of each token, as the vocabulary spells it."""
        return dict(self._inner.get_vocab(with_added_tokens=True))

    def token(self, token_id: int) -> str | None:
        """The token as the vocabulary spells it; None if there is none."""
        return cast("str | None", self._inner.id_to_token(token_id))

    def token_id(self, token: str) -> int | None:
        """The id of a token as the vocabulary spells it; None if there is none."""
        return cast("int | None", self._inner.token_to_id(token))

    def is_special(self, token_id: int) -> bool:
        return token_id in self._special_ids

    def token_text(self, token_id: int) -> str:
        """The text of one token inside a text, with its leading space; U+FFFD for part of a
        character; "" if there is no such token.
        """
        token = self.token(token_id)
        chain = DecoderChain(self.decoders, continues=True)
        return "" if token is None else chain.push(token) + chain.flush()

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes of one token inside a text, also where they are part of a character."""
        token = self.token(token_id)
        if token is None:
            return b""
        kinds = {config["type"] for config in self.decoders}
        if "ByteLevel" in kinds:
            return byte_level_bytes(token)
        byte = fallback_byte(token) if "ByteFallback" in kinds else None
        return self.token_text(token_id).encode() if byte is None else byte


def _shares(counts: Sequence[int], room: int) -> list[int]:
    """How many tokens of each of one or two texts have room: the longer one is cut first."""
    if sum(counts) <= room:
        return list(counts)
    if len(counts) == 1:
        return [room]
    shorter = min(*counts, room // 2)
    is_first = counts[0] <= counts[1]
    return [shorter, room - shorter] if is_first else [room - shorter, shorter]


def has_tokenizer(directory: Path) -> bool:
    path = directory / TOKENIZER
    return path.is_file() or has_file(path) or (directory / sentencepiece.NAME).is_file()


def _made(path: Path) -> Config:
    """tokenizer.json of what there is in place of it: a GGUF file's metadata, or
    tokenizer.model.
    """
    return read_json(path) if has_file(path) else sentencepiece.tokenizer_from(path.parent)


def _flatten(config: Config) -> list[Config]:
    if config["type"] != "Sequence":
        return [config]
    return [inner for part in config["decoders"] for inner in _flatten(part)]


def _special_tokens(directory: Path) -> dict[str, str]:
    """Of tokenizer_config.json, or else of special_tokens_map.json, which is older."""
    found: dict[str, str] = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        config = read_optional_json(directory / name)
        for key in _SPECIAL_NAMES:
            token = config.get(key)
            text = token.get("content") if isinstance(token, dict) else token
            if isinstance(text, str):
                found[key] = text
    return found
