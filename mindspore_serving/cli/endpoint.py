"""Endpoint of an HTTP server for commands that are clients: URL, certificates, API key."""

import os
import ssl
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPSConnection
from urllib.parse import urlsplit

from mindspore_serving.cli.settings import Access, TlsFiles
from mindspore_serving.errors import InvalidInputs
from mindspore_serving.tls import to_client_context

API_KEY = "MINDSPORE_SERVING_API_KEY"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """HTTP server and how to reach it.

    `base` is a prefix of every path: "" or "/some/prefix". `context` is None without TLS; `headers`
    has the API key, if there is one.
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

    def connect(self, timeout: float) -> HTTPConnection:
        """Return a connection, which is opened by the first request; `timeout` in seconds."""
        if self.context is None:
            return HTTPConnection(self.host, self.port, timeout=timeout)
        return HTTPSConnection(self.host, self.port, timeout=timeout, context=self.context)


def to_endpoint(url: str, access: Access) -> Endpoint:
    """Return the endpoint of a URL: http://HOST:PORT or HOST:PORT, with or without path and "/v1".

    Raises InvalidInputs for other URLs, StartError for certificates that cannot be used.
    """
    text = url if "://" in url else f"http://{url}"
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InvalidInputs(f"{url!r}: expected a URL such as http://127.0.0.1:1500")
    is_secure = parts.scheme == "https"
    key = to_key(access)
    if not (key.isascii() and key.isprintable()):
        raise InvalidInputs(f"the API key (--api-key or {API_KEY}) must be printable ASCII")
    return Endpoint(
        parts.hostname,
        port or (443 if is_secure else 80),
        parts.path.rstrip("/").removesuffix("/v1"),
        to_context(access) if is_secure else None,
        {"authorization": f"Bearer {key}"} if key else {},
    )


def to_key(access: Access) -> str:
    """Return the API key of the options, else of the environment; "" if there is none."""
    return access.api_key or os.environ.get(API_KEY, "")


def to_context(access: TlsFiles) -> ssl.SSLContext:
    """Return the TLS context of a client.  Raises StartError naming a file that cannot be used."""
    return to_client_context(access.tls_ca, access.tls_cert, access.tls_key)
