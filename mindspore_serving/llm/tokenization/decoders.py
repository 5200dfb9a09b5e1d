"""The decoders of the `tokenizers` library, applied token by token.

Each decoder is a stage of a chain: it takes tokens and emits tokens (after a stage that joins them,
pieces of the joined text) as soon as later tokens cannot change them. Knows neither ids nor special
tokens.

Vocabularies spell bytes in two ways: byte-level ones write every byte as a character, others have
tokens for the bytes for which they have no text.
"""

import codecs
import re
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any, Protocol

from mindspore_serving.errors import StartError
from mindspore_serving.llm.checkpoint.ranks import SPELLING

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


_BYTE_OF = {char: byte for byte, char in SPELLING.items()}


def byte_level_bytes(token: str) -> bytes:
    """Return the bytes of a byte-level token; an added token is its own text."""
    try:
        return bytes([_BYTE_OF[char] for char in token])
    except KeyError:
        return token.encode()


def fallback_byte(token: str) -> bytes | None:
    """Return the byte of a byte-fallback token, None for any other token."""
    match = _BYTE_TOKEN.fullmatch(token) if token.startswith("<0x") else None
    return bytes([int(match[1], 16)]) if match else None


Config = Mapping[str, Any]

_REPLACEMENT = "\ufffd"


class DecoderStage(Protocol):
    """A decoder of the chain."""

    def push(self, token: str) -> list[str]: ...

    def end(self) -> list[str]:
        """Return the text that was held back.  Called once, in the order of the chain."""
        ...


class DecoderChain:
    """Decodes the tokens of one text; with `continues`, the text follows another one.

    Raises StartError if a decoder, or its position in the chain, is not supported.
    """

    def __init__(self, decoders: Sequence[Config], continues: bool = False) -> None:
        self._stages = _stages(decoders, continues)

    def push(self, token: str) -> str:
        """Return the text that is complete with this token."""
        return "".join(_run(self._stages, [token]))

    def flush(self) -> str:
        """Return the text that was held back."""
        pieces: list[str] = []
        for index, stage in enumerate(self._stages):
            pieces += _run(self._stages[index + 1 :], stage.end())
        return "".join(pieces)


def _run(stages: Sequence[DecoderStage], tokens: list[str]) -> list[str]:
    for stage in stages:
        tokens = [out for token in tokens for out in stage.push(token)]
    return tokens


def _stages(decoders: Sequence[Config], continues: bool) -> list[DecoderStage]:
    stages: list[DecoderStage] = []
    is_fused = False  # a stage before has joined the tokens
    for config in decoders:
        kind = config["type"]
        make = (_FUSED if is_fused else _DECODERS).get(kind)
        if make is None:
            after = " after the tokens are joined" if is_fused and kind in _DECODERS else ""
            raise StartError(
                f"tokenizer.json: decoder {kind}{after} is not supported, "
                f"only {', '.join(sorted(_DECODERS))}"
            )
        stages.append(make(config, continues))
        is_fused = is_fused or kind in ("Fuse", "ByteLevel")
    return stages


class _PerToken:
    """Converts each token by itself, the first one by `first` if it is not None."""

    def __init__(
        self, convert: Callable[[str], str], first: Callable[[str], str] | None = None
    ) -> None:
        self._convert = convert
        self._next = first or convert

    def push(self, token: str) -> list[str]:
        convert, self._next = self._next, self._convert
        return [convert(token)]

    def end(self) -> list[str]:
        return []


