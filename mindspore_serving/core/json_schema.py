"""JSON schemas that constrain the answer of a model.  Knows no grammar."""

from collections.abc import Mapping
from typing import Any

_MAPS = ("properties", "$defs", "definitions")
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
