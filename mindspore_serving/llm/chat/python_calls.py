"""Incremental reader of tool calls in Python.

Those of LFM2 and Llama 4 are a list, `[f(x="a", n=1), g()]`, and ChatGLM3's a line with the name
before a fence with `tool_call(x="a")`.  Pure: arguments come out as JSON, each when it is complete.
"""

import ast
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
)

_NAME_CHARS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-")
FENCE, CALL = "```python", "tool_call("
_OPENING, _CLOSING = "([{", ")]}"
_ERRORS = (ValueError, SyntaxError, TypeError, MemoryError, RecursionError)


def read_list(char: str, begin: Callable[[str], object], emit: Callable[[str], None]) -> Reading:
    """Read a list of calls, whose "[" is `char`.

    `begin` takes the name of each call, `emit` its arguments as JSON.
    """
    if char != "[":
        raise UnexpectedChar
    while char != "]":
        yield from _read_call(begin, emit)
        char = yield from next_char()
        if char not in ",]":
            raise UnexpectedChar


def _read_call(begin: Callable[[str], object], emit: Callable[[str], None]) -> Reading:
    begin((yield from _read_name((yield from next_char()), "(")))
    yield from _read_arguments(emit)


def read_fenced(begin: Callable[[str], object], emit: Callable[[str], None]) -> Reading:
    """Read a name on a line of its own, and the call in a fence after it."""
    name, char = "", (yield)
    while char in _NAME_CHARS and len(name) < MAX_NAME_CHARS:
        name += char
        char = yield
    if not name or char != "\n":
        raise UnexpectedChar
    begin(name)
    yield from read_marker(FENCE, (yield from next_char()))
    yield from read_marker(CALL, (yield from next_char()))
    yield from _read_arguments(emit)
    yield from read_marker("```", (yield from next_char()))


def _read_arguments(emit: Callable[[str], None]) -> Reading:
    """Read arguments and the ")" after them."""
    emit("{")
    keys: set[str] = set()
    char = yield from next_char()
    while char != ")":
        key = yield from _read_name(char, "=")
        if key in keys:
            raise UnexpectedChar
        value, char = yield from _read_value((yield from next_char()))
        emit(", " * bool(keys) + f"{json.dumps(key)}: {value}")
        keys.add(key)
        if char == ",":
            char = yield from next_char()
    emit("}")


def _read_name(char: str, end: str) -> Chars:
    name = ""
    while char in _NAME_CHARS and len(name) < MAX_NAME_CHARS:
        name += char
        char = yield
    if char.isspace():
        char = yield from next_char()
    if not name or char != end:
        raise UnexpectedChar
    return name


def _read_value(char: str) -> Generator[None, str, tuple[str, str]]:
    """Return a value as JSON, and the "," or ")" after it."""
    parts: list[str] = []
    closers: list[str] = []
    while closers or char not in ",)":
        parts.append(char)
        if char in "\"'":
            yield from _read_string(char, parts)
        elif char in _OPENING:
            if len(closers) == MAX_DEPTH:
                raise UnexpectedChar
            closers.append(_CLOSING[_OPENING.index(char)])
        elif char in _CLOSING and (not closers or closers.pop() != char):
            raise UnexpectedChar
        char = yield
    return _to_json("".join(parts).strip()), char


def _read_string(quote: str, parts: list[str]) -> Reading:
    """Read the rest of a string, whose first quote was read."""
    char = ""
    while char != quote:
        char = yield
        if char == "\n":  # a Python string has it escaped; models forget that
            parts.append("\\n")
            continue
        parts.append(char)
        if char == "\\":
            parts.append((yield))
            char = ""


def _to_json(text: str) -> str:
    """Return the JSON of a Python literal, or of JSON.  Raises UnexpectedChar for other text."""
    for read in (ast.literal_eval, json.loads):
        try:
            return json.dumps(read(text), ensure_ascii=False, allow_nan=False)
        except _ERRORS:
            continue
    raise UnexpectedChar
