"""Incremental reader of tool calls whose arguments are tags: Qwen3-Coder's, GLM's and others.

Pure: the arguments come out as JSON, whose concatenation does not depend on how the text was split.
"""

import json
from collections.abc import Callable, Generator, Mapping
from typing import Any, TypeAlias

from mindspore_serving.llm.chat.json_reader import (
    MAX_NAME_CHARS,
    Reading,
    UnexpectedChar,
    next_char,
    read_choice,
    read_marker,
    read_until,
    without_partial_marker,
)
from mindspore_serving.llm.chat.parameter_types import ANY, to_json, types_of
from mindspore_serving.llm.chat.tool_formats import Tags, ToolFormat

Emit: TypeAlias = Callable[[str], None]
Schema: TypeAlias = Mapping[str, Any]
_TYPES = {"true": frozenset(("string",)), "false": frozenset((ANY,))}  # of a typed key


def read_tagged(row: ToolFormat, begin: Callable[[str], Schema], emit: Emit) -> Reading:
    """Read a call and the marker after it; in a section, all calls of the section.

    `begin` takes the name and returns the schema of the arguments; `emit` takes the arguments as
    JSON.
    """
    tags = row.tags
    assert tags is not None
    char = yield from next_char()
    if tags.name[0]:
        yield from read_marker(tags.name[0], char)
        char = yield
    is_over = False
    while not is_over:
        yield from _read_call(row, tags, char, begin, emit)
        if not tags.end:
            return
        markers = (tags.name[0], row.end) if row.is_section else (row.end,)
        choice = yield from read_choice(markers, (yield from next_char()))
        is_over = markers[choice] == row.end
        if not is_over:
            char = yield


def _read_call(
    row: ToolFormat, tags: Tags, char: str, begin: Callable[[str], Schema], emit: Emit
) -> Reading:
    """Read a call, whose name begins with `char`."""
    name, char = yield from _read_name(tags, char)
    schema = begin(name)
    emit("{")
    keys: set[str] = set()
    while (yield from _read_opening(char, tags, row.end)):
        key = yield from read_until(tags.key[1])
        types: frozenset[str] | None = None
        if tags.is_typed:
            key, _, word = key.partition('" string="')
            types = _TYPES.get(word)
        if key in keys:
            raise UnexpectedChar
        emit(", " * bool(keys) + json.dumps(key, ensure_ascii=False) + ": ")
        keys.add(key)
        yield from _read_argument(tags, types or _types_of(key, schema), emit)
        char = ""
    emit("}")


def _types_of(key: str, schema: Schema) -> frozenset[str]:
    properties = schema.get("properties")
    parameter = properties.get(key) if isinstance(properties, Mapping) else None
    return types_of(parameter, schema)


def _read_name(tags: Tags, char: str) -> Generator[None, str, tuple[str, str]]:
    """Return the name, and the "<" after it if the name has no end marker."""
    after = tags.name[1]
    name = ""
    while not (name.endswith(after) if after else char in "<\n"):
        if char in "<\n" or len(name) > MAX_NAME_CHARS:
            raise UnexpectedChar
        name += char
        if not name.endswith(after) or not after:
            char = yield
    name = name.removesuffix(after).strip()
    if not name or set(name) & set("<>"):
        raise UnexpectedChar
    return name, "" if after or char != "<" else char


def _read_opening(char: str, tags: Tags, end: str) -> Generator[None, str, bool]:
    """Read the tag before a key, or the tag after the last value.

    Return True before a key.
    """
    if (char or (yield from next_char())) != "<":
        raise UnexpectedChar
    char = yield
    is_key = char != "/"
    marker = tags.key[0] if is_key else tags.end or end
    yield from read_marker(marker[1:], char)
    return is_key


def _read_argument(tags: Tags, types: frozenset[str], emit: Emit) -> Reading:
    """Read a value: a string is passed on as it arrives, another type when it is complete."""
    before, after = tags.value
    if before:
        yield from read_marker(before, (yield from next_char()))
    newline = "\n" * tags.has_lines
    if types == {"string"}:
        emit('"')
        yield from _read_text(newline, after, lambda text: emit(_escaped(text)))
        emit('"')
        return
    parts: list[str] = []
    yield from _read_text(newline, after, parts.append)
    emit(to_json("".join(parts), types))


def _read_text(newline: str, end: str, emit: Emit) -> Reading:
    """Read text up to `end`, without one `newline` after its beginning and one before its end."""
    held = yield
    if held == newline:
        held = ""
    while not held.endswith(end):
        shown = without_partial_marker(without_partial_marker(held, end), newline + end)
        if shown:
            emit(shown)
        held = held[len(shown) :] + (yield)
    emit(held.removesuffix(end).removesuffix(newline))


def _escaped(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]
