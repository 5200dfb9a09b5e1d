"""A request's body as a typed struct; a wrong one is told with its place, what is there and what is
accepted.  Knows no field.
"""

import re
from typing import Any, TypeVar

import msgspec

from mindspore_serving.frontends.openai.errors import WrongField

MAX_DEPTH = 100  # of objects in objects
_MOST_SHOWN = 80  # characters of a wrong value
_TYPE = re.compile(r"^Expected `([^`]+)`(.*?)(?:, got `[^`]+`)?$")
_MISSING = re.compile(r"^Object missing required field `([^`]+)`$")
_STEP = re.compile(r"\.([A-Za-z_0-9]+)|\[(\d+|\.\.\.)\]")
_NAMES = {
    "int": "an integer",
    "float": "a number",
    "str": "a string",
    "bool": "true or false",
    "array": "an array",
    "object": "an object",
    "null": "null",
}

_decoders: dict[Any, Any] = {}

T = TypeVar("T")


def decode(body: bytes, kind: type[T]) -> T:
    """`body` as a `kind`, a msgspec Struct.  Raises WrongField."""
    if kind not in _decoders:
        _decoders[kind] = msgspec.json.Decoder(kind)
    try:
        found: T = _decode(body, _decoders[kind])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise WrongField(None, f"the body is not JSON in UTF-8: {error}") from None
    except RecursionError:
        raise WrongField(None, "the body has too many arrays or objects in one another") from None
    return found


def _decode(body: bytes, decoder: "msgspec.json.Decoder[T]") -> T:
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise _wrong(body, str(error)) from None


def check_free(param: str, value: object) -> None:
    """For JSON that no struct describes: raises WrongField if more than `MAX_DEPTH` containers are
    in one another, or an integer has over 64 bits."""
    level, depth = [value], 0
    while level:
        depth += 1
        if depth > MAX_DEPTH + 1:
            raise WrongField(
                param, f"{param} has over {MAX_DEPTH} levels of arrays and objects, expected fewer"
            )
        for one in level:
            if isinstance(one, int) and not -(2**63) <= one < 2**64:
                raise WrongField(param, f"{param} has {show(one)}, expected integers of 64 bits")
        level = [
            inner
            for outer in level
            if isinstance(outer, dict | list)
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]


def show(value: object) -> str:
    """`value` as JSON, cut off if it is long."""
    text = str(value) if type(value) is int else msgspec.json.encode(value).decode()
    return text if len(text) <= _MOST_SHOWN else text[:_MOST_SHOWN] + "..."


def _wrong(body: bytes, text: str) -> WrongField:
    """`text` is msgspec's: what, and after " - at " where."""
    what, _, where = text.partition(" - at ")
    key, _, place = where.strip("`").rpartition("` in `$")
    place = (place or where.strip("`")).removeprefix("$")
    param = place.removeprefix(".") or None
    missing = _MISSING.match(what)
    if missing:
        field = f"{param}.{missing.group(1)}" if param else missing.group(1)
        return WrongField(field, f"{field} is missing")
    named = param or "the body"
    found = _TYPE.match(what)
    if not found:
        return WrongField(param, f"{named} is wrong: {what}")
    expected = _expected(found)
    if key:
        return WrongField(param, f"a key of {named} is wrong: expected {expected}")
    return WrongField(param, f"{named} is {_shown_at(body, place)}, expected {expected}")


def _expected(found: "re.Match[str]") -> str:
    names = [_NAMES.get(name, name) for name in found.group(1).split(" | ")]
    return " or ".join(names) + found.group(2)


def _shown_at(body: bytes, place: str) -> str:
    """What `body` has at a place like ".stop[0]"."""
    try:
        value: Any = msgspec.json.decode(body)
    except msgspec.ValidationError:  # of a number somewhere that no float holds
        return "wrong"
    for name, index in _STEP.findall(place):
        if index == "...":  # msgspec does not say which key
            return "wrong"
        value = value[name] if name else value[int(index)]
    return show(value)
