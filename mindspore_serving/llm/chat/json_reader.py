"""Incremental JSON reader: generators that take one character at a time.

A generator is sent the next character and returns after the last one it needs.  It raises
`UnexpectedChar` at a character that is not allowed, so the caller always knows whether the text is
still valid.
"""

import re
from collections.abc import Generator, Sequence
from typing import TypeAlias

MAX_DEPTH = 100  # of nested containers
MAX_NAME_CHARS = 256
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
Chars: TypeAlias = Generator[None, str, str]  # returns the next character, or the text read
Value: TypeAlias = Generator[None, str, str | None]


class UnexpectedChar(Exception):
    """The last character sent is not allowed at its position."""


class HeldText:
    """Text that is not shown yet: whitespace, perhaps followed by the start of a marker.

    Each character of a long run of whitespace is looked at once.
    """

    def __init__(self) -> None:
        self._pieces: list[str] = []

    def adds(self, text: str) -> bool:
        """Hold `text` too if it and all that is held is whitespace; return whether it was."""
        pieces = self._pieces
        is_space = text.isspace() and (not pieces or pieces[-1].isspace())
        if is_space:
            pieces.append(text)
        return is_space

    def put(self, text: str) -> None:
        """Replace the held text."""
        self._pieces = [text] if text else []

    def take(self) -> str:
        """Return the held text and hold nothing."""
        text, self._pieces = "".join(self._pieces), []
        return text


def next_char() -> Chars:
    """Return the next character that is no whitespace."""
    char = yield
    while char in _SPACE:
        char = yield
    return char


def read_marker(marker: str, char: str) -> Reading:
    """Read `marker`, whose first character is to be `char`."""
    for expected in marker[:-1]:
        if char != expected:
            raise UnexpectedChar
        char = yield
    if char != marker[-1]:
        raise UnexpectedChar


def read_choice(markers: Sequence[str], char: str) -> Generator[None, str, int]:
    """Read one of `markers`, whose first character is to be `char`, and return its index.

    No marker may be the beginning of another.
    """
    text = char
    while text not in markers:
        if not any(marker.startswith(text) for marker in markers):
            raise UnexpectedChar
        text += yield
    return markers.index(text)


def read_until(marker: str) -> Chars:
    """Return the text up to `marker`, at most `MAX_NAME_CHARS` characters."""
    text = ""
    while not text.endswith(marker):
        text += yield
        if len(text) > MAX_NAME_CHARS + len(marker):
            raise UnexpectedChar
    return text.removesuffix(marker)


def without_partial_marker(text: str, marker: str) -> str:
    """Return `text` without the longest end that may be the start of `marker`."""
    for length in range(min(len(text), len(marker) - 1), 0, -1):
        if text.endswith(marker[:length]):
            return text[:-length]
    return text


def read_value(char: str, depth: int = 0) -> Value:
    """Read a value that begins with `char`.

    Return the character after it if only that shows the end (of a number or word), else None.
    """
    if char == '"':
        yield from read_string(char)
        return None
    if char not in "{[":
        return (yield from _read_scalar(char))
    if depth == MAX_DEPTH:
        raise UnexpectedChar
    end = "}" if char == "{" else "]"
    char = yield from next_char()
    if char == end:
        return None
    while True:
        if end == "}":
            yield from read_string(char)
            char = yield from after_colon()
        after = yield from read_value(char, depth + 1)
        char = yield from after_value(after)
        if char == end:
            return None
        if char != ",":
            raise UnexpectedChar
        char = yield from next_char()


def after_value(after: str | None) -> Chars:
    """Return the next character that is no whitespace, given what `read_value` returned."""
    if after is None or after in _SPACE:
        return (yield from next_char())
    return after


def after_colon() -> Chars:
    """Read a colon and return the first character of the value."""
    if (yield from next_char()) != ":":
        raise UnexpectedChar
    return (yield from next_char())


def read_string(char: str) -> Chars:
    """Read a string that begins with `char`, and return it as JSON."""
    if char != '"':
        raise UnexpectedChar
    text = [char]
    while True:
        char = yield
        text.append(char)
        if char == '"':
            return "".join(text)
        if char < " ":
            raise UnexpectedChar
        if char == "\\":
            char = yield
            text.append(char)
            if char == "u":
                for _ in range(4):
                    char = yield
                    text.append(char)
                    if char not in _HEX:
                        raise UnexpectedChar
            elif char not in '"\\/bfnrt':
                raise UnexpectedChar


def _read_scalar(char: str) -> Chars:
    """Read a number, true, false or null, and return the character after it."""
    text = ""
    while char in _SCALAR_CHARS:
        text += char
        is_word = any(word.startswith(text) for word in _WORDS)
        if not (is_word or _NUMBER_START.fullmatch(text)) or len(text) > _MAX_SCALAR_CHARS:
            raise UnexpectedChar
        char = yield
    if text not in _WORDS and not _NUMBER.fullmatch(text):
        raise UnexpectedChar
    return char
