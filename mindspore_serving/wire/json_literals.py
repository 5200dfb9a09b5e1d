"""JSON with the literals NaN, Infinity and -Infinity, which Python and others write.

JSON itself does not have them.  A text that cannot be decoded is decoded again with each literal
replaced by a number of the same length, so positions in errors stay correct.  Texts without
literals cost nothing.
"""

import math
import re
from dataclasses import dataclass
from itertools import product
from typing import Any, Generic, TypeVar

import msgspec
import numpy as np

from mindspore_serving.core.buffers import Buffer

T = TypeVar("T")

MAX_SIZE = 8 << 20  # bytes of a text in which literals are read, which takes several passes
_NAN, _INFINITY = b"NaN", b"Infinity"
_LITERAL = re.compile(rb"[\[,:\s-](?:NaN|Infinity)")
_NUMBERS = [b"%dE%d" % pair for pair in product(range(9, 0, -1), range(10))]  # as long as NaN
_INFINITE = b"9E999999"  # as long as Infinity
_HIDDEN = {b"N": b"\1", b"I": b"\2"}  # stand-ins for letters in strings; invalid in JSON


@dataclass(frozen=True, slots=True)
class Marked:
    """Text with numbers for its literals.

    `nan` did not occur in the text before; `_INFINITE` stands for Infinity.
    """

    text: bytes
    nan: bytes

    def restore(self, part: msgspec.Raw) -> bytes:
        """Return a part of the text with its literals."""
        return bytes(part).replace(self.nan, _NAN).replace(_INFINITE, _INFINITY)

    def to_float(self, text: str) -> float:
        """Convert a float of the text to a number.

        Raises ValueError if it is out of range, or consists of a literal and more characters.
        """
        if text == self.nan.decode():
            return math.nan
        value = float(text)
        is_literal = text.removeprefix("-") == _INFINITE.decode()
        if self.nan.decode() in text or (math.isinf(value) and not is_literal):
            raise ValueError("Number out of range, or NaN or Infinity beside a number")
        return value


def mark(text: Buffer) -> Marked | None:
    """Replace the literals of `text` by numbers.

    Returns None if it has no literals, is too long, or is invalid in any case.
    """
    if len(text) > MAX_SIZE or _LITERAL.search(text) is None:
        return None
    data = bytes(text)
    nan = next((number for number in _NUMBERS if number not in data), None)
    if nan is None or any(mark in data for mark in (_INFINITE, *_HIDDEN.values())):
        return None
    data = _hide_in_strings(data).replace(_NAN, nan).replace(_INFINITY, _INFINITE)
    for letter, hidden in _HIDDEN.items():
        data = data.replace(hidden, letter)
    return Marked(data, nan)


def hint(text: Buffer) -> str:
    """Return an addition to the error of a text that is too long for literals; "" otherwise."""
    data = bytes(text) if len(text) > MAX_SIZE else b""
    if _NAN in data or _INFINITY in data:
        return (
            f"; NaN and Infinity are read in JSON of at most {MAX_SIZE} bytes: write null for NaN, "
            "or send the values as bytes"
        )
    return ""


class Decoder(Generic[T]):
    """Decoder of the type `kind` that decodes literals as floats."""

    def __init__(self, kind: Any = Any) -> None:
        self._kind = kind
        self._plain: msgspec.json.Decoder[T] = msgspec.json.Decoder(kind)

    def decode(self, text: Buffer | msgspec.Raw) -> T:
        """Decode `text`.  Raises msgspec.DecodeError, UnicodeDecodeError or RecursionError."""
        try:
            return self._plain.decode(text)
        except msgspec.DecodeError as error:
            view = memoryview(text)
            marked = mark(view)
            if marked is None:
                raise type(error)(f"{error}{hint(view)}") from None
        return self._decode(marked)

    def _decode(self, marked: Marked) -> T:
        decoder = msgspec.json.Decoder(self._kind, float_hook=marked.to_float)
        value: T = decoder.decode(marked.text)
        return value


class RawDecoder(Decoder[T]):
    """Decoder of a type `kind` whose values stay msgspec.Raw, with literals in them."""

    def _decode(self, marked: Marked) -> T:
        value: T = _restored(self._plain.decode(marked.text), marked)
        return value


def _restored(value: Any, marked: Marked) -> Any:
    if isinstance(value, msgspec.Raw):
        return msgspec.Raw(marked.restore(value))
    if isinstance(value, list):
        return [_restored(item, marked) for item in value]
    if isinstance(value, dict):
        return {name: _restored(item, marked) for name, item in value.items()}
    if isinstance(value, msgspec.Struct):
        for name in value.__struct_fields__:
            setattr(value, name, _restored(getattr(value, name), marked))
    return value


def _hide_in_strings(data: bytes) -> bytes:
    """Replace the first letters of literals inside strings; the length stays the same.

    A string starts after an odd number of unescaped quotes, which a running count shows.
    """
    plain = data.replace(b"\\\\", b"__").replace(b'\\"', b"__")
    letters = np.frombuffer(plain, np.uint8)
    in_string = np.cumsum(letters == ord('"'), dtype=np.uint8) & 1 == 1
    result = np.frombuffer(bytearray(data), np.uint8)
    for letter, hidden in _HIDDEN.items():
        result[(letters == ord(letter)) & in_string] = ord(hidden)
    return result.tobytes()
