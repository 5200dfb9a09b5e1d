"""Addresses of servers, `ip:port` and `unix:path`, and sockets bound to them.

Knows no protocol.
"""

import errno
import ipaddress
import os
import resource
import socket
import stat
from contextlib import suppress
from dataclasses import dataclass

from mindspore_serving.core.server_limits import ServerLimits
from mindspore_serving.errors import InvalidInputs, StartError

_BACKLOG = 2048


@dataclass(frozen=True, slots=True)
class Address:
    """Address of a server: `host` and `port`, or `path` of a unix socket."""

    text: str
    host: str = ""
    port: int = 0
    path: str = ""


def parse(text: str, tag: str, *, allow_unix: bool) -> Address:
    """Parse an address; `tag` ("Serving gRPC", "RESTful server") names the server in errors.

    Raises InvalidInputs with the part that is wrong.
    """
    if text.startswith("unix:"):
        if not allow_unix:
            raise InvalidInputs(
                f"Serving Error: {tag} does not support binding to unix domain socket, "
                f"given '{text}', expected 'ip:port'"
            )
        if not text[5:]:
            raise InvalidInputs("Serving Error: Empty grpc server unix domain socket address")
        return Address(text, path=text[5:])
    host, colon, port = text.rpartition(":")
    if not colon:
        raise InvalidInputs(
            f"Serving Error: The format of the {tag} address '{text}' is illegal, "
            "expected 'ip:port'" + (" or 'unix:path'" if allow_unix else "")
        )
    if not host or not port:
        raise InvalidInputs(f"Serving Error: Missing ip or port of the {tag} address '{text}'")
    if not (port.isascii() and port.isdigit()):
        raise InvalidInputs(
            f"Serving Error: The type of {tag} address '{text}' port is not a number"
        )
    if len(port) > 9 or not 1 <= int(port) <= 65535:
        raise InvalidInputs(
            f"Serving Error: The port of the {tag} address '{text}' is out of legal range "
            "[1 ~ 65535]"
        )
    return Address(text, host=host.strip("[]"), port=int(port))


def check_loopback(address: Address, tag: str) -> None:
    """Raise InvalidInputs unless `address` is a loopback address."""
    try:
        is_loopback = ipaddress.ip_address(address.host).is_loopback
    except ValueError:
        is_loopback = address.host == "localhost"
    if not is_loopback:
        raise InvalidInputs(
            f"{tag} is {address.text}, where other machines could read the traffic: only a "
            "loopback address, such as 127.0.0.1, can be insecure"
        )


def listen(address: Address, tag: str = "RESTful server") -> socket.socket:
    """Return a listening TCP socket, or unix socket; the file of an older one is replaced.

    The directory of a unix socket is made, but none above it: a path with a mistake is to fail.
    Raises StartError if the address is in use or not of this machine.
    """
    if address.path:
        with suppress(OSError):
            os.mkdir(os.path.dirname(os.path.abspath(address.path)))
    remove_socket(address)
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    listener = socket.socket(socket.AF_UNIX if address.path else family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address.path or (address.host, address.port))
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise StartError(
            f"Serving Error: {tag} start failed, bind to the socket address "
            f"{address.text} failed: {error.strerror or error}{_hint(error)}"
        ) from error
    listener.setblocking(False)
    return listener


def _hint(error: OSError) -> str:
    if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
        return "; expected an address of this machine, as 127.0.0.1, or 0.0.0.0 for every network"
    return {
        errno.EADDRINUSE: "; choose another port, or end the process that listens on it",
        errno.EACCES: "; ports below 1024 need root: choose another port",
    }.get(error.errno or 0, "")


def remove_socket(address: Address) -> None:
    """Remove the file of a unix socket, which outlives its server."""
    with suppress(OSError):
        if address.path and stat.S_ISSOCK(os.stat(address.path).st_mode):
            os.unlink(address.path)


def connection_limits(limits: ServerLimits) -> tuple[int, int]:
    """Return the limits of connections in all and from one address.

    Connections use at most half of the descriptors of this process; if that is less than `limits`
    allow, the limit for an address is less by the same factor.
    """
    total = min(limits.max_connections, descriptor_limit() // 2)
    return total, limits.max_connections_per_address * total // limits.max_connections


def descriptor_limit() -> int:
    """Return the number of descriptors that this process can have open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft if soft != resource.RLIM_INFINITY else 1 << 20
