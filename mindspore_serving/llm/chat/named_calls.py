"""Incremental reader of tool calls that are a name and JSON: DeepSeek's and Kimi's.

Pure: takes one character at a time.
"""

from collections.abc import Callable

from mindspore_serving.llm.chat.json_reader import (
    Reading,
    UnexpectedChar,
    next_char,
    read_choice,
    read_marker,
    read_until,
    read_value,
)
from mindspore_serving.llm.chat.tool_formats import NamedCall, ToolFormat

Emit = Callable[[str], None]


def read_named(row: ToolFormat, begin: Callable[[str], object], emit: Emit) -> Reading:
    """Read calls up to the end of their section.

    `begin` takes the name of each call, `emit` its arguments as they arrive.
    """
    named = row.named
    assert named is not None
    markers = (named.before[0], row.end)
    opening, between, after = ("".join(part) for part in (named.before, named.between, named.after))
    rest = opening[len(named.before[0]) :]
    while (yield from read_choice(markers, (yield from next_char()))) == 0:
        name = yield from read_until(between.strip())
        begin(_plain_name(named, name.strip().removeprefix(rest)))
        char = yield from next_char()
        if char != "{":
            raise UnexpectedChar
        yield from read_object(char, emit)
        yield from read_marker(after.strip(), (yield from next_char()))


def read_object(char: str, emit: Emit) -> Reading:
    """Read a JSON object that begins with `char`, and emit its text as it arrives."""
    reading = read_value(char)
    next(reading)
    is_over = False
    while True:
        emit(char)
        if is_over:
            return
        char = yield
        try:
            reading.send(char)
        except StopIteration:
            is_over = True


def _plain_name(named: NamedCall, name: str) -> str:
    """Return `name` without its number.  Raises UnexpectedChar if none is left."""
    if named.is_numbered:
        stem, _, number = name.rpartition(":")
        name = stem if number.isdecimal() else name
    if not name:
        raise UnexpectedChar
    return name
