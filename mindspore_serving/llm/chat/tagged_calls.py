"""Calls of tools whose arguments are tags, read char by char: Qwen3-Coder's and GLM's.

Pure text: what it gives is JSON, the same however the text was cut into pieces.
"""

import json
from collections.abc import Callable, Generator, Mapping
from typing import Any, TypeAlias

from mindspore_serving.llm.chat.json_reader import (
    Broken,
    Chars,
    Reading,
    next_char,
    read_marker,
    without_start_of,
)
from mindspore_serving.llm.chat.parameter_types import to_json, types_of
from mindspore_serving.llm.chat.tool_formats import Tags

_MAX_NAME_CHARS = 256

Say: TypeAlias = Callable[[str], None]
Schema: TypeAlias = Mapping[str, Any]


def read_tagged(tags: Tags, end: str, begin: Callable[[str], Schema], say: Say) -> Reading:
    """A call and the marker `end` behind it.

    `begin` takes the name and returns the schema of the arguments; `say` takes these, as JSON.
    """
    name, char = yield from _read_name(tags, (yield from next_char()))
    schema = begin(name)
    say("{")
    keys: set[str] = set()
    while (yield from _read_opening(char, tags, end)):
        key = yield from _read_until(tags.key[1])
        if key in keys:
            raise Broken
        say(", " * bool(keys) + json.dumps(key, ensure_ascii=False) + ": ")
        keys.add(key)
        yield from _read_argument(tags, _types_of(key, schema), say)
        char = ""
    say("}")
    if tags.end:
        yield from read_marker(end, (yield from next_char()))


def _types_of(key: str, schema: Schema) -> frozenset[str]:
    properties = schema.get("properties")
    found = properties.get(key) if isinstance(properties, Mapping) else None
    return types_of(found, schema)


def _read_name(tags: Tags, char: str) -> Generator[None, str, tuple[str, str]]:
    """The name; and the "<" behind it if it has no end of its own."""
    before, behind = tags.name
    if before:
        yield from read_marker(before, char)
        char = yield
    name = ""
    while char not in "<>\n":
        name += char
        if len(name) > _MAX_NAME_CHARS:
            raise Broken
        char = yield
    name = name.strip()
    if not name or (char == ">") != (behind == ">"):
        raise Broken
    return name, char if char == "<" else ""


def _read_opening(char: str, tags: Tags, end: str) -> Generator[None, str, bool]:
    """The tag before a key: true; or that behind the last value."""
    if (char or (yield from next_char())) != "<":
        raise Broken
    char = yield
    is_key = char != "/"
    marker = tags.key[0] if is_key else tags.end or end
    yield from read_marker(marker[1:], char)
    return is_key


def _read_until(marker: str) -> Chars:
    text = ""
    while not text.endswith(marker):
        text += yield
        if len(text) > _MAX_NAME_CHARS + len(marker):
            raise Broken
    return text.removesuffix(marker)


def _read_argument(tags: Tags, types: frozenset[str], say: Say) -> Reading:
    """A value: a text is given out as it comes, another once it is complete."""
    before, behind = tags.value
    if before:
        yield from read_marker(before, (yield from next_char()))
    newline = "\n" * tags.has_lines
    if types == {"string"}:
        say('"')
        yield from _read_text(newline, behind, lambda text: say(_escaped(text)))
        say('"')
        return
    parts: list[str] = []
    yield from _read_text(newline, behind, parts.append)
    say(to_json("".join(parts), types))


def _read_text(newline: str, end: str, say: Say) -> Reading:
    """Text up to `end`, without a `newline` at its beginning and one before its end."""
    held = yield
    if held == newline:
        held = ""
    while not held.endswith(end):
        shown = without_start_of(without_start_of(held, end), newline + end)
        if shown:
            say(shown)
        held = held[len(shown) :] + (yield)
    say(held.removesuffix(end).removesuffix(newline))


def _escaped(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]
