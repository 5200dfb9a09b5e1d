"""Incremental reader of tool calls in the text of an answer.

Pure: the concatenation of what it returns does not depend on how the text was split.
"""

import json
from contextlib import suppress

from mindspore_serving.core.llm_messages import ToolCallDelta
from mindspore_serving.llm.chat.deltas import PlainContent
from mindspore_serving.llm.chat.gemma_calls import read_call as read_gemma_call
from mindspore_serving.llm.chat.json_reader import (
    HeldText,
    Reading,
    UnexpectedChar,
    Value,
    after_colon,
    after_value,
    next_char,
    read_marker,
    read_string,
    read_value,
    without_partial_marker,
)
from mindspore_serving.llm.chat.named_calls import read_named, read_object
from mindspore_serving.llm.chat.python_calls import read_fenced, read_list
from mindspore_serving.llm.chat.tagged_calls import Schema, read_tagged
from mindspore_serving.llm.chat.tool_formats import TOOL_FORMATS, Tools, function_of

_NAME_CHARS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-")
_MAX_NAME_CHARS = 256
_MIN_MARKER = 2  # characters of a truncated marker: a single "<" may as well be content
KEYS = {
    "name": "name",
    "tool_name": "name",
    "tool_call_id": "id",
    "arguments": "arguments",
    "parameters": "arguments",
    "id": "id",  # some models add "id" and "type"
    "type": "type",
}
"""Keys of a call as JSON, and their meanings."""


