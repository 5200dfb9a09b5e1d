"""How many values a JSON text has, before any is made: without reading it, outside of its texts.

Knows neither fields nor what is valid.
"""

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from mindspore_serving.errors import InvalidField

Buffer: TypeAlias = bytes | bytearray | memoryview

SMALL = 64 << 10  # bytes: a body has never so much in it that it matters
_CHUNK = 1 << 18  # bytes at a time, between which other threads go on
_QUOTE, _BACKSLASH = ord('"'), b"\\"
_SEPARATORS = np.zeros(256, bool)
_SEPARATORS[[ord(mark) for mark in ",[{"]] = True


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
        chunk = bytes(body[start:end]).replace(b"\\\\", b"").replace(b'\\"', b"")
        found, is_text = _count(np.frombuffer(chunk, np.uint8), found, is_text=is_text)
        if found.num_values > most.num_values or found.num_objects > most.num_objects:
            break
        start = end
    return found


def _end_of_chunk(body: Buffer, start: int) -> int:
    """Where a chunk ends: not in the middle of an escaped character."""
    end = min(start + _CHUNK, len(body))
    part = bytes(body[start:end])
    is_cut = (len(part) - len(part.rstrip(_BACKSLASH))) % 2
    return min(end + is_cut, len(body))


def _count(chunk: npt.NDArray[np.uint8], before: Shape, *, is_text: bool) -> tuple[Shape, bool]:
    quotes = np.flatnonzero(chunk == _QUOTE)
    places = np.flatnonzero(_SEPARATORS[chunk])
    is_outside = np.searchsorted(quotes, places) % 2 == is_text
    marks = chunk[places[is_outside]]
    num_objects = int(np.count_nonzero(marks == ord("{")))
    is_odd = len(quotes) % 2 == 1
    shape = Shape(before.num_values + len(marks), before.num_objects + num_objects)
    return shape, is_text != is_odd
