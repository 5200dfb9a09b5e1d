"""Incremental reader of tool calls without markers: bare JSON on separate lines, or in a fence.

A call must name an offered tool and fit its schema; everything else stays text, unchanged.  Text is
held back only while it may still become a call.
"""

import json
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from mindspore_serving.core.json_schema import closed
from mindspore_serving.core.llm_messages import ToolCallDelta
from mindspore_serving.llm.chat.deltas import PlainContent
from mindspore_serving.llm.chat.json_reader import (
    Chars,
    HeldText,
    Reading,
    UnexpectedChar,
    Value,
    after_colon,
    after_value,
    next_char,
    read_marker,
    read_value,
)
from mindspore_serving.llm.chat.schema_fit import fits
from mindspore_serving.llm.chat.tool_calls import KEYS
from mindspore_serving.llm.chat.tool_formats import Tools, function_of

_FENCE = "```"
_MAX_LANGUAGE = 32  # characters of the language after the opening of a fence
_OPENS = "{[`"
_LINE = re.compile(r"\n[ \t\r]*(?=[{\[`])")
_FENCE_LINE = re.compile(r"\n[ \t\r]*(?=`)")
_FENCES = re.compile(r"^[ \t\r]*```", re.MULTILINE)
_KEYS = {json.dumps(key): meaning for key, meaning in KEYS.items()}

Piece: TypeAlias = PlainContent | ToolCallDelta


@dataclass(frozen=True, slots=True)
class _Call:
    name: str
    arguments: str  # JSON, as it was written


