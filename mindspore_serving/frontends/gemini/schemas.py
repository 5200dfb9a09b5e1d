"""Schemas in Gemini's form, a part of OpenAPI 3.0, as JSON schemas."""

from typing import Any

Object = dict[str, Any]

_COUNTS = ("maxItems", "minItems", "maxLength", "minLength", "maxProperties", "minProperties")
_SAME = (  # keywords with the same meaning
    *("title", "description", "default", "enum", "required", "pattern", "minimum", "maximum"),
    *("additionalProperties", "$ref"),
)
_FORMATS = ("date", "date-time", "time", "duration", "email", "hostname", "ipv4", "ipv6", "uuid")
_MAPS = {"properties": "properties", "defs": "$defs", "$defs": "$defs"}


def to_json_schema(schema: Any) -> Any:
    """Return the JSON schema of `schema`, whose depth is limited.

    Types are in capitals and counts may be texts; `nullable` is a second type, and
    `propertyOrdering` the order of the properties.
    """
    if not isinstance(schema, dict):
        return schema
    result: Object = {name: schema[name] for name in _SAME if schema.get(name) is not None}
    for name in _COUNTS:
        if name in schema:
            result[name] = _to_count(schema[name])
    for name, new in _MAPS.items():
        if isinstance(schema.get(name), dict):
            result[new] = {key: to_json_schema(value) for key, value in schema[name].items()}
    if isinstance(schema.get("anyOf"), list):
        result["anyOf"] = [to_json_schema(each) for each in schema["anyOf"]]
    if schema.get("items") is not None:
        result["items"] = to_json_schema(schema["items"])
    if schema.get("format") in _FORMATS:
        result["format"] = schema["format"]
    order = schema.get("propertyOrdering")
    if isinstance(order, list) and "properties" in result:
        known = result["properties"]
        names = [name for name in order if isinstance(name, str) and name in known]
        result["properties"] = {name: known[name] for name in dict.fromkeys((*names, *known))}
    return _with_type(result, schema)


def _with_type(result: Object, schema: Object) -> Object:
    kind = schema.get("type")
    if isinstance(kind, str):
        kind = None if kind.upper() == "TYPE_UNSPECIFIED" else kind.lower()
    if not schema.get("nullable"):
        return result if kind is None else {"type": kind, **result}
    if isinstance(result.get("enum"), list):
        result["enum"] = [*result["enum"], None]
    if kind is None:
        return {"anyOf": [*result.pop("anyOf", [result]), {"type": "null"}]}
    return {"type": [kind, "null"], **result}


def _to_count(value: Any) -> Any:
    return int(value) if isinstance(value, str) and value.isdecimal() else value
