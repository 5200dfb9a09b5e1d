"""Validation of values by JSON schemas, with bounded work: clients write the schemas.

Ignored are `pattern`, which could take exponential time, `format`, and keywords that are rare in
tools (`if`, `dependentSchemas`, `unevaluatedProperties` and the like).  Pure.
"""

from collections.abc import Callable, Mapping
from typing import Any

MAX_STEPS = 20_000  # schemas tried for one value: about 20 ms
_TYPES: dict[str, Callable[[Any], bool]] = {
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
    "number": lambda value: _is_number(value),
    "integer": lambda value: _is_number(value) and value == value // 1,
}
_BOUNDS: dict[str, Callable[[Any, Any], bool]] = {  # of numbers
    "minimum": lambda value, bound: value >= bound,
    "maximum": lambda value, bound: value <= bound,
    "exclusiveMinimum": lambda value, bound: value > bound,
    "exclusiveMaximum": lambda value, bound: value < bound,
}
_SIZES = {
    "str": ("minLength", "maxLength"),
    "list": ("minItems", "maxItems"),
    "dict": ("minProperties", "maxProperties"),
}


def fits(value: object, schema: object) -> bool:
    """Return whether a JSON value fits `schema`; False also if that takes too long to decide."""
    try:
        return _Fit(schema).fits(value, schema)
    except (_TooLong, RecursionError):
        return False


class _TooLong(Exception):
    """Error of a validation that takes too many steps."""


class _Fit:
    """A validation; `root` is where references are resolved."""

    def __init__(self, root: object) -> None:
        self._root = root
        self._num_steps = 0

    def fits(self, value: Any, schema: object) -> bool:
        """Return whether `value` fits `schema`.

        Raises _TooLong after `MAX_STEPS` schemas.
        """
        self._num_steps += 1
        if self._num_steps > MAX_STEPS:
            raise _TooLong
        if not isinstance(schema, Mapping):
            return schema is not False
        if "$ref" in schema and not self.fits(value, self._referred(schema["$ref"])):
            return False
        return (
            _has_type(value, schema.get("type"))
            and _is_among(value, schema)
            and _is_within(value, schema)
            and self._fits_parts(value, schema)
            and (not isinstance(value, dict) or self._fits_object(value, schema))
            and (not isinstance(value, list) or self._fits_array(value, schema))
        )

    def _fits_parts(self, value: Any, schema: Mapping[str, Any]) -> bool:
        if not all(self.fits(value, part) for part in _list(schema.get("allOf"))):
            return False
        parts = _list(schema.get("anyOf"))
        if parts and not any(self.fits(value, part) for part in parts):
            return False
        parts = _list(schema.get("oneOf"))
        if parts and sum(self.fits(value, part) for part in parts) != 1:
            return False
        return "not" not in schema or not self.fits(value, schema["not"])

    def _fits_object(self, value: dict[str, Any], schema: Mapping[str, Any]) -> bool:
        if any(name not in value for name in _list(schema.get("required"))):
            return False
        properties = schema.get("properties")
        known = properties if isinstance(properties, Mapping) else {}
        if "patternProperties" in schema:
            additional: object = True
        else:
            additional = schema.get("additionalProperties", True)
        return all(self.fits(item, known.get(name, additional)) for name, item in value.items())

    def _fits_array(self, value: list[Any], schema: Mapping[str, Any]) -> bool:
        first = _list(schema.get("prefixItems"))
        items = schema.get("items", True)
        return all(
            self.fits(item, first[index] if index < len(first) else items)
            for index, item in enumerate(value)
        )

    def _referred(self, reference: object) -> object:
        target = self._root
        for name in str(reference).removeprefix("#").strip("/").split("/") if reference else ():
            name = name.replace("~1", "/").replace("~0", "~")
            if name:
                target = target.get(name, True) if isinstance(target, Mapping) else True
        return target


def _has_type(value: Any, kind: object) -> bool:
    kinds = [kind] if isinstance(kind, str) else _list(kind)
    known = [_TYPES[name] for name in kinds if name in _TYPES]
    return not known or any(is_kind(value) for is_kind in known)


def _is_among(value: Any, schema: Mapping[str, Any]) -> bool:
    if "const" in schema and not _is_equal(value, schema["const"]):
        return False
    allowed = schema.get("enum")
    return not isinstance(allowed, list) or any(_is_equal(value, item) for item in allowed)


def _is_within(value: Any, schema: Mapping[str, Any]) -> bool:
    if _is_number(value):
        bounds = ((holds, schema.get(name)) for name, holds in _BOUNDS.items())
        return all(not _is_number(bound) or holds(value, bound) for holds, bound in bounds)
    min_name, max_name = _SIZES.get(type(value).__name__, ("", ""))
    size = len(value) if min_name else 0
    limits = schema.get(min_name, 0), schema.get(max_name, size)
    min_size, max_size = (limit if _is_number(limit) else size for limit in limits)
    return bool(min_size <= size <= max_size)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_equal(value: object, other: object) -> bool:
    """Return whether JSON values are equal: true is not 1."""
    return value == other and isinstance(value, bool) == isinstance(other, bool)


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []
