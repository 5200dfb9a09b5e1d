"""JSON schemas that random answers can fulfil, and whether a value does: the part of JSON Schema
that the tests use, written down once more."""

import re

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "colour": {"enum": ["red", "green", None]},
        "zip": {"type": "string", "pattern": "^[0-9]{5}$"},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 3}, "maxItems": 3},
        "place": {"$ref": "#/$defs/place"},
    },
    "required": ["name", "age", "colour", "zip"],
    "additionalProperties": False,
    "$defs": {
        "place": {
            "type": "object",
            "properties": {"x": {"type": "boolean"}, "y": {"const": "here"}},
            "required": ["x"],
            "additionalProperties": False,
        }
    },
}

COMPACT = {**PERSON, "x-guidance": {"whitespace_flexible": False}}  # nonsense is mostly space

_TYPES = {"object": dict, "array": list, "string": str, "boolean": bool, "null": type(None)}


def fulfils(value, schema, root=None) -> bool:
    root = root or schema
    if "$ref" in schema:
        return fulfils(value, root["$defs"][schema["$ref"].rsplit("/", 1)[1]], root)
    if "anyOf" in schema:
        return any(fulfils(value, option, root) for option in schema["anyOf"])
    if "const" in schema:
        return value == schema["const"] and type(value) is type(schema["const"])
    if "enum" in schema:
        return any(value == option and type(value) is type(option) for option in schema["enum"])
    kind = schema.get("type")
    if kind == "integer":
        low, high = schema.get("minimum", value), schema.get("maximum", value)
        return type(value) is int and low <= value <= high
    if kind is not None and not isinstance(value, _TYPES[kind]):
        return False
    if isinstance(value, str):
        pattern = re.search(schema.get("pattern", ""), value) is not None
        return len(value) <= schema.get("maxLength", len(value)) and pattern
    if isinstance(value, list):
        count = schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", len(value))
        return count and all(fulfils(item, schema.get("items", {}), root) for item in value)
    if isinstance(value, dict):
        return _fulfils_object(value, schema, root)
    return True


def _fulfils_object(value, schema, root) -> bool:
    known = schema.get("properties", {})
    if not set(schema.get("required", ())) <= value.keys():
        return False
    others = value.keys() - known.keys()
    return (schema.get("additionalProperties", True) or not others) and all(
        fulfils(item, known[key], root) for key, item in value.items() if key in known
    )
