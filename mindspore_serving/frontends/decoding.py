"""Decoding of request bodies to typed structs.

Errors have the path of the wrong value, the value and what is accepted.  Knows no field.
"""

import re
from typing import Any, TypeVar

import msgspec

from mindspore_serving.core.language_limits import check_json
from mindspore_serving.errors import InvalidField
from mindspore_serving.frontends import bodies
from mindspore_serving.frontends.chat.fields import show

MAX_DEPTH = 100  # of nested arrays and objects
_MISSING = re.compile(r"^Object missing required field `([^`]+)`$")
_STEP = re.compile(r"([A-Za-z_0-9]+)|\[(\d+|\.\.\.)\]")

_ANY = msgspec.json.Decoder(Any)
_decoders: dict[Any, Any] = {}

T = TypeVar("T")


def decode(body: bytes, kind: type[T]) -> T:
    """Decode `body` as a `kind`, a msgspec Struct.  Raises InvalidField."""
    if kind not in _decoders:
        _decoders[kind] = msgspec.json.Decoder(kind)
    try:
        decoded: T = bodies.decode(body, _decoders[kind])
    except bodies.InvalidBody as error:
        raise _invalid(body, error) from None
    return decoded


def check_free(param: str, value: object) -> None:
    """Check a value of any JSON type.  Raises the errors of `check_json`."""
    check_json(param, value, MAX_DEPTH)


def _invalid(body: bytes, error: bodies.InvalidBody) -> InvalidField:
    problem, field = str(error), error.field
    if not error.is_json:
        return _not_json(error)
    missing = _MISSING.match(problem)
    if missing:
        return InvalidField(f"{field}.{missing[1]}" if field else missing[1], "is missing")
    name = field or "the body"
    mismatch = bodies.mismatch_of(problem)
    if not mismatch:
        return InvalidField(field, text=f"{name} is wrong: {problem}")
    expected = bodies.expected_of(mismatch)
    if error.is_key:
        return InvalidField(field, text=f"a key of {name} is wrong: {expected}")
    return InvalidField(field, text=f"{name} is {_shown_at(body, field)}, {expected}")


def _not_json(error: bodies.InvalidBody) -> InvalidField:
    return InvalidField("", text=f"the body is not JSON: {error}")


def _shown_at(body: bytes, path: str) -> str:
    """Return the value at a path such as "stop[0]" as text.

    Raises InvalidField if another part of the body is not JSON.
    """
    try:
        value: Any = bodies.decode(body, _ANY)
    except bodies.InvalidBody as error:
        if error.is_json:  # it has a number that no float holds
            return "wrong"
        raise _not_json(error) from None
    for name, index in _STEP.findall(path):
        if index == "...":  # msgspec does not give the key
            return "wrong"
        try:
            value = value[name] if name else value[int(index)]
        except (LookupError, TypeError):  # a repeated key: the path is that of its first value
            return "wrong"
    return show(value)
