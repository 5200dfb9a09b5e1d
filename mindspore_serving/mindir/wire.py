"""Reader of the protobuf wire format: bytes to the fields of a message.  It knows no message.

Fields of bytes are views of the input, so a mapped file is not copied.  No length field makes it
allocate memory.
"""

import struct
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields
from functools import cache
from typing import Any, TypeVar

from mindspore_serving.errors import StartError

T = TypeVar("T")
_MAX_DEPTH = 100  # messages inside messages
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_NUMBERS = {"float": (_FIXED32, struct.Struct("<f")), "double": (_FIXED64, struct.Struct("<d"))}


SELF: Any = object()
"""Stand-in for the class of a message, inside itself."""
_EMPTY = {"int": 0, "float": 0.0, "double": 0.0, "text": "", "bytes": memoryview(b"")}


@dataclass(frozen=True, slots=True)
class Field:
    """Field of a message: the attribute's name and its kind.

    `kind` is "int" (a varint, signed as int64), "float", "double", "text", "bytes" or the class of
    a message.
    """

    name: str
    kind: Any
    is_repeated: bool


def single(number: int, kind: Any) -> Any:
    """Declare field `number` of a message in a dataclass: empty or None if it is missing."""
    return field(default=_EMPTY.get(kind), metadata={"number": number, "kind": kind})


def repeated(number: int, kind: Any) -> Any:
    """Declare a repeated field, a list."""
    return field(default_factory=list, metadata={"number": number, "kind": kind})


@cache
def _table(message: type[Any]) -> Mapping[int, Field]:
    """Collect the fields that `message` declares, by number."""
    table = {}
    for row in fields(message):
        number, kind = row.metadata["number"], row.metadata["kind"]
        is_repeated = row.default is MISSING
        table[number] = Field(row.name, message if kind is SELF else kind, is_repeated)
    return table


def read(message: type[T], view: memoryview, depth: int = 0) -> T:
    """Decode `view` as a `message`; fields that its table lacks are skipped.

    Raises StartError: bytes that are no such message.
    """
    if depth > _MAX_DEPTH:
        raise Damaged(f"messages are nested more than {_MAX_DEPTH} deep")
    table = _table(message)  # type: ignore[arg-type]  # classes are hashable
    result = message()
    for number, wire_type, value in fields_of(view):
        row = table.get(number)
        if row is None:
            continue
        values = _values(row, wire_type, value, depth)
        if row.is_repeated:
            getattr(result, row.name).extend(values)
        elif values:
            setattr(result, row.name, values[-1])
    return result


class Damaged(StartError):
    """Error of bytes that are no message; the text is the reason."""

    def __init__(self, why: str) -> None:
        super().__init__(f"the file is damaged, cut off or not MindIR: {why}")
        self.why = why


def fields_of(view: memoryview) -> Iterator[tuple[int, int, Any]]:
    """Iterate over (field number, wire type, value): an int for numbers, a view for bytes."""
    at, end = 0, len(view)
    while at < end:
        key, at = _varint(view, at)
        wire_type = key & 7
        if wire_type == _VARINT:
            value, at = _varint(view, at)
            yield key >> 3, wire_type, value
            continue
        if wire_type == _BYTES:
            length, at = _varint(view, at)
        elif wire_type in (_FIXED32, _FIXED64):
            length = 4 if wire_type == _FIXED32 else 8
        else:
            raise Damaged(f"no field can start at byte {at} of a message")
        if length > end - at:
            raise Damaged(f"{length} bytes announced, {end - at} left")
        yield key >> 3, wire_type, view[at : at + length]
        at += length


def _varint(view: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    try:
        while (byte := view[at]) > 127:
            value |= (byte & 127) << shift
            shift, at = shift + 7, at + 1
            if shift > 63:
                raise Damaged("a number of more than 64 bits")
    except IndexError as error:
        raise Damaged("it ends inside a number") from error
    return value | byte << shift, at + 1


def _values(field: Field, wire_type: int, value: Any, depth: int) -> list[Any]:
    """Return the values of an occurrence of a field; several if numbers are packed."""
    if field.kind == "int":
        if wire_type == _VARINT:
            return [_signed(value)]
        _expect_bytes(field, wire_type)
        return _packed_ints(value)
    if field.kind in _NUMBERS:
        single, layout = _NUMBERS[field.kind]
        if wire_type != single:
            _expect_bytes(field, wire_type)
        if len(value) % layout.size:
            raise Damaged(f"'{field.name}' has {len(value)} bytes")
        return [number for (number,) in layout.iter_unpack(value)]
    _expect_bytes(field, wire_type)
    if field.kind == "bytes":
        return [value]
    if field.kind == "text":
        try:
            return [str(value, "utf-8")]
        except UnicodeDecodeError as error:
            raise Damaged(f"'{field.name}' is no text") from error
    return [read(field.kind, value, depth + 1)]


def _packed_ints(view: memoryview) -> list[int]:
    numbers, at = [], 0
    while at < len(view):
        number, at = _varint(view, at)
        numbers.append(_signed(number))
    return numbers


def _signed(value: int) -> int:
    value &= (1 << 64) - 1
    return value - (1 << 64) if value >> 63 else value


def _expect_bytes(field: Field, wire_type: int) -> None:
    if wire_type != _BYTES:
        raise Damaged(f"'{field.name}' is written as wire type {wire_type}, not {_BYTES}")
