"""The file that lists MCP servers, read and checked.  Starts nothing."""

import os
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import msgspec

from mindspore_serving.errors import StartError, did_you_mean, reason

MAX_FILE = 1 << 20  # bytes
MAX_LABEL = 64  # characters
_FORM = '{"mcpServers": {"NAME": {"command": "..."} or {"url": "https://..."}}}'
_VARIABLE = re.compile(r"\$\{(\w+)\}")
_TYPES = {"command": ("stdio",), "url": ("http", "streamable-http", "streamable_http")}


class McpServerConfig(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel", kw_only=True
):
    """An MCP server: a `command` that speaks on its standard streams, or a `url`.

    Only `allowed_tools` are offered, all if it is None.  A call takes at most `timeout_seconds`,
    and the model reads at most `max_output_bytes` of its result.
    """

    command: str | None = None
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = {}
    cwd: str | None = None
    url: str | None = None
    headers: Mapping[str, str] = {}
    type: str | None = None
    disabled: bool = False
    allowed_tools: tuple[str, ...] | None = None
    timeout_seconds: float = 60.0
    max_output_bytes: int = 65536


class _File(msgspec.Struct, rename="camel"):
    mcp_servers: dict[str, msgspec.Raw]


def read_config(path: str) -> dict[str, McpServerConfig]:
    """Return the servers of a file by name, without those that are disabled.

    Raises StartError naming the file and what is wrong.
    """
    try:
        with open(path, "rb") as file:
            text = file.read(MAX_FILE + 1)
    except OSError as error:
        raise StartError(f"--mcp-config {path!r} cannot be read: {reason(error)}") from None
    if len(text) > MAX_FILE:
        raise StartError(f"--mcp-config {path!r} has over {MAX_FILE} bytes, expected {_FORM}")
    try:
        servers = msgspec.json.decode(text, type=_File).mcp_servers
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise StartError(f"--mcp-config {path!r}: {error}; expected {_FORM}") from None
    where = f"--mcp-config {path!r}"
    read = {name: _read(f"{where}: {name!r}", name, raw) for name, raw in servers.items()}
    return {name: server for name, server in read.items() if not server.disabled}


def _read(where: str, name: str, raw: msgspec.Raw) -> McpServerConfig:
    if not 1 <= len(name) <= MAX_LABEL or not name.isprintable():
        raise StartError(f"{where}: expected a name of 1 to {MAX_LABEL} printable characters")
    try:
        known = [field.encode_name for field in msgspec.structs.fields(McpServerConfig)]
        for key in msgspec.json.decode(raw, type=dict[str, msgspec.Raw]):
            if key not in known:
                near = did_you_mean(key, known)
                text = f"{where} has {key!r}, expected {', '.join(known)}{near}"
                raise StartError(text)
        server = msgspec.convert(_filled(where, msgspec.json.decode(raw)), McpServerConfig)
    except (msgspec.DecodeError, RecursionError) as error:
        raise StartError(f"{where}: {error}") from None
    _check(where, server)
    return server


def _check(where: str, server: McpServerConfig) -> None:
    if (server.command is None) == (server.url is None):
        raise StartError(f"{where} has both or neither of command and url, expected one of them")
    kind = "command" if server.url is None else "url"
    if server.type not in (None, *_TYPES[kind]):
        expected = " or ".join(_TYPES[kind])
        raise StartError(f"{where}.type is {server.type!r}, expected {expected} beside {kind}")
    if server.url is not None:
        parts = urlsplit(server.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            text = f"{where}.url begins with {parts.scheme!r}, expected http://HOST or https://HOST"
            raise StartError(text)
    if not 0 < server.timeout_seconds <= 3600:
        text = f"{where}.timeoutSeconds is {server.timeout_seconds}, expected over 0, at most 3600"
        raise StartError(text)
    if not 256 <= server.max_output_bytes <= MAX_FILE:
        text = f"{where}.maxOutputBytes is {server.max_output_bytes}, expected 256 to {MAX_FILE}"
        raise StartError(text)


def _filled(where: str, value: Any) -> Any:
    """Replace ${NAME} in texts by environment variables, so that files need no secrets."""
    if isinstance(value, dict):
        return {key: _filled(where, inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_filled(where, inner) for inner in value]
    if not isinstance(value, str):
        return value
    for name in _VARIABLE.findall(value):
        if name not in os.environ:
            raise StartError(f"{where} uses ${{{name}}}, which is not set in the environment")
    return _VARIABLE.sub(lambda match: os.environ[match[1]], value)
