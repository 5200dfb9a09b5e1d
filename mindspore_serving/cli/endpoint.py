"""Endpoint of an HTTP server for commands that are clients: URL, certificates, API key."""

import os
import socket
import ssl
from dataclasses import dataclass
from http.client import BadStatusLine, HTTPConnection, HTTPSConnection
from urllib.parse import urlsplit

from mindspore_serving.cli.settings import Access, TlsFiles
from mindspore_serving.errors import InvalidInputs, ServableUnavailable
from mindspore_serving.tls import to_client_context

API_KEY = "MINDSPORE_SERVING_API_KEY"

IS_GRPC = "is a gRPC port: give the URL of the HTTP port, which is 1500 by default"
_GREETING_SECONDS = 1.0
_SETTINGS = b"\x04"  # type of the first HTTP/2 frame, with which a gRPC server begins


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

    A host without scheme and port is a name of something else.

    Raises InvalidInputs for other URLs, StartError for certificates that cannot be used.
    """
    text = url if "://" in url else f"http://{url}"
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    is_address = "://" in url or port is not None
    if parts.scheme not in ("http", "https") or not parts.hostname or not is_address:
        write = f"; to chat with a model write mindspore-serving run {url}" * os.path.exists(url)
        raise InvalidInputs(f"{url!r}: expected a URL such as http://127.0.0.1:1500{write}")
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


def is_grpc(first: bytes) -> bool:
    """Return whether the first bytes of a server are those of gRPC."""
    return first[3:4] == _SETTINGS


def greets_as_grpc(endpoint: Endpoint) -> bool:
    """Return whether a server sends the first frame of gRPC to a new connection, unasked.

    Ask it of a server that reset a connection: the reset may have dropped what it sent before.
    """
    if endpoint.context is not None:
        return False
    try:
        address = endpoint.host, endpoint.port
        with socket.create_connection(address, _GREETING_SECONDS) as connection:
            return is_grpc(connection.recv(9))
    except OSError:
        return False


def no_answer(endpoint: Endpoint, error: Exception) -> ServableUnavailable:
    """Return the error of a request that `error` ended, with what to write instead."""
    url, authority = endpoint.url, endpoint.authority
    text = f"no answer from {url}: {error or type(error).__name__}"
    if isinstance(error, ConnectionRefusedError):
        text = (
            f"nothing listens at {url} (connection refused): start `mindspore-serving serve PATH`, "
            "or give the URL of a server"
        )
    elif isinstance(error, TimeoutError):
        text = f"{url} did not answer in time"
    elif isinstance(error, ssl.SSLError) and error.reason == "WRONG_VERSION_NUMBER":
        text = f"{authority} does not use TLS: write http://{authority}"
    elif isinstance(error, ssl.SSLCertVerificationError):
        text = (
            f"the certificate of {authority} is not trusted ({error.verify_message}): give the "
            "authority that signed it with --tls-ca FILE"
        )
    elif isinstance(error, ConnectionResetError) and greets_as_grpc(endpoint):
        text = f"{authority} {IS_GRPC}; `predict` takes grpc://{authority}"
    elif isinstance(error, ConnectionResetError) and endpoint.context is None:
        text = f"{url} closed the connection without an answer; does it use TLS (https://)?"
    elif isinstance(error, BadStatusLine) and is_grpc(str(error).encode("latin-1", "replace")):
        text = f"{authority} {IS_GRPC}; `predict` takes grpc://{authority}"
    elif isinstance(error, BadStatusLine):
        text = f"{authority} is not an HTTP server: it answers {str(error)[:40]!r}"
    return ServableUnavailable(text)


def to_key(access: Access) -> str:
    """Return the API key of the options, else of the environment; "" if there is none."""
    return access.api_key or os.environ.get(API_KEY, "")


def to_context(access: TlsFiles) -> ssl.SSLContext:
    """Return the TLS context of a client.  Raises StartError naming a file that cannot be used."""
    return to_client_context(access.tls_ca, access.tls_cert, access.tls_key)
