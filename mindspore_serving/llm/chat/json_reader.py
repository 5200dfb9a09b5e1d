"""JSON and markers read char by char: generators that take chars and end with the last of what they
read.
"""

import re
from collections.abc import Generator
from typing import TypeAlias

MAX_DEPTH = 100  # of containers in one another
_SPACE = " \t\n\r"
_HEX = frozenset("0123456789abcdefABCDEF")
_SCALAR_CHARS = frozenset("+-.0123456789Eaeflnrstu")
_MAX_SCALAR_CHARS = 400
_WORDS = ("true", "false", "null")
_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?", re.ASCII)
_NUMBER_START = re.compile(
    r"-?(?:(?:0|[1-9]\d*)(?:\.(?:\d+(?:[eE][+-]?\d*)?)?|[eE][+-]?\d*)?)?", re.ASCII
)

Reading: TypeAlias = Generator[None, str, None]
Chars: TypeAlias = Generator[None, str, str]  # gives a char behind, or the text that was read
Value: TypeAlias = Generator[None, str, str | None]


class Broken(Exception):
    """The char that was just given cannot come here."""


class HeldText:
    """Text that is not shown yet: spaces, and behind them perhaps the start of a marker.  However
    many spaces come one after another, each is looked at once.
    """

    def __init__(self) -> None:
        self._pieces: list[str] = []

    def adds(self, text: str) -> bool:
        """Whether `text` is held as well, for all of it is space, and all that was held before."""
        pieces = self._pieces
        is_space = text.isspace() and (not pieces or pieces[-1].isspace())
        if is_space:
            pieces.append(text)
        return is_space

    def put(self, text: str) -> None:
        """In place of all that was held."""
        self._pieces = [text] if text else []

    def take(self) -> str:
        text, self._pieces = "".join(self._pieces), []
        return text


def next_char() -> Chars:
    """The next char that is no space."""
    char = yield
    while char in _SPACE:
        char = yield
    return char


def read_marker(marker: str, char: str) -> Reading:
    """All of `marker`, of which `char` is to be the first."""
    for wanted in marker[:-1]:
        if char != wanted:
            raise Broken
        char = yield
    if char != marker[-1]:
        raise Broken


def without_start_of(text: str, marker: str) -> str:
    """`text` without its longest end that may be the start of `marker`."""
    for length in range(min(len(text), len(marker) - 1), 0, -1):
        if text.endswith(marker[:length]):
            return text[:-length]
    return text


def read_value(char: str, depth: int = 0) -> Value:
    """A value that begins with `char`; and the char behind it if its end shows only there."""
    if char == '"':
        yield from read_string(char)
        return None
    if char not in "{[":
        return (yield from _read_scalar(char))
    if depth == MAX_DEPTH:
        raise Broken
    end = "}" if char == "{" else "]"
    char = yield from next_char()
    if char == end:
        return None
    while True:
        if end == "}":
            yield from read_string(char)
            char = yield from behind_colon()
        behind = yield from read_value(char, depth + 1)
        char = yield from behind_value(behind)
        if char == end:
            return None
        if char != ",":
            raise Broken
        char = yield from next_char()


def behind_value(behind: str | None) -> Chars:
    """The next char that is no space, from what `read_value` gives on."""
    if behind is None or behind in _SPACE:
        return (yield from next_char())
    return behind


def behind_colon() -> Chars:
    """The first char of a value, behind a colon."""
    if (yield from next_char()) != ":":
        raise Broken
    return (yield from next_char())


def read_string(char: str) -> Chars:
    """A string, of which `char` is the first; all of it as JSON."""
    if char != '"':
        raise Broken
    text = [char]
    while True:
        char = yield
        text.append(char)
        if char == '"':
            return "".join(text)
        if char < " ":
            raise Broken
        if char == "\\":
            char = yield
            text.append(char)
            if char == "u":
                for _ in range(4):
                    char = yield
                    text.append(char)
                    if char not in _HEX:
                        raise Broken
            elif char not in '"\\/bfnrt':
                raise Broken


def _read_scalar(char: str) -> Chars:
    text = ""
    while char in _SCALAR_CHARS:
        text += char
        is_word = any(word.startswith(text) for word in _WORDS)
        if not (is_word or _NUMBER_START.fullmatch(text)) or len(text) > _MAX_SCALAR_CHARS:
            raise Broken
        char = yield
    if text not in _WORDS and not _NUMBER.fullmatch(text):
        raise Broken
    return char
