"""How many values a JSON text has, before any is made: without reading it, outside of its texts.

Knows neither fields nor what is valid.
"""

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from mindspore_serving.errors import InvalidField

Buffer: TypeAlias = bytes | bytearray | memoryview
Bytes: TypeAlias = "npt.NDArray[np.uint8]"

SMALL = 64 << 10  # bytes: a body has never so much in it that it matters
_CHUNK = 1 << 18  # bytes at a time, between which other threads go on
_QUOTE, _COMMA, _BACKSLASH = ord('"'), ord(","), b"\\"
_SEPARATORS = np.zeros(256, bool)
_SEPARATORS[[ord(mark) for mark in ",[{"]] = True
_NESTING = np.zeros(256, np.int8)  # how much deeper it is behind a mark
_NESTING[[ord(mark) for mark in "[{"]] = 1
_NESTING[[ord(mark) for mark in "]}"]] = -1
_MARKS = _SEPARATORS | (_NESTING != 0)


@dataclass(frozen=True, slots=True)
class Shape:
    """`num_values` are at most, `num_objects` exactly those of the text."""

    num_values: int = 1
    num_objects: int = 0


def check_shape(body: Buffer, allowed: Shape) -> None:
    """Raises InvalidField if `body` has more than is `allowed`."""
    shape = find_shape(body, allowed)
    for kind, count, most in (
        ("objects", shape.num_objects, allowed.num_objects),
        ("values", shape.num_values, allowed.num_values),
    ):
        if count > most:
            raise InvalidField("", text=f"the body has over {most} {kind}, expected at most {most}")


def find_shape(body: Buffer, most: Shape) -> Shape:
    """The numbers; counting ends where one is over that of `most`."""
    found, is_text, start = Shape(), False, 0
    while start < len(body):
        end = _end_of_chunk(body, start)
        marks, is_text = _marks(_without_escapes(body, start, end), _SEPARATORS, is_text=is_text)
        num_objects = found.num_objects + int(np.count_nonzero(marks == ord("{")))
        found = Shape(found.num_values + len(marks), num_objects)
        if found.num_values > most.num_values or found.num_objects > most.num_objects:
            break
        start = end
    return found


def has_more_items(body: Buffer, most: int, depth: int) -> bool:
    """Whether the lists and objects that lie in `depth` others have over `most` items together, but
    for one of each.
    """
    is_text, level, num_items, start = False, 0, 0, 0
    while start < len(body) and num_items <= most:
        end = _end_of_chunk(body, start)
        marks, is_text = _marks(_without_escapes(body, start, end), _MARKS, is_text=is_text)
        levels = level + np.cumsum(_NESTING[marks], dtype=np.int64)
        num_items += int(np.count_nonzero((marks == _COMMA) & (levels == depth + 1)))
        level = int(levels[-1]) if len(levels) else level
        start = end
    return num_items > most


def _end_of_chunk(body: Buffer, start: int) -> int:
    """Where a chunk ends: not in the middle of an escaped character."""
    end = min(start + _CHUNK, len(body))
    part = bytes(body[start:end])
    is_cut = (len(part) - len(part.rstrip(_BACKSLASH))) % 2
    return min(end + is_cut, len(body))


def _without_escapes(body: Buffer, start: int, end: int) -> Bytes:
    chunk = bytes(body[start:end]).replace(b"\\\\", b"").replace(b'\\"', b"")
    return np.frombuffer(chunk, np.uint8)


def _marks(chunk: Bytes, wanted: npt.NDArray[np.bool_], *, is_text: bool) -> tuple[Bytes, bool]:
    """Those of `wanted` that are outside of texts, and whether a text goes on behind `chunk`;
    `is_text` says whether one does before it.
    """
    quotes = np.flatnonzero(chunk == _QUOTE)
    places = np.flatnonzero(wanted[chunk])
    is_outside = np.searchsorted(quotes, places) % 2 == is_text
    is_odd = len(quotes) % 2 == 1
    return chunk[places[is_outside]], is_text != is_odd
