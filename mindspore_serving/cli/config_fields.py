"""What a configuration file may hold: the options of `serve`, as a table and as a JSON schema."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from mindspore_serving.cli.settings import ServeSettings

SERVABLES, PATH, UPSTREAM = "servables", "path", "upstream"
_MAPPINGS = (
    "limit",
    "llm_option",
    "engine_option",
    "adapter",
    "node_labels",
)  # NAME=VALUE on the command line
_NOT_IN_FILES = ("paths", "config", SERVABLES)
PER_SERVABLE = (
    "name",
    "versions",
    "device_type",
    "device_ids",
    "num_parallel_workers",
    "max_workers",
    "min_workers",
    "requests_per_worker",
    "scale_down_delay",
    "max_batch_delay_ms",
    "preferred_batch_size",
    "max_requests",
    "restart_policy",
    "heartbeat_timeout",
    "stage_timeout",
    "step_timeout",
    "node_labels",
    "runtime",
    "upstream",
    "engine",
    "engine_option",
    "quantization",
    "max_model_len",
    "prefix_cache_dir",
    "prefix_cache_disk",
    "pinned_prompts",
    "deterministic",
    "draft",
    "adapter",
    "max_loras",
    "llm_option",
    "allow_pickle",
    "backend",
    "python",
    "environment",
)
FILES = (
    "tls_cert",
    "tls_key",
    "tls_ca",
    "api_key_file",
    "token_file",
    "python",
    "environment",
    "prefix_cache_dir",
    "pinned_prompts",
    "draft",
)


def is_path(name: str, value: Any) -> bool:
    """Whether the option is a path, which in a file is relative to that; "python" may be a name."""
    return name in FILES and bool(value) and (name != "python" or os.sep in value)


@dataclass(frozen=True, slots=True)
class Field:
    """An option.  `kind` is a type of JSON: "boolean", "integer", "number", "string", "array" or
    "object"; `item` that of the values of the last two."""

    name: str
    kind: str
    help: str
    item: str = ""
    choices: tuple[str, ...] = ()


def _field(one: Any) -> Field:
    default, metadata = one.default, one.metadata
    choices = tuple(metadata.get("choices", ()))
    if one.name in _MAPPINGS:
        return Field(one.name, "object", metadata["help"], item="scalar")
    if isinstance(default, tuple):
        item = "integer" if one.name == "device_ids" else "string"
        return Field(one.name, "array", metadata["help"], item=item)
    kinds = {bool: "boolean", int: "integer", float: "number"}
    kind = kinds.get(metadata.get("type", type(default)), "string")
    return Field(one.name, kind, metadata["help"], choices=choices)


FIELDS: Mapping[str, Field] = {
    one.name: _field(one) for one in fields(ServeSettings) if one.name not in _NOT_IN_FILES
}


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