class _ByteLevel:
    """Tokens whose characters stand for bytes."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: str) -> list[str]:
        return [self._decoder.decode(byte_level_bytes(token))]

    def end(self) -> list[str]:
        return [self._decoder.decode(b"", True)]


class _ByteFallback:
    """Tokens among which <0xE2> and the like are bytes."""

    def __init__(self) -> None:
        self._run = bytearray()

    def push(self, token: str) -> list[str]:
        byte = fallback_byte(token)
        if byte is None:
            return [*self.end(), token]
        self._run += byte
        return []

    def end(self) -> list[str]:
        run, self._run = self._run, bytearray()
        try:
            return [run.decode()] if run else []
        except UnicodeDecodeError:
            return [_REPLACEMENT] * len(run)


class _WordEnds:
    """Tokens with a suffix at the end of a word, which becomes a space if another token follows."""

    def __init__(self, suffix: str) -> None:
        self._suffix = suffix
        self._held: str | None = None

    def push(self, token: str) -> list[str]:
        held, self._held = self._held, token
        return [] if held is None else [held.replace(self._suffix, " ")]

    def end(self) -> list[str]:
        return [] if self._held is None else [self._held.replace(self._suffix, "")]


class _StripStart:
    """Removal of up to `count` of `char` from the start of the joined text."""

    def __init__(self, char: str, count: int) -> None:
        self._char = char
        self._left = count

    def push(self, token: str) -> list[str]:
        while self._left and token:
            if token[0] != self._char:
                self._left = 0
                break
            token = token[1:]
            self._left -= 1
        return [token]

    def end(self) -> list[str]:
        return []


# Spaces that WordPiece removes, in this order.
_CLEANUPS = [
    (" .", "."),
    (" ?", "?"),
    (" !", "!"),
    (" ,", ","),
    (" ' ", "'"),
    (" n't", "n't"),
    (" 'm", "'m"),
    (" do not", " don't"),
    (" 's", "'s"),
    (" 've", "'ve"),
    (" 're", "'re"),
]


def _word_piece(config: Config, continues: bool) -> DecoderStage:
    prefix = config["prefix"]
    cleanups = _CLEANUPS if config["cleanup"] else ()

    def clean(text: str) -> str:
        return reduce(lambda text, pair: text.replace(*pair), cleanups, text)

    def follow(token: str) -> str:
        return clean(token.removeprefix(prefix) if token.startswith(prefix) else " " + token)

    return _PerToken(follow, None if continues else clean)


def _metaspace(config: Config, continues: bool) -> DecoderStage:
    char = config["replacement"]
    keeps_first = continues or config["prepend_scheme"] == "never"
    return _PerToken(
        lambda token: token.replace(char, " "),
        None if keeps_first else lambda token: token.replace(char, ""),
    )


def _replace(config: Config, _: bool) -> DecoderStage:
    old, new = _replacement(config)
    return _PerToken(lambda token: token.replace(old, new))


def _replace_in_pieces(config: Config, continues: bool) -> DecoderStage:
    old, _ = _replacement(config)
    if len(old) != 1:
        raise StartError(
            f"tokenizer.json: decoder Replace of {old!r} after the tokens are joined is not "
            "supported, only of one character"
        )
    return _replace(config, continues)


def _replacement(config: Config) -> tuple[str, str]:
    old = config["pattern"].get("String")
    if not old:
        raise StartError(
            f"tokenizer.json: decoder Replace of {config['pattern']} is not supported, "
            'only of {"String": text}'
        )
    return old, config["content"]


def _strip(config: Config, _: bool) -> DecoderStage:
    char, start, stop = config["content"], config["start"], config["stop"]

    def strip(token: str) -> str:
        head = len(token) - len(token.lstrip(char))
        tail = len(token) - len(token.rstrip(char))
        return token[min(start, head) : max(min(start, head), len(token) - min(stop, tail))]

    return _PerToken(strip)


def _strip_pieces(config: Config, continues: bool) -> DecoderStage:
    if config["stop"]:
        raise StartError(
            f"tokenizer.json: decoder Strip has stop={config['stop']} after the tokens are "
            "joined, only 0 is supported"
        )
    return _StripStart(config["content"], 0 if continues else config["start"])


_DECODERS: dict[str, Callable[[Config, bool], DecoderStage]] = {
    "ByteLevel": lambda config, continues: _ByteLevel(),
    "ByteFallback": lambda config, continues: _ByteFallback(),
    "BPEDecoder": lambda config, continues: _WordEnds(config["suffix"]),
    "Fuse": lambda config, continues: _PerToken(str),
    "Metaspace": _metaspace,
    "Replace": _replace,
    "Strip": _strip,
    "WordPiece": _word_piece,
    "None": lambda config, continues: _PerToken(
        lambda token: " " + token, None if continues else str
    ),  # no decoder at all: spaces between tokens
}
_FUSED: dict[str, Callable[[Config, bool], DecoderStage]] = {
    "ByteLevel": lambda config, continues: (
        _ByteLevel()
    ),  # exact if all joined tokens are byte-level
    "Fuse": lambda config, continues: _PerToken(str),
    "Replace": _replace_in_pieces,
    "Strip": _strip_pieces,
}
