"""`mindspore-serving config`: the configuration that `serve` would have, and its JSON schema."""

import json
import os
from typing import Any

import yaml

from mindspore_serving.cli.config_fields import FIELDS, PATH, SERVABLES, Field, is_path, schema
from mindspore_serving.cli.tool_settings import ConfigSettings

HIDDEN_KEY = "***"


def run(settings: ConfigSettings) -> int:
    """Print it; keys of clients are not shown."""
    if settings.schema:
        print(json.dumps(schema(), indent=2))
    else:
        print(yaml.safe_dump(effective(settings), sort_keys=False, allow_unicode=True), end="")
    return 0


def effective(settings: ConfigSettings) -> dict[str, Any]:
    """All of `settings` in the form of a configuration file."""
    paths = [{PATH: os.path.abspath(path)} for path in settings.paths]
    own = [
        ({PATH: one["paths"][0]} if "paths" in one else {})
        | {name: _shown(FIELDS[name], value) for name, value in one.items() if name in FIELDS}
        for one in settings.servables
    ]
    found = {name: _shown(field, getattr(settings, name)) for name, field in FIELDS.items()}
    return {SERVABLES: paths + own} | {name: v for name, v in found.items() if v is not None}


def _shown(field: Field, value: Any) -> Any:
    """`value` of an option as a file has it."""
    if field.name == "api_key":
        return [HIDDEN_KEY for _ in value]
    if is_path(field.name, value):
        return os.path.abspath(value)
    if field.name == "node_labels":
        return dict(value)
    if field.kind == "object":
        pairs = (text.partition("=") for text in value)
        return {name.replace("-", "_"): _scalar(given) for name, _, given in pairs}
    return list(value) if isinstance(value, tuple) else value


def _scalar(text: str) -> Any:
    """A number or truth value where `text` is one."""
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return value if isinstance(value, bool | int | float) else text
