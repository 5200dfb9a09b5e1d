"""JSON schemas as a model is to follow them.  Knows no grammar."""

from collections.abc import Mapping
from typing import Any

_MAPS = ("properties", "$defs", "definitions")
_LISTS = ("anyOf", "oneOf", "prefixItems")
_OTHERS = (  # what may add properties, or says that there may be others
    *("additionalProperties", "patternProperties", "unevaluatedProperties", "propertyNames"),
    *("allOf", "anyOf", "oneOf", "$ref", "if", "dependentSchemas"),
)


def closed(schema: dict[str, Any]) -> dict[str, Any]:
    """`schema`, whose objects have only the properties that it states, unless it says otherwise.

    Without this a model may make some up.  One with `allOf` stays as it is: each of its parts
    states some properties of the same object.
    """
    return schema if _joins(schema) else _closed(schema)


def _closed(schema: Any) -> Any:
    if not isinstance(schema, Mapping):
        return schema
    found = dict(schema)
    for name in _MAPS:
        if isinstance(found.get(name), Mapping):
            found[name] = {key: _closed(value) for key, value in found[name].items()}
    if "items" in found:
        found["items"] = _closed(found["items"])
    if "properties" not in found:
        for name in _LISTS:
            if isinstance(found.get(name), list):
                found[name] = [_closed(one) for one in found[name]]
    elif not any(name in found for name in _OTHERS):
        found["additionalProperties"] = False
    return found


def _joins(schema: Any) -> bool:
    """Whether an object in `schema` is described in several parts."""
    if isinstance(schema, Mapping):
        parts = schema.get("allOf")
        return (isinstance(parts, list) and len(parts) > 1) or any(map(_joins, schema.values()))
    return isinstance(schema, list) and any(map(_joins, schema))
