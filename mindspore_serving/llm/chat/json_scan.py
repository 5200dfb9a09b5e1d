"""JSON read char by char, as it is being written: how far it is JSON, and where a value ends.

Pure text.  It keeps no values: who reads keeps the text.
"""

import re
from enum import Enum

_SPACE = " \t\n\r"
_SCALAR_CHARS = frozenset("+-.0123456789Eaeflnrstu")
_LITERALS = ("true", "false", "null")
_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?", re.ASCII)
_NUMBER_START = re.compile(
    r"-?(?:(?:0|[1-9]\d*)(?:\.(?:\d+(?:[eE][+-]?\d*)?)?|[eE][+-]?\d*)?)?", re.ASCII
)
_MAX_SCALAR_CHARS = 400


class Verdict(Enum):
    """What a char is to a value."""

    MORE = "more"  # part of it, and there may be more
    LAST = "last"  # its last char
    AFTER = "after"  # it ended with the char before
    BROKEN = "broken"  # this is not JSON


class _Expected(Enum):
    VALUE = "value"
    ITEM_OR_END = "item or end"
    KEY = "key"
    KEY_OR_END = "key or end"
    COLON = "colon"
    NEXT = "comma or end"


class JsonScanner:
    """Follows one value.  Once it ended or broke, it takes no more."""

    __slots__ = ("_escape", "_expected", "_in_string", "_open", "_scalar")

    def __init__(self) -> None:
        self._open: list[str] = []  # the ends of what is open, "}" and "]"
        self._expected = _Expected.VALUE
        self._in_string = False
        self._escape = ""  # of a string: a backslash and what follows, while incomplete
        self._scalar = ""

    def push(self, char: str) -> Verdict:
        """The next char; no space goes before a value."""
        if self._in_string:
            return self._push_string(char)
        if self._scalar:
            if char in _SCALAR_CHARS:
                return self._push_scalar(char)
            if not _is_scalar(self._scalar):
                return Verdict.BROKEN
            self._scalar = ""
            if self._end_value() is Verdict.LAST:
                return Verdict.AFTER
        if char in _SPACE and self._open:
            return Verdict.MORE
        return self._push_structure(char)

    def _push_structure(self, char: str) -> Verdict:
        expected = self._expected
        if self._open and char == self._open[-1]:
            if expected in (_Expected.NEXT, _Expected.ITEM_OR_END, _Expected.KEY_OR_END):
                self._open.pop()
                return self._end_value()
            return Verdict.BROKEN
        if expected is _Expected.NEXT:
            self._expected = _Expected.KEY if self._open[-1] == "}" else _Expected.VALUE
            return Verdict.MORE if char == "," else Verdict.BROKEN
        if expected is _Expected.COLON:
            self._expected = _Expected.VALUE
            return Verdict.MORE if char == ":" else Verdict.BROKEN
        if char == '"':
            self._in_string = True
            return Verdict.MORE
        if expected in (_Expected.KEY, _Expected.KEY_OR_END):
            return Verdict.BROKEN
        return self._begin_value(char)

    def _begin_value(self, char: str) -> Verdict:
        if char == "{":
            self._open.append("}")
            self._expected = _Expected.KEY_OR_END
        elif char == "[":
            self._open.append("]")
            self._expected = _Expected.ITEM_OR_END
        else:
            return self._push_scalar(char)
        return Verdict.MORE

    def _push_scalar(self, char: str) -> Verdict:
        self._scalar += char
        is_known = _is_scalar_start(self._scalar) and len(self._scalar) <= _MAX_SCALAR_CHARS
        return Verdict.MORE if is_known else Verdict.BROKEN

    def _push_string(self, char: str) -> Verdict:
        if self._escape:
            return self._push_escape(char)
        if char == "\\":
            self._escape = char
        elif char == '"':
            self._in_string = False
            if self._expected in (_Expected.KEY, _Expected.KEY_OR_END):
                self._expected = _Expected.COLON
                return Verdict.MORE
            return self._end_value()
        elif char < " ":
            return Verdict.BROKEN
        return Verdict.MORE

    def _push_escape(self, char: str) -> Verdict:
        self._escape += char
        if self._escape[1] == "u":
            is_known = len(self._escape) == 2 or char in "0123456789abcdefABCDEF"
            is_complete = len(self._escape) == 6
        else:
            is_known, is_complete = char in '"\\/bfnrt', True
        if is_complete:
            self._escape = ""
        return Verdict.MORE if is_known else Verdict.BROKEN

    def _end_value(self) -> Verdict:
        self._expected = _Expected.NEXT
        return Verdict.MORE if self._open else Verdict.LAST


def _is_scalar(text: str) -> bool:
    return text in _LITERALS or _NUMBER.fullmatch(text) is not None


def _is_scalar_start(text: str) -> bool:
    is_literal = any(literal.startswith(text) for literal in _LITERALS)
    return is_literal or _NUMBER_START.fullmatch(text) is not None
