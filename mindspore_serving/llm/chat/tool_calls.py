"""Calls of tools found in the text of an answer, as it comes.

Pure text: what it gives is independent of how the text was cut into pieces.
"""

import json
from contextlib import suppress
from dataclasses import dataclass

from mindspore_serving.core.llm_messages import ToolCallDelta
from mindspore_serving.llm.chat.json_reader import (
    Broken,
    HeldText,
    Reading,
    Value,
    behind_colon,
    behind_value,
    next_char,
    read_marker,
    read_string,
    read_value,
    without_start_of,
)
from mindspore_serving.llm.chat.tagged_calls import Schema, read_tagged
from mindspore_serving.llm.chat.tool_formats import TOOL_FORMATS, Tags, Tools, function_of

_NAME_CHARS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-")
_MAX_NAME_CHARS = 256
_LEAST_MARKER = 2  # characters of a cut marker: a single "<" may as well be the answer's
KEYS = {
    "name": "name",
    "arguments": "arguments",
    "parameters": "arguments",
    "id": "id",  # this and the next are added by some models
    "type": "type",
}
"""Of a call as JSON: what they mean."""


@dataclass(frozen=True, slots=True)
class PlainContent:
    """Text that is neither reasoning nor a call."""

    text: str


class CallReader:
    """Reads one answer.

    Args:
        tool_format: a row of `TOOL_FORMATS`.
        tools: without a marker, only these are calls: an answer may be JSON.
        is_held: a call without a marker is one only as far as `tool_grammars.auto_grammar` holds
            it; one that is written otherwise is content.
    """

    def __init__(self, tool_format: str, tools: Tools, *, is_held: bool = False) -> None:
        self._format = TOOL_FORMATS[tool_format]
        self._is_held = is_held
        functions = [function_of(tool) for tool in tools]
        self._schemas: dict[str, Schema] = {
            one["name"]: one.get("parameters") or {} for one in functions
        }
        self._out: list[PlainContent | ToolCallDelta] = []
        self._arguments: list[str] = []  # of the latest call, not given out yet
        self._held = HeldText()  # between calls
        self._is_start = True
        self._num_calls = 0
        self._reading: Reading | None = None
        self._is_marked = False  # whether a marker was before what is being read
        self._raw: list[str] = []  # of what is being read: what was not given out in another form
        self._name: str | None = None  # of the call that is being read, once it is known
        self._is_begun = False  # whether that call was given out
        self._early: list[str] = []  # its arguments, if they come before the name

    def feed(self, text: str) -> list[PlainContent | ToolCallDelta]:
        while text:
            text = self._scan(text) if self._reading is None else self._read(text)
        return self._take()

    def finish(self, *, is_cut: bool = False) -> list[PlainContent | ToolCallDelta]:
        """What was held back.  Space behind a call is dropped; of an answer that `is_cut`, also a
        marker of which at least two characters came, and a call without arguments.
        """
        rest = self._held.take() or "".join(self._raw)
        is_call = self._is_marked if self._reading else len(rest.strip()) >= _LEAST_MARKER
        if is_cut and is_call:
            rest = ""
        self._raw, self._reading = [], None
        if rest.strip() or not self._num_calls:
            self._say(PlainContent(rest))
        return self._take()

    def _take(self) -> list[PlainContent | ToolCallDelta]:
        self._say_arguments()
        out, self._out = self._out, []
        return out

    def _say(self, delta: PlainContent | ToolCallDelta) -> None:
        self._say_arguments()
        if isinstance(delta, ToolCallDelta):
            self._out.append(delta)
        elif self._out and isinstance(last := self._out[-1], PlainContent):
            self._out[-1] = PlainContent(last.text + delta.text)
        elif delta.text:
            self._out.append(delta)

    def _say_arguments(self) -> None:
        if self._arguments:
            text = "".join(self._arguments)
            self._out.append(ToolCallDelta(self._num_calls - 1, None, text))
            self._arguments.clear()

    def _scan(self, new: str) -> str:
        """Text outside of calls up to the next one; what is left of it."""
        if self._held.adds(new):
            return ""
        text = self._held.take() + new
        begin = self._format.begin
        if self._is_start and self._format.is_bare:
            shown = text.lstrip()
            self._is_start = False
            if shown[0] == "{":
                self._begin(text[: len(text) - len(shown)], is_marked=False)
                return shown
        place = text.find(begin) if begin else -1
        if place >= 0:
            before = text[:place].rstrip()
            self._say(PlainContent(before))
            self._begin(text[len(before) : place + len(begin)], is_marked=True)
            return text[place + len(begin) :]
        shown = without_start_of(text, begin).rstrip()
        self._say(PlainContent(shown))
        self._held.put(text[len(shown) :])
        return ""

    def _begin(self, raw: str, is_marked: bool) -> None:
        self._is_start = False
        self._raw, self._is_marked = [raw], is_marked
        if self._format.tags is not None:
            self._reading = self._tagged(self._format.tags)
        else:
            self._reading = self._mistral() if self._format.is_list else self._objects()
        next(self._reading)

    def _read(self, text: str) -> str:
        """Chars of a call; what is left of the text behind it.

        A call that breaks before its arguments are known is content; a later one ends there.
        """
        assert self._reading is not None
        for index, char in enumerate(text):
            self._raw.append(char)
            try:
                self._reading.send(char)
            except StopIteration:
                self._reading, self._raw = None, []
                return text[index + 1 :]
            except Broken:
                self._say(PlainContent("".join(self._raw[:-1])))
                self._reading, self._raw = None, []
                return text[index:]
        return ""

    def _tagged(self, tags: Tags) -> Reading:
        """A name and arguments, all in tags."""
        self._name, self._is_begun, self._early = None, False, []
        reading = read_tagged(tags, self._format.end, self._schema_of, self._add_arguments)
        next(reading)
        with suppress(StopIteration):
            while True:
                reading.send((yield))
                if self._is_begun:
                    self._raw.clear()  # a tag is never content, also of a call that is cut off

    def _schema_of(self, name: str) -> Schema:
        if not name.isprintable():
            raise Broken
        self._name = name
        return self._schemas.get(name, {})

    def _objects(self) -> Reading:
        """Objects with `separator` between them, and `end` behind."""
        char = yield from next_char()
        while True:
            yield from self._object(char)
            if self._format.end:
                yield from read_marker(self._format.end, (yield from next_char()))
            if not self._format.separator:
                return
            if (yield from next_char()) != self._format.separator:
                raise Broken
            char = yield from next_char()

    def _mistral(self) -> Reading:
        """A list of objects, or a name and its arguments."""
        char = yield from next_char()
        if char != "[":
            yield from self._named(char)
            return
        while True:
            yield from self._object((yield from next_char()))
            char = yield from next_char()
            if char == "]":
                return
            if char != ",":
                raise Broken

    def _named(self, char: str) -> Reading:
        """NAME[ARGS]{...} or NAME[CALL_ID]ID[ARGS]{...}."""
        name = ""
        while char in _NAME_CHARS and len(name) < _MAX_NAME_CHARS:
            name += char
            char = yield
        if not name or char != "[":
            raise Broken
        char = yield
        if char == "C":
            yield from read_marker("CALL_ID]", char)
            char = yield
            for _ in range(_MAX_NAME_CHARS):
                if char not in _NAME_CHARS:
                    break
                char = yield
            yield from read_marker("[ARGS]", char)
        else:
            yield from read_marker("ARGS]", char)
        char = yield from next_char()
        if char != "{":
            raise Broken
        self._name, self._is_begun = name, False
        yield from self._read_arguments(char)

    def _object(self, char: str) -> Reading:
        """`{"name": ..., "arguments": {...}}`.

        Keys come in any order, each once, no others.  Arguments null or missing are "{}".
        """
        if char != "{":
            raise Broken
        self._name, self._is_begun, self._early = None, False, []
        seen: set[str] = set()
        while char != "}":
            char = yield from next_char()
            key = KEYS.get(json.loads((yield from read_string(char))))
            if key is None or key in seen:
                raise Broken
            seen.add(key)
            behind = yield from self._read_member(key, (yield from behind_colon()))
            char = yield from behind_value(behind)
            if char not in ",}":
                raise Broken
        if self._name is None:
            raise Broken
        if not self._is_begun:
            self._add_arguments("{}")
        self._raw.clear()

    def _read_member(self, key: str, char: str) -> Value:
        if key == "name":
            yield from self._read_name(char)
            return None
        if key == "arguments" and char == "{":
            yield from self._read_arguments(char)
            return None
        if key == "arguments" and char != "n":
            raise Broken
        return (yield from read_value(char))

    def _read_name(self, char: str) -> Reading:
        name = json.loads((yield from read_string(char)))
        is_known = self._is_marked or name in self._schemas
        if not (name and name.isprintable() and is_known):
            raise Broken
        self._name = name
        if self._early:
            self._add_arguments("".join(self._early))

    def _read_arguments(self, char: str) -> Reading:
        """An object, of which `char` is the first; its text is given out as it comes."""
        reading = read_value(char)
        next(reading)
        is_over = False
        while True:
            self._add_arguments(char)
            if is_over:
                return
            char = yield
            try:
                reading.send(char)
            except StopIteration:
                is_over = True

    def _add_arguments(self, text: str) -> None:
        if self._name is None:
            self._early.append(text)
            return
        if not self._is_begun:
            self._check_held(self._name)
            self._say(ToolCallDelta(self._num_calls, self._name))
            self._num_calls += 1
            self._is_begun = True
        self._raw.clear()
        self._arguments.append(text)

    def _check_held(self, name: str) -> None:
        """Raise Broken if no grammar holds the arguments that begin."""
        if self._is_held and not self._is_marked:
            begin = f'{{"name": {json.dumps(name, ensure_ascii=False)}'
            if not "".join(self._raw).endswith(f'{begin}, "{self._format.arguments}": {{'):
                raise Broken
