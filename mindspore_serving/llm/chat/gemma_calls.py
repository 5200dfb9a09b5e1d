"""Incremental reader of Gemma's tool calls: `call:f{city:<|"|>Paris<|"|>,days:2}`.

Pure: arguments come out as JSON; a string is passed on as it arrives.
"""

import json
from collections.abc import Callable, Generator

from mindspore_serving.llm.chat.json_reader import (
    MAX_DEPTH,
    MAX_NAME_CHARS,
    Chars,
    Reading,
    UnexpectedChar,
    next_char,
    read_marker,
    without_partial_marker,
)

QUOTE = '<|"|>'
CALL = "call:"
_MAX_SCALAR_CHARS = 400

Emit = Callable[[str], None]


def read_call(end: str, begin: Callable[[str], object], emit: Emit) -> Reading:
    """Read one call and the marker `end` after it.

    `begin` takes the name, `emit` the arguments as JSON.
    """
    yield from read_marker(CALL, (yield from next_char()))
    begin((yield from _read_key("{", (yield from next_char()))))
    yield from _read_members(emit, 0)
    yield from read_marker(end, (yield from next_char()))


def _read_key(end: str, char: str) -> Chars:
    """Return a name without quotes, up to `end`."""
    if char == "<":
        yield from read_marker(QUOTE, char)
        char = yield
    name = ""
    while char != end:
        name += char
        if len(name) > MAX_NAME_CHARS + len(QUOTE):
            raise UnexpectedChar
        char = yield
    name = name.removesuffix(QUOTE).strip().strip('"')
    if not name or not name.isprintable():
        raise UnexpectedChar
    return name


def _read_members(emit: Emit, depth: int) -> Reading:
    """Read the members of an object, whose "{" was read."""
    emit("{")
    keys: set[str] = set()
    char = yield from next_char()
    while char != "}":
        key = yield from _read_key(":", char)
        if key in keys:
            raise UnexpectedChar
        emit(", " * bool(keys) + json.dumps(key, ensure_ascii=False) + ": ")
        keys.add(key)
        char = yield from _read_value((yield from next_char()), emit, depth)
        if char not in ",}":
            raise UnexpectedChar
        if char == ",":
            char = yield from next_char()
    emit("}")


def _read_items(emit: Emit, depth: int) -> Reading:
    """Read the items of a list, whose "[" was read."""
    emit("[")
    is_first = True
    char = yield from next_char()
    while char != "]":
        emit(", " * (not is_first))
        is_first = False
        char = yield from _read_value(char, emit, depth)
        if char not in ",]":
            raise UnexpectedChar
        if char == ",":
            char = yield from next_char()
    emit("]")


def _read_value(char: str, emit: Emit, depth: int) -> Chars:
    """Read a value and return the first character after it that is no whitespace."""
    if depth == MAX_DEPTH:
        raise UnexpectedChar
    if char == "<":
        yield from read_marker(QUOTE, char)
        yield from _read_text(emit)
    elif char == "{":
        yield from _read_members(emit, depth + 1)
    elif char == "[":
        yield from _read_items(emit, depth + 1)
    else:
        return (yield from _read_scalar(char, emit))
    return (yield from next_char())


def _read_text(emit: Emit) -> Generator[None, str, None]:
    """Read text up to the closing quote."""
    emit('"')
    held = yield
    while not held.endswith(QUOTE):
        shown = without_partial_marker(held, QUOTE)
        if shown:
            emit(json.dumps(shown, ensure_ascii=False)[1:-1])
        held = held[len(shown) :] + (yield)
    emit(json.dumps(held.removesuffix(QUOTE), ensure_ascii=False)[1:-1])
    emit('"')


def _read_scalar(char: str, emit: Emit) -> Chars:
    """Read a number, true, false, null or a word, and return the character after it."""
    text = ""
    while char not in ",}]":
        text += char
        if len(text) > _MAX_SCALAR_CHARS:
            raise UnexpectedChar
        char = yield
    text = text.strip()
    try:
        emit(json.dumps(json.loads(text, parse_constant=_refuse), ensure_ascii=False))
    except ValueError:
        if not text:
            raise UnexpectedChar from None
        emit(json.dumps(text, ensure_ascii=False))
    return char


def _refuse(word: str) -> None:
    raise ValueError(f"{word} is no JSON")
