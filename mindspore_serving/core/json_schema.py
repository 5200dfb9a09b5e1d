"""JSON schemas that constrain the answer of a model.  Knows no grammar."""

from collections.abc import Iterable, Mapping
from typing import Any

MAX_DEPTH = 100  # of objects and lists in one another
MAX_PARTS = 20_000  # objects and lists of a schema
MAX_PROPERTIES = 1_000  # the time to compile an object grows with their square
MAX_ALTERNATIVES = 1_000
_MAX_MEMBERS = {
    "properties": MAX_PROPERTIES,
    "anyOf": MAX_ALTERNATIVES,
    "oneOf": MAX_ALTERNATIVES,
    "allOf": MAX_ALTERNATIVES,
}
_ANNOTATIONS = ("title", "description", "default", "examples", "$comment", "deprecated")
_VALUES = ("const", "enum", "required", "x-guidance")  # keywords without schemas in them
_MAPS = ("properties", "$defs", "definitions")
_NAMED = (*_MAPS, "patternProperties", "dependentSchemas")  # keys are names, not keywords
_LISTS = ("anyOf", "oneOf", "prefixItems")
_MORE_PROPERTIES = (  # keywords that add properties, or allow more
    *("additionalProperties", "patternProperties", "unevaluatedProperties", "propertyNames"),
    *("allOf", "anyOf", "oneOf", "$ref", "if", "dependentSchemas"),
)


def closed(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema whose objects have only the properties that it lists, unless it allows more.

    Without this a model may invent properties. A schema with `allOf` is unchanged: each of its
    parts lists some properties of the same object.
    """
    return schema if _joins(schema) else _closed(schema)


def find_excess(schema: object) -> str | None:
    """Return what a schema has too much of to be compiled, and the limit; None if nothing."""
    level: list[Any] = [schema] if _is_part(schema) else []
    depth = num_parts = 0
    while level:
        depth, num_parts = depth + 1, num_parts + len(level)
        if depth > MAX_DEPTH:
            return f"is nested more than {MAX_DEPTH} deep"
        if num_parts > MAX_PARTS:
            return f"has more than {MAX_PARTS} objects and lists"
        for part in level:
            for name, limit in _MAX_MEMBERS.items() if isinstance(part, Mapping) else ():
                members = part.get(name)
                if _is_part(members) and len(members) > limit:
                    return f"has {len(members)} {name} in one object, expected at most {limit}"
        level = [inner for part in level for inner in _values(part) if _is_part(inner)]
    return None


def without_annotations(schema: Any) -> Any:
    """Return a schema with nothing but what constrains: no descriptions, titles or defaults."""
    if isinstance(schema, list):
        return [without_annotations(item) for item in schema]
    if not isinstance(schema, Mapping):
        return schema
    return {
        name: _without_annotations(name, value)
        for name, value in schema.items()
        if name not in _ANNOTATIONS
    }


def _without_annotations(name: str, value: Any) -> Any:
    if name in _VALUES:
        return value
    if name in _NAMED and isinstance(value, Mapping):
        return {key: without_annotations(inner) for key, inner in value.items()}
    return without_annotations(value)


def _is_part(value: object) -> bool:
    return isinstance(value, Mapping | list)


def _values(part: Any) -> Iterable[Any]:
    return part.values() if isinstance(part, Mapping) else part


def _closed(schema: Any) -> Any:
    if not isinstance(schema, Mapping):
        return schema
    result = dict(schema)
    for name in _MAPS:
        if isinstance(result.get(name), Mapping):
            result[name] = {key: _closed(value) for key, value in result[name].items()}
    if "items" in result:
        result["items"] = _closed(result["items"])
    if "properties" not in result:
        for name in _LISTS:
            if isinstance(result.get(name), list):
                result[name] = [_closed(item) for item in result[name]]
    elif not any(name in result for name in _MORE_PROPERTIES):
        result["additionalProperties"] = False
    return result


def _joins(schema: Any) -> bool:
    """Return whether an object in `schema` is described in several parts."""
    if isinstance(schema, Mapping):
        parts = schema.get("allOf")
        return (isinstance(parts, list) and len(parts) > 1) or any(map(_joins, schema.values()))
    return isinstance(schema, list) and any(map(_joins, schema))
