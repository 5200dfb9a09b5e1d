"""A call of a tool as models write it in JSON, `{"name": ..., "arguments": {...}}`, read char by
char, its arguments as the text they are.  Pure text.
"""

import json

from mindspore_serving.llm.chat.json_scan import JsonScanner, Verdict

_NAME = "name"
_ARGUMENTS = ("arguments", "parameters")
_IGNORED = ("id", "type")  # what some models add


class CallObject:
    """One call.  Keys may come in any order, and each but once; other keys than those of a call
    break it.  Arguments that are null, or are not there, are "{}".

    `name` is None until it is known.
    """

    __slots__ = ("_expected", "_key", "_new", "_part", "_scanner", "_seen", "is_done", "name")

    def __init__(self) -> None:
        self.name: str | None = None
        self.is_done = False
        self._expected = "{"  # the chars that may come between keys and values, or "value"
        self._seen: set[str] = set()
        self._key: str | None = None  # whose value is awaited; None while keys are
        self._scanner: JsonScanner | None = None  # of the key or the value that is being read
        self._part: list[str] = []  # its text
        self._new: list[str] = []  # of the arguments

    @property
    def has_arguments(self) -> bool:
        """Whether there is something to take."""
        return bool(self._new) or self.is_done

    def take(self) -> str:
        """What was added to the arguments since the last time."""
        text = "".join(self._new)
        self._new.clear()
        if self.is_done and not self._seen.intersection(_ARGUMENTS):
            self._seen.add(_ARGUMENTS[0])
            return "{}"
        return text

    def push(self, char: str) -> bool:
        """Whether the next char can be part of a call."""
        if self._scanner is not None:
            verdict = self._scanner.push(char)
            if verdict is Verdict.BROKEN:
                return False
            if verdict is not Verdict.AFTER:
                (self._new if self._is_argument() else self._part).append(char)
            if verdict is Verdict.MORE:
                return True
            if not self._end_part():
                return False
            if verdict is Verdict.LAST:
                return True
        return char in " \t\n\r" or self._push_between(char)

    def _push_between(self, char: str) -> bool:
        expected = self._expected
        if expected == "value":
            return self._begin_value(char)
        if char not in expected:
            return False
        if char == '"':
            self._scanner = JsonScanner()
            self._scanner.push(char)
            self._part = [char]
        elif char == "{":
            self._expected = '"}'
        elif char == ",":
            self._expected = '"'
        elif char == ":":
            self._expected = "value"
        else:
            self.is_done = self.name is not None
            return self.is_done
        return True

    def _begin_value(self, char: str) -> bool:
        if self._key == _NAME and char != '"':
            return False
        if self._key in _ARGUMENTS and char not in "{n":
            return False
        self._part = []
        if self._key in _ARGUMENTS:
            self._seen.add("null" if char == "n" else self._key)
        self._scanner = JsonScanner()
        return self.push(char)

    def _is_argument(self) -> bool:
        return self._key in _ARGUMENTS and self._key in self._seen

    def _end_part(self) -> bool:
        """A key or a value is complete: whether a call may have it."""
        self._scanner = None
        key, self._key = self._key, None
        if key is None:
            self._expected = ":"
            self._key = json.loads("".join(self._part))
            return self._is_new(self._key)
        self._expected = ",}"
        if key == _NAME:
            self.name = json.loads("".join(self._part))
            return self.name.isprintable() and self.name != ""
        return True

    def _is_new(self, key: str | None) -> bool:
        kind = _ARGUMENTS[0] if key in _ARGUMENTS else key
        is_new = key in (_NAME, *_ARGUMENTS, *_IGNORED) and f"key {kind}" not in self._seen
        self._seen.add(f"key {kind}")
        return is_new
