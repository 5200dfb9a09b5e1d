"""`ip:port` and `unix:path`, checked; and a bound listening socket.  Knows no protocol."""

import errno
import ipaddress
import resource
import socket
from dataclasses import dataclass

from mindspore_serving.core.server_limits import ServerLimits
from mindspore_serving.errors import InvalidInputs, StartError

_BACKLOG = 2048


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server listens: `host` and `port`, or `path` of a unix socket."""

    text: str
    host: str = ""
    port: int = 0
    path: str = ""


def parse(text: str, tag: str, *, allow_unix: bool) -> Address:
    """`text` as an address; `tag` ("Serving gRPC", "RESTful server") names it in errors.

    Raises InvalidInputs saying which part is wrong.
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
    """Raise InvalidInputs if other machines could reach `address`, or it lies elsewhere."""
    try:
        is_here = ipaddress.ip_address(address.host).is_loopback
    except ValueError:
        is_here = address.host == "localhost"
    if not is_here:
        raise InvalidInputs(
            f"{tag} is {address.text}, where others could read along: only addresses of this "
            "machine, as 127.0.0.1, may be insecure"
        )


def listen(address: Address, tag: str = "RESTful server") -> socket.socket:
    """A listening TCP socket.  Raises StartError if the address is taken or not ours."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address.host, address.port))
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
    return "; choose another port, or end what listens there" * (error.errno == errno.EADDRINUSE)


def hold(address: Address, tag: str) -> socket.socket:
    """A socket that takes no connections: while it is open, only servers of this user that share
    their ports can listen there.  Raises StartError if the address is taken or not ours.
    """
    listen(address, tag).close()  # shared by nobody
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    holder = socket.socket(family, socket.SOCK_STREAM)
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        holder.bind((address.host, address.port))
    except OSError as error:  # taken since
        holder.close()
        raise StartError(f"Serving Error: {tag} start failed, {address.text}: {error}") from error
    return holder


def most_connections(limits: ServerLimits, share: int) -> tuple[int, int]:
    """How many a server may have, and how many of one address: of the descriptors of this process
    at most one in `share`, and as much of that as `limits` give to an address.
    """
    most = min(limits.max_connections, most_descriptors() // share)
    return most, limits.max_connections_per_address * most // limits.max_connections


def most_descriptors() -> int:
    """How many descriptors this process may have open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft if soft != resource.RLIM_INFINITY else 1 << 20
