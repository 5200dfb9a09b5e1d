"""Where an HTTP server is, for the commands that call one: URL, certificates, API key."""

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

    def connect(self, timeout: float) -> HTTPConnection:
        """`timeout` is in seconds.  Connects with the first request."""
        if self.context is None:
            return HTTPConnection(self.host, self.port, timeout=timeout)
        return HTTPSConnection(self.host, self.port, timeout=timeout, context=self.context)


def to_endpoint(url: str, access: Access) -> Endpoint:
    """The server at `url`: http://HOST:PORT, HOST:PORT, with or without a path and "/v1".

    Raises InvalidInputs for anything else, StartError for certificates that cannot be used.
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
        raise InvalidInputs(f"the API key (--api-key or {API_KEY}) has to be printable ASCII")
    return Endpoint(
        parts.hostname,
        port or (443 if is_secure else 80),
        parts.path.rstrip("/").removesuffix("/v1"),
        to_context(access) if is_secure else None,
        {"authorization": f"Bearer {key}"} if key else {},
    )


def to_key(access: Access) -> str:
    """The API key that was given, or that of the environment; "" for none."""
    return access.api_key or os.environ.get(API_KEY, "")


def to_context(access: TlsFiles) -> ssl.SSLContext:
    """Of a client.  Raises StartError naming the files that cannot be used."""
    return to_client_context(access.tls_ca, access.tls_cert, access.tls_key)
