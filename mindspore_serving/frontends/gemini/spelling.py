"""Names of fields in snake case, which Google's servers accept beside those in camel case."""

from functools import lru_cache
from typing import Any, get_args, get_origin

import msgspec

Table = dict[str, tuple[str, type | None]]


def to_camel(body: bytes, kind: type) -> bytes:
    """Return `body` with the fields of struct `kind` in camel case.

    Fields of schemas, arguments and results keep their names.  What is not JSON is unchanged.
    """
    if not any(name in body for name in _snake_names(kind)):
        return body
    try:
        return msgspec.json.encode(_renamed(msgspec.json.decode(body), kind))
    except (msgspec.MsgspecError, UnicodeError, RecursionError, OverflowError):
        return body


def _renamed(value: Any, kind: type) -> Any:
    if isinstance(value, list):
        return [_renamed(entry, kind) for entry in value]
    if not isinstance(value, dict):
        return value
    table, result = _table(kind), {}
    for name, inner in value.items():
        camel, struct = table.get(name, (name, None))
        if camel == name or camel not in value:
            result[camel] = inner if struct is None else _renamed(inner, struct)
    return result


@lru_cache
def _table(kind: type) -> Table:
    """Return the name in camel case and the struct of each field of `kind`, by both its names."""
    table: Table = {}
    for field in msgspec.structs.fields(kind):
        name = field.encode_name
        snake = "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name)
        table[name] = table[snake] = (name, _struct_in(field.type))
    return table


@lru_cache
def _snake_names(kind: type) -> frozenset[bytes]:
    """Return the names in snake case of the fields of `kind` and in it, in quotation marks."""
    table = _table(kind)
    names = {f'"{name}"'.encode() for name, (camel, _) in table.items() if name != camel}
    inner = {struct for _, struct in table.values() if struct is not None}
    return frozenset(names.union(*map(_snake_names, inner)))


def _struct_in(hint: Any) -> type | None:
    if get_origin(hint) is None and isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return hint
    return next(filter(None, map(_struct_in, get_args(hint))), None)
