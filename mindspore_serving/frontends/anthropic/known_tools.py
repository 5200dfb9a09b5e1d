"""Anthropic's own tools that the client runs, with the schemas that requests leave out.

The model gets a function with the name that the request gives.  Other types of tools, such as
`web_search_...`, run on Anthropic's server only, and the model does not see them.
"""

import re
from typing import Any

Schema = dict[str, Any]

_DATE = re.compile(r"_\d{8}$")
_TEXT: Schema = {"type": "string"}
_LINE: Schema = {"type": "integer"}
_EDITING = {
    "path": _TEXT,
    "file_text": _TEXT,
    "old_str": _TEXT,
    "new_str": _TEXT,
    "insert_line": _LINE,
    "insert_text": _TEXT,
    "view_range": {"type": "array", "items": _LINE, "minItems": 2, "maxItems": 2},
}


def _commands(required: list[str], *commands: str, **properties: Schema) -> Schema:
    return {
        "type": "object",
        "properties": {"command": {"enum": [*commands]}, **properties},
        "required": required,
        "additionalProperties": False,
    }


_SHELL: Schema = {
    "type": "object",
    "properties": {"command": _TEXT, "restart": {"type": "boolean"}},
    "additionalProperties": False,
}
_ROWS = {  # by the type without its date: what the tool does, and its input
    "bash": ("Run a command in a bash shell, or restart the shell.", _SHELL),
    "text_editor": (
        "View, create and edit text files.",
        _commands(["command", "path"], "view", "create", "str_replace", "insert", **_EDITING),
    ),
    "memory": (
        "Keep notes as files below /memories, and read them again.",
        _commands(
            ["command"],
            *("view", "create", "str_replace", "insert", "delete", "rename"),
            **_EDITING,
            old_path=_TEXT,
            new_path=_TEXT,
        ),
    ),
}


def find_known(kind: str) -> tuple[str, Schema] | None:
    """Return description and input schema of a type of tools, None if no client runs it."""
    return _ROWS.get(_DATE.sub("", kind))
