"""JSON texts with NaN, Infinity and -Infinity, which JSON has not, but Python and others write.

A text that cannot be decoded is tried again with a number of the same length in the place of each
such literal, so positions in errors stay right.  Texts without them cost nothing.
"""

import math
import re
from dataclasses import dataclass
from itertools import product
from typing import Any, Generic, TypeVar

import msgspec
import numpy as np

from mindspore_serving.core.pieces import Buffer

T = TypeVar("T")

MAX_SIZE = 8 << 20  # bytes of a text in which literals are read; it is gone through several times
_NAN, _INFINITY = b"NaN", b"Infinity"
_LITERAL = re.compile(rb"[\[,:\s-](?:NaN|Infinity)")
_NUMBERS = [b"%dE%d" % pair for pair in product(range(9, 0, -1), range(10))]  # as long as NaN
_INFINITE = b"9E999999"  # as long as Infinity
_HIDDEN = {b"N": b"\1", b"I": b"\2"}  # the first letters, in texts; JSON has no such characters


@dataclass(frozen=True, slots=True)
class Marked:
    """`text` has `nan`, a number that it had not before, for NaN, and `_INFINITE` for Infinity."""

    text: bytes
    nan: bytes

    def restore(self, part: msgspec.Raw) -> bytes:
        """A part of the text as it was."""
        return bytes(part).replace(self.nan, _NAN).replace(_INFINITE, _INFINITY)

    def to_float(self, text: str) -> float:
        """The number that a float of the text is.  Raises ValueError for one that is made of a
        literal and more, and for one that is out of range.
        """
        if text == self.nan.decode():
            return math.nan
        value = float(text)
        is_literal = text.removeprefix("-") == _INFINITE.decode()
        if self.nan.decode() in text or (math.isinf(value) and not is_literal):
            raise ValueError("Number out of range, or NaN or Infinity beside a number")
        return value


def mark(text: Buffer) -> Marked | None:
    """`text` with numbers for its literals; None if it has none, is too long, or is no JSON
    anyway.
    """
    if len(text) > MAX_SIZE or _LITERAL.search(text) is None:
        return None
    data = bytes(text)
    nan = next((number for number in _NUMBERS if number not in data), None)
    if nan is None or any(one in data for one in (_INFINITE, *_HIDDEN.values())):
        return None
    data = _hide_in_texts(data).replace(_NAN, nan).replace(_INFINITY, _INFINITE)
    for letter, hidden in _HIDDEN.items():
        data = data.replace(hidden, letter)
    return Marked(data, nan)


def hint(text: Buffer) -> str:
    """What the error of a text that is too long to be marked goes on with; "" for another one."""
    data = bytes(text) if len(text) > MAX_SIZE else b""
    if _NAN in data or _INFINITY in data:
        return (
            f"; NaN and Infinity are read in JSON of at most {MAX_SIZE} bytes: write null for NaN, "
            "or send the values as bytes"
        )
    return ""


class Decoder(Generic[T]):
    """Decodes a `kind`, in which literals are floats."""

    def __init__(self, kind: Any = Any) -> None:
        self._kind = kind
        self._plain: msgspec.json.Decoder[T] = msgspec.json.Decoder(kind)

    def decode(self, text: Buffer | msgspec.Raw) -> T:
        """Raises msgspec.DecodeError, UnicodeDecodeError or RecursionError."""
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
        found: T = decoder.decode(marked.text)
        return found


class RawDecoder(Decoder[T]):
    """Decodes a `kind` whose values are kept as msgspec.Raw, with the literals in them."""

    def _decode(self, marked: Marked) -> T:
        found: T = _restored(self._plain.decode(marked.text), marked)
        return found


def _restored(found: Any, marked: Marked) -> Any:
    if isinstance(found, msgspec.Raw):
        return msgspec.Raw(marked.restore(found))
    if isinstance(found, list):
        return [_restored(item, marked) for item in found]
    if isinstance(found, msgspec.Struct):
        for name in found.__struct_fields__:
            setattr(found, name, _restored(getattr(found, name), marked))
    return found


def _hide_in_texts(data: bytes) -> bytes:
    """Without the letters in texts that a literal begins with; of the same length."""
    plain = data.replace(b"\\\\", b"__").replace(b'\\"', b"__")
    letters = np.frombuffer(plain, np.uint8)
    is_text = np.cumsum(letters == ord('"'), dtype=np.uint8) & 1 == 1
    result = np.frombuffer(bytearray(data), np.uint8)
    for letter, hidden in _HIDDEN.items():
        result[(letters == ord(letter)) & is_text] = ord(hidden)
    return result.tobytes()
