"""Where a server of HTTP is, as the commands that call one are told: URL, certificates, API key."""

import os
import ssl
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import urlsplit

from mindspore_serving.errors import InvalidInputs

API_KEY = "MINDSPORE_SERVING_API_KEY"


class Access(Protocol):
    """The settings that say how to reach a server."""

    @property
    def url(self) -> str: ...
    @property
    def api_key(self) -> str: ...
    @property
    def tls_ca(self) -> str | None: ...
    @property
    def tls_cert(self) -> str | None: ...
    @property
    def tls_key(self) -> str | None: ...


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A server.  `base` goes before every path of it: "" or "/some/prefix".

    `context` is None without TLS; `headers` has the API key, if there is one.
    """

    host: str
    port: int
    base: str
    context: ssl.SSLContext | None
    headers: dict[str, str]

    @property
    def authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @property
    def url(self) -> str:
        return f"http{'s' if self.context else ''}://{self.authority}{self.base}"


def to_endpoint(access: Access) -> Endpoint:
    """The server at `access.url`: http://HOST:PORT, HOST:PORT, with or without a path and "/v1".

    Raises InvalidInputs for anything else, and for certificates that cannot be used.
    """
    text = access.url if "://" in access.url else f"http://{access.url}"
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InvalidInputs(f"{access.url!r}: expected a URL such as http://127.0.0.1:1500")
    is_secure = parts.scheme == "https"
    key = access.api_key or os.environ.get(API_KEY, "")
    if not (key.isascii() and key.isprintable()):
        raise InvalidInputs(f"the API key (--api-key or {API_KEY}) has to be printable ASCII")
    return Endpoint(
        parts.hostname,
        port or (443 if is_secure else 80),
        parts.path.rstrip("/").removesuffix("/v1"),
        _context(access) if is_secure else None,
        {"authorization": f"Bearer {key}"} if key else {},
    )


def _context(access: Access) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=access.tls_ca)
        if access.tls_cert:
            context.load_cert_chain(access.tls_cert, access.tls_key)
    except OSError as error:
        files = [name for name in (access.tls_ca, access.tls_cert, access.tls_key) if name]
        raise InvalidInputs(f"cannot use {', '.join(files)} for TLS: {error}") from error
    return context
