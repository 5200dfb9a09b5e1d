"""Tools of MCP servers, and their names in the form that models and all clients accept."""

import hashlib
import re
from dataclasses import dataclass, field
from typing import Any

MAX_NAME = 64  # characters of a function's name
_OTHER = re.compile(r"[^A-Za-z0-9_-]")


def tool_name(owner: str, name: str) -> str:
    """Return the name of a tool of `owner`: letters, digits, - and _, at most 64 characters.

    A hash at the end keeps two names apart that differ in what is replaced or cut.
    """
    plain = f"{owner}__{name}"
    full = _OTHER.sub("_", plain)
    if full == plain and len(full) <= MAX_NAME:
        return full
    digest = hashlib.sha256(plain.encode()).hexdigest()[:8]
    return f"{full[: MAX_NAME - len(digest) - 1]}_{digest}"


@dataclass(frozen=True, slots=True)
class McpTool:
    """A tool; `function` is its name in the prompt."""

    server: str
    name: str
    description: str
    schema: dict[str, Any]
    annotations: dict[str, Any] | None = None
    function: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "function", tool_name(self.server, self.name))
