"""Which JSON types a tool's parameter may have, by its schema.  Pure.

Where arguments are tags, text is written as it is, without quotes; so only the schema tells whether
`5` is a number or a text.
"""

import json
from collections.abc import Mapping
from typing import Any

ANY = "any"
_MAX_DEPTH = 20  # of schemas in one another
_OF_PYTHON = {bool: "boolean", int: "number", float: "number", str: "string", type(None): "null"}
_WORDS = {"True": "true", "False": "false", "None": "null"}  # as Python, and so templates, write


def types_of(schema: object, root: Mapping[str, Any]) -> frozenset[str]:
    """The types that `schema` allows, `ANY` among them if it does not say; `root` is what its
    references are of.
    """
    return _types(schema, root, {}, 0)


def _types(
    schema: object, root: Mapping[str, Any], known: dict[int, frozenset[str]], depth: int
) -> frozenset[str]:
    """`known` are the types of what references were followed to, by its id: each is read once,
    however many ways lead to it.
    """
    if not isinstance(schema, Mapping) or depth == _MAX_DEPTH:
        return frozenset((ANY,))
    if "$ref" in schema:
        found = _referred(schema["$ref"], root)
        if id(found) not in known:
            known[id(found)] = frozenset((ANY,))  # where it leads back to itself
            known[id(found)] = _types(found, root, known, depth + 1)
        return known[id(found)]
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


def may_be_text(types: frozenset[str]) -> bool:
    return not types.isdisjoint(("string", ANY))


def to_json(text: str, types: frozenset[str]) -> str:
    """The JSON of a value that was written as `text`; that of the text itself if it may be one, or
    is no JSON.
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
    found: object = root
    for name in str(reference).removeprefix("#").strip("/").split("/"):
        found = found.get(name) if isinstance(found, Mapping) else None
    return found
