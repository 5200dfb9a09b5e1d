"""Number of values in a JSON text, counted before any value is created.

It scans for separators outside of strings, and knows neither fields nor validity.
"""

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from mindspore_serving.errors import InvalidField

Buffer: TypeAlias = bytes | bytearray | memoryview
Bytes: TypeAlias = "npt.NDArray[np.uint8]"

SMALL = 64 << 10  # bytes; a smaller body need not be checked
_CHUNK = 1 << 18  # bytes scanned at a time, between which other threads can run
_QUOTE, _COMMA, _BACKSLASH = ord('"'), ord(","), b"\\"
_SEPARATORS = np.zeros(256, bool)
_SEPARATORS[[ord(mark) for mark in ",[{"]] = True
_NESTING = np.zeros(256, np.int8)  # change of depth after a mark
_NESTING[[ord(mark) for mark in "[{"]] = 1
_NESTING[[ord(mark) for mark in "]}"]] = -1
_MARKS = _SEPARATORS | (_NESTING != 0)


@dataclass(frozen=True, slots=True)
class Shape:
    """Upper bound of the values, and exact number of the objects, of a text."""

    num_values: int = 1
    num_objects: int = 0


def check_shape(body: Buffer, allowed: Shape) -> None:
    """Raise InvalidField if `body` has more values or objects than `allowed`."""
    shape = find_shape(body, allowed)
    for kind, count, limit in (
        ("objects", shape.num_objects, allowed.num_objects),
        ("values", shape.num_values, allowed.num_values),
    ):
        if count > limit:
            text = f"the body has over {limit} {kind}, expected at most {limit}"
            raise InvalidField("", text=text)


def find_shape(body: Buffer, limit: Shape) -> Shape:
    """Count the values and objects of `body`, until one number exceeds that of `limit`."""
    shape, in_string, start = Shape(), False, 0
    while start < len(body):
        end = _end_of_chunk(body, start)
        chunk = _without_escapes(body, start, end)
        marks, in_string = _marks(chunk, _SEPARATORS, in_string=in_string)
        num_objects = shape.num_objects + int(np.count_nonzero(marks == ord("{")))
        shape = Shape(shape.num_values + len(marks), num_objects)
        if shape.num_values > limit.num_values or shape.num_objects > limit.num_objects:
            break
        start = end
    return shape


def has_more_items(body: Buffer, limit: int, depth: int) -> bool:
    """Return whether the lists and objects at nesting `depth` have over `limit` items together.

    The first item of each is not counted.
    """
    in_string, level, num_items, start = False, 0, 0, 0
    while start < len(body) and num_items <= limit:
        end = _end_of_chunk(body, start)
        chunk = _without_escapes(body, start, end)
        marks, in_string = _marks(chunk, _MARKS, in_string=in_string)
        levels = level + np.cumsum(_NESTING[marks], dtype=np.int64)
        num_items += int(np.count_nonzero((marks == _COMMA) & (levels == depth + 1)))
        level = int(levels[-1]) if len(levels) else level
        start = end
    return num_items > limit


def _end_of_chunk(body: Buffer, start: int) -> int:
    """Return the end of a chunk, which does not split an escape sequence."""
    end = min(start + _CHUNK, len(body))
    part = bytes(body[start:end])
    splits_escape = (len(part) - len(part.rstrip(_BACKSLASH))) % 2
    return min(end + splits_escape, len(body))


def _without_escapes(body: Buffer, start: int, end: int) -> Bytes:
    chunk = bytes(body[start:end]).replace(b"\\\\", b"").replace(b'\\"', b"")
    return np.frombuffer(chunk, np.uint8)


def _marks(chunk: Bytes, is_mark: npt.NDArray[np.bool_], *, in_string: bool) -> tuple[Bytes, bool]:
    """Return the marks outside of strings, and whether a string continues after `chunk`.

    `in_string` says whether a string continues before it.
    """
    quotes = np.flatnonzero(chunk == _QUOTE)
    indices = np.flatnonzero(is_mark[chunk])
    is_outside = np.searchsorted(quotes, indices) % 2 == in_string
    is_odd = len(quotes) % 2 == 1
    return chunk[indices[is_outside]], in_string != is_odd
