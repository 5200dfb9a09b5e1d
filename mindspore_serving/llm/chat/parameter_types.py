"""JSON types that a tool's parameter may have, by its schema.

Where arguments are tags, strings are written without quotes, so only the schema tells whether `5`
is a number or a string.  Pure.
"""

import json
from collections.abc import Mapping
from typing import Any

ANY = "any"
MAX_LENGTH = 256  # of texts whose length a grammar holds: the lexer counts their characters
_MAX_DEPTH = 20  # of nested schemas
_OF_PYTHON = {bool: "boolean", int: "number", float: "number", str: "string", type(None): "null"}
_WORDS = {"True": "true", "False": "false", "None": "null"}  # as Python and Jinja write them


def types_of(schema: object, root: Mapping[str, Any]) -> frozenset[str]:
    """Return the types that `schema` allows, with `ANY` if it does not say.

    References are resolved in `root`.
    """
    return _types(schema, root, {}, 0)


def _types(
    schema: object, root: Mapping[str, Any], known: dict[int, frozenset[str]], depth: int
) -> frozenset[str]:
    """Return the types; `known` has those of resolved references, by the id of the target.

    Each target is read once, however many references lead to it.
    """
    if not isinstance(schema, Mapping) or depth == _MAX_DEPTH:
        return frozenset((ANY,))
    if "$ref" in schema:
        target = _referred(schema["$ref"], root)
        if id(target) not in known:
            known[id(target)] = frozenset((ANY,))  # ends a cycle of references
            known[id(target)] = _types(target, root, known, depth + 1)
        return known[id(target)]
    kind = schema.get("type")
    if isinstance(kind, str):
        return frozenset((kind,))
    if isinstance(kind, list):
        return frozenset(map(str, kind))
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(values, list):
        return frozenset(_OF_PYTHON.get(type(value), "object") for value in values)
    parts = schema.get("anyOf") or schema.get("oneOf") or schema.get("allOf")
    if not isinstance(parts, list) or not parts:
        return frozenset((ANY,))
    return frozenset[str]().union(*(_types(part, root, known, depth + 1) for part in parts))


def length_range(schema: object) -> tuple[int, int] | None:
    """Return the least and the largest length of a text, None if a grammar does not hold them."""
    stated = schema if isinstance(schema, Mapping) else {}
    low, high = stated.get("minLength", 0), stated.get("maxLength")
    if type(low) is not int or type(high) is not int or not 0 <= low <= high <= MAX_LENGTH:
        return None
    return low, high


def may_be_text(types: frozenset[str]) -> bool:
    """Return whether a string is allowed."""
    return not types.isdisjoint(("string", ANY))


def to_json(text: str, types: frozenset[str]) -> str:
    """Return the JSON of a value that was written as `text`.

    It is a JSON string if only a string is allowed, or if `text` is no JSON.
    """
    shown = text.strip()
    word = _WORDS.get(shown, shown)
    is_text = types <= {"string", "null"} and not (word == "null" and "null" in types)
    try:
        if not is_text:
            json.loads(word, parse_constant=_refuse)
            return word
    except (ValueError, RecursionError):
        pass
    return json.dumps(text, ensure_ascii=False)


def _refuse(word: str) -> None:
    raise ValueError(f"{word} is no JSON")


def _referred(reference: object, root: Mapping[str, Any]) -> object:
    target: object = root
    for name in str(reference).removeprefix("#").strip("/").split("/"):
        target = target.get(name) if isinstance(target, Mapping) else None
    return target
