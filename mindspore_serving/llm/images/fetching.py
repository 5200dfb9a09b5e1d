"""Pictures from other servers, if the operator allows their hosts.

An address is resolved once, checked and then connected to, so that no name can become a private
address in between; each redirect is checked alike.  All of it, names, handshakes, heads and
redirects included, has one deadline, at which the connection is cut off: a time-out of a socket
begins anew with each byte.
"""

import socket
import ssl
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
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
_TOO_LONG = "cannot be fetched: it takes too long"


@dataclass(frozen=True, slots=True)
class FetchLimits:
    """What is fetched: from which `hosts` ("*": any with public addresses), so many bytes, in so
    many seconds in all.
    """

    hosts: Sequence[str]
    max_bytes: int
    seconds: float


def fetch(url: str, limits: FetchLimits) -> bytes:
    """The file at an address of http or https.  Raises InvalidInputs that continues the picture's
    name: a host that is not allowed, no answer, too many bytes or redirects.
    """
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
        with _connect(parts, limits, deadline) as stream, _cut_off(stream, deadline):
            if isinstance(stream, ssl.SSLSocket):
                stream.do_handshake()
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
            return _read(response, limits, deadline)
    except (OSError, HTTPException, UnicodeError, ValueError) as error:
        if isinstance(error, InvalidInputs):
            raise
        _left(deadline)
        raise InvalidInputs(f"cannot be fetched from {host}: {error or 'no answer'}") from None


def _connect(parts: SplitResult, limits: FetchLimits, deadline: float) -> socket.socket:
    host = str(parts.hostname)
    port = parts.port or _PORTS[parts.scheme]
    address = _resolve(host, port, deadline)
    if host not in _named(limits.hosts) and not _is_public(address):
        raise InvalidInputs(f"is at {host}, whose address is not a public one")
    stream = socket.create_connection((address, port), _left(deadline))
    if parts.scheme == "http":
        return stream
    try:
        context = ssl.create_default_context()
        return context.wrap_socket(stream, server_hostname=host, do_handshake_on_connect=False)
    except BaseException:
        stream.close()
        raise


def _resolve(host: str, port: int, deadline: float) -> str:
    """The first address of a name.  The library waits for as long as name servers like, so another
    thread does.
    """
    outcome: list[str | OSError | UnicodeError] = []

    def look() -> None:
        try:
            entries = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            outcome.append(error)
        else:
            outcome.append(str(entries[0][4][0]))

    thread = threading.Thread(target=look, name="resolve", daemon=True)
    thread.start()
    thread.join(_left(deadline))
    if not outcome:
        raise InvalidInputs(_TOO_LONG)
    if isinstance(outcome[0], Exception):
        raise outcome[0]
    return outcome[0]


@contextmanager
def _cut_off(stream: socket.socket, deadline: float) -> Iterator[None]:
    """End reading and writing at the deadline, whatever waits."""
    timer = threading.Timer(_left(deadline), _shut, [stream])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _shut(stream: socket.socket) -> None:
    with suppress(OSError):
        socket.socket.shutdown(stream, socket.SHUT_RDWR)  # TLS would take its own state away


def _is_public(address: str) -> bool:
    found = ip_address(address.partition("%")[0])
    if isinstance(found, IPv6Address) and found.ipv4_mapped is not None:
        found = found.ipv4_mapped
    return found.is_global and not found.is_multicast


def _read(response: HTTPResponse, limits: FetchLimits, deadline: float) -> bytes:
    content = bytearray()
    while True:
        piece = response.read1(_CHUNK)
        _left(deadline)
        if not piece:
            return bytes(content)
        content += piece
        if len(content) > limits.max_bytes:
            raise InvalidInputs(f"has more than {limits.max_bytes:,} bytes")


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise InvalidInputs(_TOO_LONG)
    return left
