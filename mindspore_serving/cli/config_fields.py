"""What a configuration file may hold: the options of `serve`, as a table and as a JSON schema."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from mindspore_serving.cli.options import pairs
from mindspore_serving.cli.settings import ServeSettings

SERVABLES, PATH, UPSTREAM = "servables", "path", "upstream"
_NOT_IN_FILES = ("paths", "config", SERVABLES)


def is_path(name: str, value: Any) -> bool:
    """Whether the option is a path, which in a file is relative to that; "python" may be a name."""
    return FIELDS[name].is_path and bool(value) and (name != "python" or os.sep in value)


@dataclass(frozen=True, slots=True)
class Field:
    """An option.  `kind` is a type of JSON: "boolean", "integer", "number", "string", "array" or
    "object"; `item` that of the values of the last two."""

    name: str
    kind: str
    help: str
    item: str = ""
    choices: tuple[str, ...] = ()
    is_path: bool = False


def _field(one: Any) -> Field:
    default, metadata = one.default, one.metadata
    choices = tuple(metadata.get("choices", ()))
    if metadata.get("type") is pairs or str(metadata.get("metavar")).startswith("NAME="):
        return Field(one.name, "object", metadata["help"], item="scalar")
    if isinstance(default, tuple):
        item = "integer" if one.name == "device_ids" else "string"
        return Field(one.name, "array", metadata["help"], item=item)
    kinds = {bool: "boolean", int: "integer", float: "number"}
    kind = kinds.get(metadata.get("type", type(default)), "string")
    is_path = metadata.get("is_path", False)
    return Field(one.name, kind, metadata["help"], choices=choices, is_path=is_path)


_IN_FILES = [one for one in fields(ServeSettings) if one.name not in _NOT_IN_FILES]
FIELDS: Mapping[str, Field] = {one.name: _field(one) for one in _IN_FILES}
PER_SERVABLE = tuple(one.name for one in _IN_FILES if "per_servable" in one.metadata)


def schema() -> dict[str, Any]:
    """The JSON schema (draft 2020-12) of a configuration file."""
    servable = {name: _schema_of(FIELDS[name]) for name in PER_SERVABLE}
    path = {"type": "string", "description": "as PATH of `serve`, relative to this file"}
    entry = {
        "type": "object",
        "properties": {PATH: path, **servable},
        "oneOf": [{"required": [PATH]}, {"required": [UPSTREAM]}],
        "additionalProperties": False,
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "mindspore-serving serve --config",
        "type": "object",
        "properties": {
            SERVABLES: {
                "type": "array",
                "description": "what to serve, with settings of its own",
                "items": {"anyOf": [path, entry]},
            },
            **{name: _schema_of(one) for name, one in FIELDS.items()},
        },
        "additionalProperties": False,
    }


_ITEMS: dict[str, dict[str, Any]] = {
    "scalar": {"type": ["string", "number", "boolean"]},
    "string": {"type": "string"},
    "integer": {"type": "integer"},
}


def _schema_of(one: Field) -> dict[str, Any]:
    found: dict[str, Any] = {"type": one.kind, "description": one.help}
    if one.choices:
        found["enum"] = list(one.choices)
    if one.kind == "array":
        found["items"] = _ITEMS[one.item]
    if one.kind == "object":
        found["additionalProperties"] = _ITEMS[one.item]
    return found
