"""Reader of FlatBuffers whose schema is known by field numbers; every offset is checked.

A field's slot is 4 + 2 * its number, as in the vtable.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from mindspore_serving.errors import StartError

MAX_ENTRIES = 1 << 20  # tables in a vector


class DamagedFile(StartError):
    """A file whose offsets lead out of it."""


@dataclass(frozen=True, slots=True)
class Table:
    """A table at `position` of `buffer`; a field that is not there has the schema's default."""

    buffer: memoryview
    position: int

    def number(self, slot: int, kind: str, default: Any = 0) -> Any:
        """Return a scalar field; `kind` is a format of `struct`, such as "<i"."""
        at = self._field(slot)
        return unpack(self.buffer, at, kind) if at else default

    def numbers(self, slot: int, dtype: str) -> "np.ndarray[Any, Any]":
        """Return a vector of scalars as a view of the file; empty if there is none."""
        at = self._field(slot)
        if not at:
            return np.empty(0, dtype)
        begin, count = _vector(self.buffer, at)
        size = count * np.dtype(dtype).itemsize
        return np.frombuffer(_part(self.buffer, begin, size), dtype)

    def ints(self, slot: int) -> list[int]:
        """Return a vector of int64."""
        return [int(value) for value in self.numbers(slot, "<i8")]

    def text(self, slot: int) -> str:
        return bytes(self.numbers(slot, "u1")).decode("utf-8", "replace")

    def table(self, slot: int) -> "Table | None":
        at = self._field(slot)
        return Table(self.buffer, _indirect(self.buffer, at)) if at else None

    def tables(self, slot: int) -> "Iterator[Table]":
        """Iterate over a vector of tables."""
        at = self._field(slot)
        begin, count = _vector(self.buffer, at) if at else (0, 0)
        if count > MAX_ENTRIES:
            raise DamagedFile(f"a vector of it has {count} tables, over {MAX_ENTRIES}")
        for index in range(count):
            yield Table(self.buffer, _indirect(self.buffer, begin + 4 * index))

    def _field(self, slot: int) -> int:
        """Return the position of a field; 0 if the table has none."""
        vtable = self.position - unpack(self.buffer, self.position, "<i")
        if slot + 2 > unpack(self.buffer, vtable, "<H"):
            return 0
        offset = unpack(self.buffer, vtable + slot, "<H")
        return self.position + offset if offset else 0


def root(buffer: memoryview) -> Table:
    """Return the root table; bytes 4 to 8 of the file are its identifier."""
    return Table(buffer, _indirect(buffer, 0))


def unpack(buffer: memoryview, at: int, kind: str) -> Any:
    """Return the scalar at a position; `kind` is a format of `struct`."""
    (value,) = struct.unpack(kind, _part(buffer, at, struct.calcsize(kind)))
    return value


def _indirect(buffer: memoryview, at: int) -> int:
    return int(at + unpack(buffer, at, "<I"))


def _vector(buffer: memoryview, at: int) -> tuple[int, int]:
    begin = _indirect(buffer, at)
    return begin + 4, int(unpack(buffer, begin, "<I"))


def _part(buffer: memoryview, at: int, size: int) -> memoryview:
    if not 0 <= at <= at + size <= len(buffer):
        raise DamagedFile(f"an offset of it is {at}, but it has {len(buffer)} bytes")
    return buffer[at : at + size]
