"""Calls of tools found in the text of an answer, as it comes.

Pure text: what it gives is independent of how the text was cut into pieces.
"""

from collections.abc import Collection, Generator
from typing import TypeAlias

from mindspore_serving.llm.chat.call_object import CallObject
from mindspore_serving.llm.chat.deltas import CallArguments, CallBegun, Content, Delta
from mindspore_serving.llm.chat.json_scan import JsonScanner, Verdict
from mindspore_serving.llm.chat.markers import without_start_of
from mindspore_serving.llm.chat.tool_formats import TOOL_FORMATS

Reading: TypeAlias = Generator[None, str, None]  # takes chars, ends with the last of a call
Chars: TypeAlias = Generator[None, str, str]  # takes chars, gives one or several of them

_NAME_CHARS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-")
_MAX_NAME_CHARS = 256


class Broken(Exception):
    """What looked like a call is none, with the char that was just given."""


class CallReader:
    """Reads one answer.

    Args:
        tool_format: a row of `TOOL_FORMATS`.
        names: of the tools.  A call without a marker before it must be of one of them; else an
            answer in JSON would be taken for a call.
    """

    def __init__(self, tool_format: str, names: Collection[str]) -> None:
        self._format = TOOL_FORMATS[tool_format]
        self._names = frozenset(names)
        self._out: list[Delta] = []
        self._arguments: list[str] = []  # of the latest call, not given out yet
        self._held = ""  # between calls: spaces and the start of a marker, perhaps
        self._is_start = True
        self._num_calls = 0
        self._reading: Reading | None = None
        self._is_marked = False  # whether a marker was before what is being read
        self._is_begun = False  # whether the call that is being read was given out
        self._raw = ""  # of what is being read: all that was not given out in another form

    def feed(self, text: str) -> list[Delta]:
        while text:
            text = self._scan(text) if self._reading is None else self._read(text)
        return self._take()

    def finish(self) -> list[Delta]:
        """What was held back.  Space behind a call is dropped."""
        rest, self._held, self._raw = self._held or self._raw, "", ""
        self._reading = None
        if rest.strip() or not self._num_calls:
            self._say(Content(rest))
        return self._take()

    def _take(self) -> list[Delta]:
        self._say_arguments()
        out, self._out = self._out, []
        return out

    def _say(self, delta: Content | CallBegun) -> None:
        self._say_arguments()
        if isinstance(delta, CallBegun):
            self._out.append(delta)
        elif self._out and isinstance(last := self._out[-1], Content):
            self._out[-1] = Content(last.text + delta.text)
        elif delta.text:
            self._out.append(delta)

    def _say_arguments(self) -> None:
        if self._arguments:
            self._out.append(CallArguments(self._num_calls - 1, "".join(self._arguments)))
            self._arguments.clear()

    def _scan(self, new: str) -> str:
        """Text outside of calls up to the next one; what is left of it."""
        text, self._held = self._held + new, ""
        begin = self._format.begin
        if self._is_start and self._format.is_bare:
            shown = text.lstrip()
            if not shown:
                self._held = text
                return ""
            self._is_start = False
            if shown[0] == "{":
                self._begin(text[: len(text) - len(shown)], is_marked=False)
                return shown
        place = text.find(begin) if begin else -1
        if place >= 0:
            before = text[:place].rstrip()
            self._say(Content(before))
            self._begin(text[len(before) : place + len(begin)], is_marked=True)
            return text[place + len(begin) :]
        shown = without_start_of(text, begin).rstrip()
        self._say(Content(shown))
        self._held = text[len(shown) :]
        return ""

    def _begin(self, raw: str, is_marked: bool) -> None:
        self._is_start = False
        self._raw, self._is_marked, self._is_begun = raw, is_marked, False
        self._reading = self._mistral() if self._format.is_list else self._objects()
        next(self._reading)

    def _read(self, text: str) -> str:
        """Chars of a call; what is left of the text behind it.

        Where a call breaks before its name and the start of its arguments are known, it was none:
        all of it is content.  Where it breaks later, its arguments end there, and what follows is
        content.
        """
        assert self._reading is not None
        for index, char in enumerate(text):
            self._raw += char
            try:
                self._reading.send(char)
            except StopIteration:
                self._reading, self._raw = None, ""
                return text[index + 1 :]
            except Broken:
                self._say(Content(self._raw[:-1]))
                self._reading, self._raw = None, ""
                return text[index:]
        return ""

    def _objects(self) -> Reading:
        """Objects with `separator` between them, and `end` behind."""
        char = yield from _next()
        while True:
            yield from self._object(char)
            if self._format.end:
                yield from _marker(self._format.end, (yield from _next()))
            if not self._format.separator:
                return
            if (yield from _next()) != self._format.separator:
                raise Broken
            char = yield from _next()

    def _mistral(self) -> Reading:
        """A list of objects, or a name and its arguments."""
        char = yield from _next()
        if char != "[":
            yield from self._named(char)
            return
        while True:
            char = yield from _next()
            yield from self._object(char)
            char = yield from _next()
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
            yield from _marker("CALL_ID]", char)
            char = yield
            for _ in range(_MAX_NAME_CHARS):
                if char not in _NAME_CHARS:
                    break
                char = yield
            yield from _marker("[ARGS]", char)
        else:
            yield from _marker("ARGS]", char)
        char = yield from _next()
        if char != "{":
            raise Broken
        self._begin_call(name)
        scanner = JsonScanner()
        while (verdict := scanner.push(char)) is Verdict.MORE:
            self._add_arguments(char)
            char = yield
        if verdict is not Verdict.LAST:
            raise Broken
        self._add_arguments(char)

    def _object(self, char: str) -> Reading:
        call = CallObject()
        self._is_begun = False
        while call.push(char):
            if call.name is not None:
                if not self._is_marked and call.name not in self._names:
                    break
                if call.has_arguments:
                    if not self._is_begun:
                        self._begin_call(call.name)
                    self._add_arguments(call.take())
            if call.is_done:
                return
            char = yield
        raise Broken

    def _begin_call(self, name: str) -> None:
        self._say(CallBegun(self._num_calls, name))
        self._num_calls += 1
        self._is_begun = True

    def _add_arguments(self, text: str) -> None:
        self._raw = ""
        if text:
            self._arguments.append(text)


def _next() -> Chars:
    """The next char that is no space."""
    char = yield
    while char.isspace():
        char = yield
    return char


def _marker(marker: str, char: str) -> Reading:
    """All of `marker`, of which `char` is to be the first."""
    for wanted in marker[:-1]:
        if char != wanted:
            raise Broken
        char = yield
    if char != marker[-1]:
        raise Broken
