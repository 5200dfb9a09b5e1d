"""Fetching of files from other servers, for the hosts that the operator allows.

A host name is resolved once, and the address is checked and then connected to, so a name cannot be
rebound to a private address in between; each redirect is checked alike. The whole fetch, with name
lookups, handshakes, headers and redirects, has one deadline, at which the connection is shut down:
a socket timeout would start again with each byte.
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
_TIMED_OUT = "cannot be fetched: the time limit is reached"


@dataclass(frozen=True, slots=True)
class FetchLimits:
    """Allowed `hosts` ("*": any with a public address), bytes of a file, and seconds of a fetch."""

    hosts: Sequence[str]
    max_bytes: int
    seconds: float


def fetch(url: str, limits: FetchLimits) -> bytes:
    """Fetch the file at an http or https URL.

    Raises InvalidInputs, whose message follows the file's name: a host that is not allowed, no
    reply, too many bytes or redirects.
    """
    deadline = time.monotonic() + limits.seconds
    for _ in range(MAX_REDIRECTS + 1):
        result = _request(_checked(url, limits.hosts), limits, deadline)
        if isinstance(result, bytes):
            return result
        url = urljoin(url, result)
    raise InvalidInputs(f"has more than {MAX_REDIRECTS} redirects")


def _checked(url: str, hosts: Sequence[str]) -> SplitResult:
    try:
        parts = urlsplit(url)
        host, _ = (parts.hostname or "").lower(), parts.port
    except ValueError:
        raise InvalidInputs("is no URL") from None
    if parts.scheme not in _PORTS or not host:
        raise InvalidInputs("is no http or https URL")
    if not hosts:
        raise InvalidInputs(
            "is a URL, but this server fetches no files: send the file as a data URI"
        )
    if host not in _lower(hosts) and ANY_HOST not in hosts:
        raise InvalidInputs(
            f"is on host {host[:100]!r}, which is not among the allowed image_hosts"
        )
    return parts


def _lower(hosts: Sequence[str]) -> set[str]:
    return {host.lower() for host in hosts}


def _request(parts: SplitResult, limits: FetchLimits, deadline: float) -> bytes | str:
    """Return the file, or the URL of a redirect."""
    host = str(parts.hostname)
    try:
        with _connect(parts, limits, deadline) as stream, _cut_off(stream, deadline):
            if isinstance(stream, ssl.SSLSocket):
                stream.do_handshake()
            connection = HTTPConnection(host, parts.port or _PORTS[parts.scheme])
            connection.sock = stream
            path = f"{parts.path or '/'}{'?' + parts.query if parts.query else ''}"
            connection.request("GET", path, headers={"Accept": "*/*"})
            response = connection.getresponse()
            location = response.headers.get("Location")
            if response.status in _REDIRECTS and location:
                return location
            if response.status != 200:
                raise InvalidInputs(
                    f"cannot be fetched: {host} replied with status {response.status}"
                )
            return _read(response, limits, deadline)
    except (OSError, HTTPException, UnicodeError, ValueError) as error:
        if isinstance(error, InvalidInputs):
            raise
        _remaining(deadline)
        raise InvalidInputs(f"cannot be fetched from {host}: {error or 'no reply'}") from None


def _connect(parts: SplitResult, limits: FetchLimits, deadline: float) -> socket.socket:
    host = str(parts.hostname)
    port = parts.port or _PORTS[parts.scheme]
    address = _resolve(host, port, deadline)
    if host not in _lower(limits.hosts) and not _is_public(address):
        raise InvalidInputs(f"is on host {host}, whose address is not public")
    stream = socket.create_connection((address, port), _remaining(deadline))
    if parts.scheme == "http":
        return stream
    try:
        context = ssl.create_default_context()
        return context.wrap_socket(stream, server_hostname=host, do_handshake_on_connect=False)
    except BaseException:
        stream.close()
        raise


def _resolve(host: str, port: int, deadline: float) -> str:
    """Return the first address of a host name.

    `getaddrinfo` has no timeout, so it runs on a thread that is abandoned at the deadline.
    """
    outcome: list[str | OSError | UnicodeError] = []

    def look_up() -> None:
        try:
            entries = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            outcome.append(error)
        else:
            outcome.append(str(entries[0][4][0]))

    thread = threading.Thread(target=look_up, name="resolve", daemon=True)
    thread.start()
    thread.join(_remaining(deadline))
    if not outcome:
        raise InvalidInputs(_TIMED_OUT)
    if isinstance(outcome[0], Exception):
        raise outcome[0]
    return outcome[0]


@contextmanager
def _cut_off(stream: socket.socket, deadline: float) -> Iterator[None]:
    """Shut the connection down at the deadline, whatever call is blocked on it."""
    timer = threading.Timer(_remaining(deadline), _shut_down, [stream])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _shut_down(stream: socket.socket) -> None:
    with suppress(OSError):
        # Not SSLSocket.shutdown, which would drop the TLS state that is in use.
        socket.socket.shutdown(stream, socket.SHUT_RDWR)


def _is_public(address: str) -> bool:
    ip = ip_address(address.partition("%")[0])
    if isinstance(ip, IPv6Address) and ip.ipv4_mapped is not None:
        ip = ip.ipv4_mapped
    return ip.is_global and not ip.is_multicast


def _read(response: HTTPResponse, limits: FetchLimits, deadline: float) -> bytes:
    content = bytearray()
    while True:
        piece = response.read1(_CHUNK)
        _remaining(deadline)
        if not piece:
            return bytes(content)
        content += piece
        if len(content) > limits.max_bytes:
            raise InvalidInputs(f"has more than {limits.max_bytes:,} bytes")


def _remaining(deadline: float) -> float:
    """Return the seconds until the deadline.  Raises InvalidInputs after it."""
    remaining = deadline - time.monotonic()
    if remaining <= 0:
        raise InvalidInputs(_TIMED_OUT)
    return remaining
