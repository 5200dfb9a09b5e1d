"""The places of a JSON schema at which a number may be, and bodies with one there."""

import json
from collections.abc import Iterator
from typing import Any

Path = tuple[str | int, ...]  # keys, and 0 for the first element of an array

MARK = "@number@"
MAX_DEPTH = 7
_NUMBERS = {"integer", "number"}
_KEY = "7"  # of a map: a token id


def slots(schema: Any, whole: Any, at: Path = ()) -> Iterator[Path]:
    """Where `schema`, of the document `whole`, has a number or says nothing of what there is."""
    if schema is True or schema == {}:
        yield at
        return
    if not isinstance(schema, dict) or len(at) > MAX_DEPTH:
        return
    kinds = schema.get("type", [])
    is_free = not {"$ref", "anyOf", "oneOf", "allOf", "type", "const", "enum"} & set(schema)
    if is_free or _NUMBERS & set([kinds] if isinstance(kinds, str) else kinds):
        yield at
    for step, part in _parts(schema, whole):
        yield from slots(part, whole, at + step)


def _parts(schema: dict[str, Any], whole: Any) -> Iterator[tuple[Path, Any]]:
    """The schemas that one is made of, and where in its values they hold."""
    if "$ref" in schema:
        *_, name = schema["$ref"].split("/")
        yield (), whole["components"]["schemas"][name]
    for word in ("anyOf", "oneOf", "allOf"):
        yield from (((), part) for part in schema.get(word, ()))
    yield from (((name,), part) for name, part in schema.get("properties", {}).items())
    if "items" in schema:
        yield (0,), schema["items"]
    if "additionalProperties" in schema and "properties" not in schema:
        yield (_KEY,), schema["additionalProperties"]


def with_number(example: Any, at: Path, number: str) -> bytes:
    """`example` as JSON, with `number` as it stands in the place `at`, whatever is there."""
    body = json.dumps(_put(example, at)).replace(f'"{MARK}"', number)
    assert number in body
    return body.encode()


def _put(value: Any, at: Path) -> Any:
    if not at:
        return MARK
    first, *rest = at
    if first == 0:
        values = value if isinstance(value, list) and value else [None]
        return [_put(values[0], tuple(rest)), *values[1:]]
    known = value if isinstance(value, dict) else {}
    return {**known, first: _put(known.get(str(first)), tuple(rest))}