class CallReader:
    """Reads the calls of one answer.

    Outside a call, text is scanned for the next marker; inside, a generator of `_begin` takes one
    character at a time.  Arguments are passed on as soon as the name is known.  What turns out to
    be no call becomes content again.

    Args:
        tool_format: a row of `TOOL_FORMATS`.
        tools: without a marker, only these are calls: an answer may be JSON.
        is_held: a call without a marker counts only if it is written as
            `tool_grammars.auto_grammar` enforces it; another is content.
    """

    def __init__(self, tool_format: str, tools: Tools, *, is_held: bool = False) -> None:
        self._format = TOOL_FORMATS[tool_format]
        self._is_held = is_held
        functions = [function_of(tool) for tool in tools]
        self._schemas: dict[str, Schema] = {
            function["name"]: function.get("parameters") or {} for function in functions
        }
        self._out: list[PlainContent | ToolCallDelta] = []
        self._arguments: list[str] = []  # of the latest call, not passed on yet
        self._held = HeldText()  # between calls
        self._is_start = True
        self._num_calls = 0
        self._reading: Reading | None = None
        self._is_marked = False  # True if a marker preceded the call being read
        self._raw: list[str] = []  # the call being read, as far as it was not passed on
        self._name: str | None = None  # of the call being read, once known
        self._is_begun = False  # True once that call was passed on
        self._early: list[str] = []  # its arguments, if they precede the name

    def feed(self, text: str) -> list[PlainContent | ToolCallDelta]:
        """Return what `text` adds."""
        while text:
            text = self._scan(text) if self._reading is None else self._read(text)
        return self._take()

    def finish(self, *, is_cut: bool = False) -> list[PlainContent | ToolCallDelta]:
        """Return what was held back; whitespace after a call is dropped.

        If the answer `is_cut`, a marker of which at least two characters arrived is dropped, too,
        and a call without arguments.
        """
        held = self._held.take() or "".join(self._raw)
        is_call = self._is_marked if self._reading else len(held.strip()) >= _MIN_MARKER
        if is_cut and is_call:
            held = ""
        self._raw, self._reading = [], None
        if held.strip() or not self._num_calls:
            self._emit(PlainContent(held))
        return self._take()

    def _take(self) -> list[PlainContent | ToolCallDelta]:
        self._emit_arguments()
        out, self._out = self._out, []
        return out

    def _emit(self, delta: PlainContent | ToolCallDelta) -> None:
        self._emit_arguments()
        if isinstance(delta, ToolCallDelta):
            self._out.append(delta)
        elif self._out and isinstance(last := self._out[-1], PlainContent):
            self._out[-1] = PlainContent(last.text + delta.text)
        elif delta.text:
            self._out.append(delta)

    def _emit_arguments(self) -> None:
        if self._arguments:
            text = "".join(self._arguments)
            self._out.append(ToolCallDelta(self._num_calls - 1, None, text))
            self._arguments.clear()

    def _scan(self, new: str) -> str:
        """Read text outside calls up to the next one; return the rest."""
        if self._held.adds(new):
            return ""
        text = self._held.take() + new
        begin = self._format.begin
        if self._is_start and self._format.is_bare:
            shown = text.lstrip()
            self._is_start = False
            if self._may_be_call(shown[0]):
                self._begin(text[: len(text) - len(shown)], is_marked=False)
                return shown
        index = text.find(begin) if begin else -1
        if index >= 0:
            before = text[:index].rstrip()
            self._emit(PlainContent(before))
            self._begin(text[len(before) : index + len(begin)], is_marked=True)
            return text[index + len(begin) :]
        shown = without_partial_marker(text, begin).rstrip()
        self._emit(PlainContent(shown))
        self._held.put(text[len(shown) :])
        return ""

    def _begin(self, raw: str, is_marked: bool) -> None:
        self._is_start = False
        self._raw, self._is_marked = [raw], is_marked
        self._reading = self._new_reading()
        next(self._reading)

    def _new_reading(self) -> Reading:
        """Return a reader of the calls after a marker."""
        row = self._format
        if row.tags is not None:
            return self._with_callbacks(read_tagged(row, self._schema_of, self._add_arguments))
        if row.named is not None:
            return self._with_callbacks(read_named(row, self._schema_of, self._add_arguments))
        if row.syntax:
            return self._with_callbacks(self._syntax())
        return self._listed() if row.is_list else self._objects()

    def _may_be_call(self, char: str) -> bool:
        """Return whether a call without a marker may begin with `char`."""
        if self._format.syntax == "chatglm":
            return char in _NAME_CHARS
        return char == ("[" if self._format.syntax else "{")

    def _read(self, text: str) -> str:
        """Read characters of a call; return the text after it.

        A call that becomes invalid before its arguments is content; a later one ends there.
        """
        assert self._reading is not None
        for index, char in enumerate(text):
            self._raw.append(char)
            try:
                self._reading.send(char)
            except StopIteration:
                self._reading, self._raw = None, []
                return text[index + 1 :]
            except UnexpectedChar:
                self._emit(PlainContent("".join(self._raw[:-1])))
                self._reading, self._raw = None, []
                return text[index:]
        return ""

    def _with_callbacks(self, reading: Reading) -> Reading:
        """Read with a reader that calls `_schema_of` and `_add_arguments`."""
        self._name, self._is_begun, self._early = None, False, []
        next(reading)
        with suppress(StopIteration):
            while True:
                reading.send((yield))
                if self._is_begun:
                    self._raw.clear()  # tags are never content, even of a truncated call

    def _schema_of(self, name: str) -> Schema:
        if not name.isprintable() or not (self._is_marked or name in self._schemas):
            raise UnexpectedChar
        self._name, self._is_begun = name, False
        return self._schemas.get(name, {})

    def _syntax(self) -> Reading:
        """Read calls that are neither JSON nor tags."""
        row = self._format
        if row.syntax == "gemma":
            yield from read_gemma_call(row.end, self._schema_of, self._add_arguments)
            return
        if row.syntax == "chatglm":
            yield from read_fenced(self._schema_of, self._add_arguments)
            return
        yield from read_list((yield from next_char()), self._schema_of, self._add_arguments)
        if self._is_marked:
            yield from read_marker(row.end, (yield from next_char()))

    def _objects(self) -> Reading:
        """Read objects with `separator` between them, and `end` after each."""
        char = yield from next_char()
        while True:
            yield from self._object(char)
            if self._format.end:
                yield from read_marker(self._format.end, (yield from next_char()))
            if not self._format.separator:
                return
            if (yield from next_char()) != self._format.separator:
                raise UnexpectedChar
            char = yield from next_char()

    def _listed(self) -> Reading:
        """Read a list of objects, objects without a list, or Mistral's name and arguments."""
        row = self._format
        char = yield from next_char()
        if not row.is_section and char not in "[{":
            yield from self._named(char)
            return
        if char not in "[{":
            raise UnexpectedChar
        is_list = char == "["
        while char in ("[," if is_list else "{"):
            yield from self._object((yield from next_char()) if is_list else char)
            if not (is_list or row.end):
                return
            char = yield from next_char()
        if is_list and char != "]":
            raise UnexpectedChar
        if row.end:
            yield from read_marker(row.end, (yield from next_char()) if is_list else char)

    def _named(self, char: str) -> Reading:
        """Read NAME[ARGS]{...} or NAME[CALL_ID]ID[ARGS]{...}."""
        name = ""
        while char in _NAME_CHARS and len(name) < _MAX_NAME_CHARS:
            name += char
            char = yield
        if not name or char != "[":
            raise UnexpectedChar
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
            raise UnexpectedChar
        self._name, self._is_begun = name, False
        yield from read_object(char, self._add_arguments)

    def _object(self, char: str) -> Reading:
        """Read `{"name": ..., "arguments": {...}}`.

        Keys come in any order, each at most once, and no others.  Null or missing arguments are
        "{}".
        """
        if char != "{":
            raise UnexpectedChar
        self._name, self._is_begun, self._early = None, False, []
        seen: set[str] = set()
        while char != "}":
            char = yield from next_char()
            key = KEYS.get(json.loads((yield from read_string(char))))
            if key is None or key in seen:
                raise UnexpectedChar
            seen.add(key)
            after = yield from self._read_member(key, (yield from after_colon()))
            char = yield from after_value(after)
            if char not in ",}":
                raise UnexpectedChar
        if self._name is None:
            raise UnexpectedChar
        if not self._is_begun:
            self._add_arguments("{}")
        self._raw.clear()

    def _read_member(self, key: str, char: str) -> Value:
        if key == "name":
            yield from self._read_name(char)
            return None
        if key == "arguments" and char == "{":
            yield from read_object(char, self._add_arguments)
            return None
        if key == "arguments" and char != "n":
            raise UnexpectedChar
        return (yield from read_value(char))

    def _read_name(self, char: str) -> Reading:
        name = json.loads((yield from read_string(char)))
        is_known = self._is_marked or name in self._schemas
        if not (name and name.isprintable() and is_known):
            raise UnexpectedChar
        self._name = name
        if self._early:
            self._add_arguments("".join(self._early))

    def _add_arguments(self, text: str) -> None:
        """Pass on arguments; they wait until the name is known, and begin the call then."""
        if self._name is None:
            self._early.append(text)
            return
        if not self._is_begun:
            self._check_held(self._name)
            self._emit(ToolCallDelta(self._num_calls, self._name))
            self._num_calls += 1
            self._is_begun = True
        self._raw.clear()
        self._arguments.append(text)

    def _check_held(self, name: str) -> None:
        """Check that the grammar enforces the arguments that begin.

        Raises Broken.
        """
        if self._is_held and not self._is_marked and not self._format.syntax:
            begin = f'{{"name": {json.dumps(name, ensure_ascii=False)}'
            if not "".join(self._raw).endswith(f'{begin}, "{self._format.arguments}": {{'):
                raise UnexpectedChar
