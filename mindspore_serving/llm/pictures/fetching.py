"""Pictures from other servers, if the operator allows their hosts.

An address is resolved once, checked and then connected to, so that no name can become a private
address in between; each redirect is checked alike.
"""

import socket
import ssl
import time
from collections.abc import Sequence
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPResponse
from ipaddress import IPv6Address, ip_address
from urllib.parse import SplitResult, urljoin, urlsplit

from mindspore_serving.errors import InvalidInputs

ANY_HOST = "*"
MAX_REDIRECTS = 3
_REDIRECTS = (301, 302, 303, 307, 308)
_PORTS = {"http": 80, "https": 443}
_CHUNK = 1 << 16


@dataclass(frozen=True, slots=True)
class FetchLimits:
    """What is fetched: from which `hosts` ("*": any with public addresses), so many bytes, in so
    many seconds in all."""

    hosts: Sequence[str]
    max_bytes: int
    seconds: float


def fetch(url: str, limits: FetchLimits) -> bytes:
    """The file at an address of http or https.  Raises InvalidInputs that continues the picture's
    name: a host that is not allowed, no answer, too many bytes or redirects."""
    deadline = time.monotonic() + limits.seconds
    for _ in range(MAX_REDIRECTS + 1):
        found = _ask(_checked(url, limits.hosts), limits, deadline)
        if isinstance(found, bytes):
            return found
        url = urljoin(url, found)
    raise InvalidInputs(f"has more than {MAX_REDIRECTS} redirects")


def _checked(url: str, hosts: Sequence[str]) -> SplitResult:
    try:
        parts = urlsplit(url)
        host, _ = (parts.hostname or "").lower(), parts.port
    except ValueError:
        raise InvalidInputs("is no URL") from None
    if parts.scheme not in _PORTS or not host:
        raise InvalidInputs("is no URL of http or https")
    if not hosts:
        raise InvalidInputs(
            "is an address, but this server fetches nothing: send the picture as a data URI"
        )
    if host not in _named(hosts) and ANY_HOST not in hosts:
        raise InvalidInputs(f"is at {host[:100]!r}, from which this server fetches nothing")
    return parts


def _named(hosts: Sequence[str]) -> set[str]:
    return {host.lower() for host in hosts}


def _ask(parts: SplitResult, limits: FetchLimits, deadline: float) -> bytes | str:
    """The file, or where it is."""
    host = str(parts.hostname)
    try:
        with _connect(parts, limits, deadline) as stream:
            connection = HTTPConnection(host, parts.port or _PORTS[parts.scheme])
            connection.sock = stream
            path = f"{parts.path or '/'}{'?' + parts.query if parts.query else ''}"
            connection.request("GET", path, headers={"Accept": "image/*"})
            response = connection.getresponse()
            location = response.headers.get("Location")
            if response.status in _REDIRECTS and location:
                return location
            if response.status != 200:
                raise InvalidInputs(f"cannot be fetched: {host} answers {response.status}")
            return _read(response, stream, limits, deadline)
    except (OSError, HTTPException, UnicodeError, ValueError) as error:
        if isinstance(error, InvalidInputs):
            raise
        raise InvalidInputs(f"cannot be fetched from {host}: {error or 'no answer'}") from None


def _connect(parts: SplitResult, limits: FetchLimits, deadline: float) -> socket.socket:
    host = str(parts.hostname)
    port = parts.port or _PORTS[parts.scheme]
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    address = str(found[0][4][0])
    if host not in _named(limits.hosts) and not _is_public(address):
        raise InvalidInputs(f"is at {host}, whose address is not a public one")
    stream = socket.create_connection((address, port), _left(deadline))
    if parts.scheme == "http":
        return stream
    try:
        return ssl.create_default_context().wrap_socket(stream, server_hostname=host)
    except BaseException:
        stream.close()
        raise


def _is_public(address: str) -> bool:
    found = ip_address(address.partition("%")[0])
    if isinstance(found, IPv6Address) and found.ipv4_mapped is not None:
        found = found.ipv4_mapped
    return found.is_global and not found.is_multicast


def _read(
    response: HTTPResponse, stream: socket.socket, limits: FetchLimits, deadline: float
) -> bytes:
    content = bytearray()
    while True:
        stream.settimeout(_left(deadline))
        piece = response.read1(_CHUNK)
        if not piece:
            return bytes(content)
        content += piece
        if len(content) > limits.max_bytes:
            raise InvalidInputs(f"has more than {limits.max_bytes:,} bytes")


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise InvalidInputs("cannot be fetched: it takes too long")
    return left
