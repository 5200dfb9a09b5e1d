"""Connections to the port of a gRPC server that one address has too many of: they are ended.

grpcio has one limit for all connections, and does not say which there are.  The kernel does: those
of this process are among its descriptors.
"""

import os
import socket
import struct
from contextlib import suppress
from dataclasses import dataclass

_LAST_RECEIVED = 52  # where struct tcp_info has the milliseconds since data came


@dataclass(slots=True)
class _Connection:
    stream: socket.socket  # another descriptor of it
    address: str
    idle: int  # milliseconds


def num_descriptors() -> int:
    """Those that this process has open."""
    return len(os.listdir("/proc/self/fd"))


def end_surplus(port: int, most: int) -> int:
    """Of each address leave at most `most` connections to `port`, and end those that have been
    silent for longest; how many.
    """
    by_address: dict[str, list[_Connection]] = {}
    found = _connections(port)
    try:
        for one in found:
            by_address.setdefault(one.address, []).append(one)
        surplus = [
            one
            for its in by_address.values()
            for one in sorted(its, key=lambda each: each.idle)[most:]
        ]
        for one in surplus:
            with suppress(OSError):  # it has ended
                one.stream.shutdown(socket.SHUT_RDWR)
        return len(surplus)
    finally:
        for one in found:
            one.stream.close()


def _connections(port: int) -> list[_Connection]:
    found = []
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # closed meanwhile, or no connection
            if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                continue
            stream = socket.socket(fileno=os.dup(int(name)))
            try:
                found.append(_look_at(stream, port))
            except (OSError, ValueError):
                stream.close()
    return found


def _look_at(stream: socket.socket, port: int) -> _Connection:
    """Raises OSError, ValueError for what is no connection to `port`."""
    if stream.family not in (socket.AF_INET, socket.AF_INET6):
        raise ValueError("it is no TCP")
    peer = stream.getpeername()
    if stream.getsockname()[1] != port:
        raise ValueError("it is another server's, or a client's")
    info = stream.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _LAST_RECEIVED + 4)
    return _Connection(stream, peer[0], struct.unpack_from("I", info, _LAST_RECEIVED)[0])
