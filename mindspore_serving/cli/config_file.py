"""Configuration files of `serve`: their options, their schema, and errors with the line."""

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from mindspore_serving.cli.options import SERVE
from mindspore_serving.cli.settings import ServableSettings, ServeSettings
from mindspore_serving.core.params import OptionRow, rows_of
from mindspore_serving.core.yaml_text import Loader, faults
from mindspore_serving.errors import InvalidInputs, StartError, did_you_mean, reason
from mindspore_serving.hub.reference import located

MAX_SIZE = 1 << 20  # bytes
SERVABLES, PATH, UPSTREAM = "servables", "path", "upstream"
_KINDS = {"boolean": "true or false", "integer": "an integer", "number": "a number"}
_KINDS |= {"string": "text (in quotes, if it looks like a number)", "array": "a list"}
_KINDS |= {"object": "names with values", "scalar": "a number, true, false or text"}
FIELDS = {
    name: row
    for row in rows_of(ServeSettings).values()
    if (name := row.name_in(SERVE)) and name != "config"
}
PER_SERVABLE = [name for row in rows_of(ServableSettings).values() if (name := row.name_in(SERVE))]
_TAGS = {"bool": "boolean", "int": "integer", "float": "number", "str": "string"}


class _Loader(Loader):
    """Loader of numbers, truth values and text; a date is text."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in rows if not tag.endswith(":timestamp")]
    for first, rows in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(  # YAML 1.1 takes 1e3 for text
    "tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$"), "-+0123456789"
)


def is_path(row: OptionRow, value: Any) -> bool:
    """Return whether a value is a path, relative to its file, not a URL; "python" may be a name."""
    return (
        row.is_path
        and bool(value)
        and (row.name != "python" or os.sep in value)
        and "://" not in value
    )


def schema() -> dict[str, Any]:
    """Return the JSON schema (draft 2020-12) of a configuration file."""
    servable = {name: _schema_of(FIELDS[name]) for name in PER_SERVABLE}
    path = {"type": "string", "description": "PATH of `serve`, relative to this file"}
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
                "description": "servables, by their paths or with settings",
                "items": {"anyOf": [path, entry]},
            },
            **{name: _schema_of(row) for name, row in FIELDS.items()},
        },
        "additionalProperties": False,
    }


_ITEMS: dict[str, dict[str, Any]] = {
    "scalar": {"type": ["string", "number", "boolean"]},
    "string": {"type": "string"},
    "integer": {"type": "integer"},
    "number": {"type": "number"},
}


def _schema_of(row: OptionRow) -> dict[str, Any]:
    keywords = {"type": row.json_type, **row.to_schema()}
    if keywords.get("default") in (None, ""):
        keywords.pop("default", None)
    if row.json_type == "array":
        keywords["items"] = _ITEMS[row.item_type]
    if row.name == UPSTREAM:
        keywords["type"] = ["string", "array"]
    if row.json_type == "object":
        keywords["additionalProperties"] = _ITEMS[row.item_type]
    return keywords


def read(path: str) -> dict[str, Any]:
    """Read the YAML file `path`; return the fields of `ServeSettings` that it sets.

    Raises StartError if it cannot be read, InvalidInputs with the line for an error in it.
    """
    try:
        with Path(path).open("rb") as file:
            data = file.read(MAX_SIZE + 1)
        text = data.decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        text = f"the configuration file {path} cannot be read: {reason(error)}"
        raise StartError(text) from None
    if len(data) > MAX_SIZE:
        raise InvalidInputs(f"{path} has more than {MAX_SIZE} bytes")
    return _Reader(path).read(text)


class _Reader:
    """Reader of one file, whose name and line errors have."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._directory = os.path.dirname(os.path.abspath(path))

    def read(self, text: str) -> dict[str, Any]:
        with faults(self._path):
            root = yaml.compose(text, _Loader)
        if root is None or _kind(root) == "null":
            return {}
        settings: dict[str, Any] = {}
        for name, key, value in self._items(root, [SERVABLES, *FIELDS]):
            if name == SERVABLES:
                entries = self._list(value, f"'{SERVABLES}'")
                settings[SERVABLES] = tuple(self._servable(entry) for entry in entries)
            else:
                settings[FIELDS[name].name] = self._value(FIELDS[name], key, value)
        return settings

    def _servable(self, node: yaml.Node) -> dict[str, Any]:
        """Return the path and the settings of a servable."""
        if _kind(node) == "string":
            return {"paths": (self._absolute(node.value),)}
        settings: dict[str, Any] = {}
        for name, key, value in self._items(node, [PATH, *PER_SERVABLE]):
            if name == PATH:
                settings["paths"] = (self._absolute(self._scalar(value, "string", key.value)),)
            else:
                settings[FIELDS[name].name] = self._value(FIELDS[name], key, value)
        if ("paths" in settings) == (UPSTREAM in settings):
            self._fail(node, f"a servable has '{PATH}' or '{UPSTREAM}', expected one of them")
        return settings

    def _items(
        self, node: yaml.Node, known: list[str]
    ) -> Iterator[tuple[str, yaml.Node, yaml.Node]]:
        """Iterate over a mapping: (name, node of the name, node of the value)."""
        if not isinstance(node, yaml.MappingNode):
            self._fail(node, f"expected {_KINDS['object']}")
        for key, value in node.value:
            name = str(key.value)
            if name not in known:
                near = did_you_mean(name.replace("-", "_"), known)
                hint = near or f"; there are {', '.join(known)}"
                self._fail(key, f"there is no option {name[:100]!r}{hint}")
            yield name, key, value

    def _value(self, row: OptionRow, key: yaml.Node, node: yaml.Node) -> Any:
        name = str(key.value)
        if row.name == UPSTREAM and _kind(node) == "string":
            return (self._scalar(node, "string", name),)
        if row.json_type == "array":
            entries = self._list(node, repr(name))
            return tuple(self._scalar(entry, row.item_type, name) for entry in entries)
        if row.json_type == "object":
            return self._pairs(row, name, node)
        value = self._scalar(node, row.json_type, name)
        if row.choices and value not in row.choices:
            self._fail(node, f"{name!r} is {value!r}, expected one of {', '.join(row.choices)}")
        if row.kind in (int, float) and not row.has(value):
            self._fail(node, f"{name!r} is {value}, expected {row.accepted}")
        return self._absolute(value) if is_path(row, value) else value

    def _pairs(self, row: OptionRow, name: str, node: yaml.Node) -> Any:
        """Return a mapping in the form of the command line."""
        if not isinstance(node, yaml.MappingNode):
            self._fail(node, f"{name!r} should be {_KINDS['object']}")
        pairs = {
            str(key.value): self._scalar(value, row.item_type, f"{name}.{key.value}")
            for key, value in node.value
        }
        if row.kind != list[str]:
            return pairs
        return tuple(
            f"{key}={value if isinstance(value, str) else json.dumps(value)}"
            for key, value in pairs.items()
        )

    def _list(self, node: yaml.Node, name: str) -> list[yaml.Node]:
        if not isinstance(node, yaml.SequenceNode):
            self._fail(node, f"{name} should be {_KINDS['array']}")
        return list(node.value)

    def _scalar(self, node: yaml.Node, kind: str, name: str) -> Any:
        actual = _kind(node)
        is_accepted = actual == kind or (kind, actual) == ("number", "integer")
        if kind == "scalar":
            is_accepted = actual in ("boolean", "integer", "number", "string")
        if not is_accepted:
            shown = repr(node.value[:100]) if isinstance(node.value, str) else _KINDS[actual]
            self._fail(node, f"{name!r} is {shown}, expected {_KINDS[kind]}")
        with faults(f"{self._path}, line {node.start_mark.line + 1}: {name!r}"):
            value = Loader("").construct_object(node)
            return float(value) if kind == "number" else value

    def _absolute(self, path: str) -> str:
        return located(path, self._directory)

    def _fail(self, node: yaml.Node, text: str) -> Any:
        raise InvalidInputs(f"{self._path}, line {node.start_mark.line + 1}: {text}")


def _kind(node: yaml.Node) -> str:
    """Return the type of a node: by its form, as any tag may precede it; of a scalar by its tag."""
    if isinstance(node, yaml.SequenceNode):
        return "array"
    if isinstance(node, yaml.MappingNode):
        return "object"
    return _TAGS.get(node.tag.rpartition(":")[2], "null")