class UnmarkedReader:
    """Reads the text that a `CallReader` leaves of one answer.

    A call is an object with "name" and "arguments" (or "parameters"); several are a list, or on
    consecutive lines.  Calls begin a line, and nothing follows on their last line; a fence holds
    nothing else.

    `_reading` is the reader of a possible call, None outside.  It succeeds at the end of a line or
    of the answer (`_may_end`), and raises `UnexpectedChar` at a character that rules a call out.
    """

    def __init__(self, tools: Tools) -> None:
        functions = [function_of(tool) for tool in tools]
        self._schemas = {item["name"]: item.get("parameters") for item in functions}
        self._names = {
            json.dumps(name, ensure_ascii=is_ascii): name
            for name in self._schemas
            for is_ascii in (True, False)
        }
        self._out: list[Piece] = []
        self._held = HeldText()  # whitespace at the end of the text so far
        self._is_line_start = True
        self._is_fenced = False  # inside a fence with other content
        self._num_calls = 0
        self._reading: Reading | None = None
        self._raw: list[str] = []  # the possible call, and the whitespace before it
        self._calls: list[_Call] = []  # calls read from it
        self._may_end = False  # True if it is complete when nothing follows

    def feed(self, pieces: Sequence[Piece]) -> list[Piece]:
        """Return the pieces that may be shown, with calls numbered from 0."""
        for piece in pieces:
            if isinstance(piece, PlainContent):
                self._feed(piece.text)
            else:
                self._add_marked(piece)
        return self._take()

    def finish(self) -> list[Piece]:
        """Return what was held back; whitespace after a call is dropped."""
        self._end(is_call=self._may_end)
        space = self._held.take()
        if not self._num_calls:
            self._emit(space)
        return self._take()

    def _take(self) -> list[Piece]:
        out, self._out = self._out, []
        return out

    def _emit(self, text: str) -> None:
        if not text:
            return
        self._is_line_start = False
        if self._out and isinstance(last := self._out[-1], PlainContent):
            self._out[-1] = PlainContent(last.text + text)
        else:
            self._out.append(PlainContent(text))

    def _emit_call(self, call: _Call) -> None:
        self._out.append(ToolCallDelta(self._num_calls, call.name))
        self._out.append(ToolCallDelta(self._num_calls, None, call.arguments))
        self._num_calls += 1
        self._is_line_start = True

    def _add_marked(self, piece: ToolCallDelta) -> None:
        """Add a call with the markers, or more of it."""
        if piece.name is not None:
            self._end(is_call=self._may_end)
            self._num_calls += 1
            self._held.take()
            self._is_line_start = True
        self._out.append(ToolCallDelta(self._num_calls - 1, piece.name, piece.arguments))

    def _feed(self, text: str) -> None:
        while text:
            text = self._scan(text) if self._reading is None else self._read(text)

    def _scan(self, new: str) -> str:
        """Read text up to the next line that may be a call; return the rest."""
        if self._held.adds(new):
            return ""
        text = self._held.take() + new
        line = _FENCE_LINE if self._is_fenced else _LINE
        match = None if self._begins_line(text) else line.search(text)
        if match is None and not self._begins_line(text):
            self._emit_text(text)
            return ""
        before = "" if match is None else text[: match.start()].rstrip()
        self._emit(before)
        remaining = text[len(before) :]
        shown = remaining.lstrip()
        self._raw, self._calls, self._may_end = (
            [remaining[: len(remaining) - len(shown)]],
            [],
            False,
        )
        self._reading = self._fence() if shown[0] == "`" else self._lines()
        next(self._reading)
        return shown

    def _begins_line(self, text: str) -> bool:
        """Return whether `text` may be a call from its first character on."""
        opens = "`" if self._is_fenced else _OPENS
        return self._is_line_start and text.lstrip()[0] in opens

    def _emit_text(self, text: str) -> None:
        """Pass on the text except whitespace at its end, after which a call may begin."""
        shown = text.rstrip()
        self._emit(shown)
        self._held.put(text[len(shown) :])

    def _read(self, text: str) -> str:
        """Read characters of a possible call; return the text after it."""
        assert self._reading is not None
        for index, char in enumerate(text):
            try:
                self._raw.append(char)
                self._reading.send(char)
            except StopIteration:
                self._end(is_call=True)
                self._held.put(char)  # the end of a line
                return text[index + 1 :]
            except UnexpectedChar:
                self._raw.pop()
                self._end(is_call=False)
                return text[index:]
        return ""

    def _end(self, *, is_call: bool) -> None:
        """End the reading: its text becomes calls, or stays text."""
        if self._reading is None:
            return
        raw = "".join(self._raw)
        if is_call:
            for call in self._calls:
                self._emit_call(call)
        else:
            self._emit_text(raw)
            self._is_fenced ^= len(_FENCES.findall(raw)) % 2 == 1
        self._reading, self._raw, self._calls, self._may_end = None, [], [], False

    def _fence(self) -> Reading:
        """Read a fence of nothing but calls, to the end of its last line."""
        yield from read_marker(_FENCE, (yield))
        if self._is_fenced:
            yield  # this fence closes another, whatever follows
            raise UnexpectedChar
        char, size = (yield), 0
        while char != "\n":
            size += 1
            if not (char.isalnum() or char in "_+-. \r") or size > _MAX_LANGUAGE:
                raise UnexpectedChar
            char = yield
        char = yield from self._call_then_next((yield from next_char()))
        while char != "`":
            char = yield from self._call_then_next(char)
        yield from read_marker(_FENCE, char)
        yield from self._line_end()

    def _lines(self) -> Reading:
        """Read a call, or a list of calls, to the end of a line."""
        yield from self._call_or_list((yield))
        yield from self._line_end()

    def _call_then_next(self, char: str) -> Chars:
        """Read a call, or a list of calls; return the next character that is no whitespace."""
        yield from self._call_or_list(char)
        self._may_end = True  # a fence may be left open
        char = yield from next_char()
        self._may_end = False
        return char

    def _line_end(self) -> Reading:
        self._may_end = True
        while (char := (yield)) != "\n":
            if not char.isspace():
                raise UnexpectedChar

    def _call_or_list(self, char: str) -> Reading:
        if char != "[":
            yield from self._call(char)
            return
        while char != "]":
            yield from self._call((yield from next_char()))
            char = yield from next_char()
            if char not in ",]":
                raise UnexpectedChar

    def _call(self, char: str) -> Reading:
        """Read `{"name": ..., "arguments": {...}}`.

        Keys come in any order, each at most once, and no others.
        """
        if char != "{":
            raise UnexpectedChar
        members: dict[str, str] = {}
        while char != "}":
            word = yield from _one_of(_KEYS, (yield from next_char()))
            key = _KEYS[word]
            if key in members:
                raise UnexpectedChar
            char = yield from after_colon()
            if key == "name":
                members[key] = self._names[(yield from _one_of(self._names, char))]
                after = None
            else:
                start = len(self._raw) - 1
                after = yield from _read_member(key, char)
                end = len(self._raw) - (after is not None)
                members[key] = "".join(self._raw[start:end])
            char = yield from after_value(after)
            if char not in ",}":
                raise UnexpectedChar
        self._calls.append(self._checked(members))

    def _checked(self, members: dict[str, str]) -> _Call:
        """Return the call.

        Raises Broken if it does not fit its tool.
        """
        name, arguments = members.get("name"), members.get("arguments", "{}")
        if name is None:
            raise UnexpectedChar
        arguments = "{}" if arguments.startswith("n") else arguments
        schema = self._schemas[name]
        parameters: Any = {"properties": {}} if schema is None else schema
        if not fits(
            json.loads(arguments),
            closed(parameters) if isinstance(parameters, dict) else parameters,
        ):
            raise UnexpectedChar
        return _Call(name, arguments)


def _read_member(key: str, char: str) -> Value:
    """Read the value of a key; arguments are an object, or null."""
    if key == "arguments" and char not in "{n":
        raise UnexpectedChar
    return (yield from read_value(char))


def _one_of(words: Collection[str], char: str) -> Chars:
    """Read one of `words`, which are JSON strings, beginning with `char`."""
    text = char
    while text not in words:
        if not any(word.startswith(text) for word in words):
            raise UnexpectedChar
        text += yield
    return text
