"""`mindspore-serving config`: print the configuration of `serve`, or its JSON schema."""

import json
import os
from typing import Any

import yaml

from mindspore_serving.cli.config_file import FIELDS, PATH, SERVABLES, is_path, schema
from mindspore_serving.cli.tool_settings import ConfigSettings
from mindspore_serving.core.params import OptionRow
from mindspore_serving.frontends.state.dialects import redacted
from mindspore_serving.hub.reference import parse_reference

HIDDEN_KEY = "***"
URLS = ("state_directory", "usage_log", "cache_store", "limits_store")  # may have passwords


def run(settings: ConfigSettings) -> int:
    """Print the configuration without keys of clients, or the schema; return 0."""
    if settings.schema:
        print(json.dumps(schema(), indent=2))
    else:
        print(yaml.safe_dump(effective(settings), sort_keys=False, allow_unicode=True), end="")
    return 0


def effective(settings: ConfigSettings) -> dict[str, Any]:
    """Return all `settings` in the form of a configuration file."""
    paths = [{PATH: _absolute(path)} for path in settings.paths]
    servables = [
        ({PATH: servable["paths"][0]} if "paths" in servable else {})
        | {
            name: shown(row, servable[row.name])
            for name, row in FIELDS.items()
            if row.name in servable
        }
        for servable in settings.servables
    ]
    options = {name: shown(row, getattr(settings, row.name)) for name, row in FIELDS.items()}
    return {SERVABLES: paths + servables} | {n: v for n, v in options.items() if v is not None}


def shown(row: OptionRow, value: Any) -> Any:
    """Return the value of an option as it is in a file; None if it is none of the choices."""
    if row.choices and value not in row.choices:
        return None
    if row.name == "api_key":
        return [HIDDEN_KEY for _ in value]
    if row.name in URLS:
        value = redacted(value)
    if value and is_path(row, value):
        return _absolute(value)
    if row.item_type == "scalar" and isinstance(value, tuple):
        pairs = (text.partition("=") for text in value)
        return {name.replace("-", "_"): _scalar(value_text) for name, _, value_text in pairs}
    return list(value) if isinstance(value, tuple) else value


def _absolute(path: str) -> str:
    """Make a path absolute; a model's name stays as it is."""
    return path if parse_reference(path) else os.path.abspath(path)


def _scalar(text: str) -> Any:
    """Parse a number, true or false; any other text is returned as it is."""
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return value if isinstance(value, bool | int | float) else text
