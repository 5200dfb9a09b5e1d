"""Limit of the connections of one address to a gRPC server.

grpcio only limits all connections together, and does not list them.  The kernel does: those of this
process are among its open descriptors.
"""

import os
import socket
import struct
from contextlib import suppress
from dataclasses import dataclass

_LAST_RECEIVED = 52  # offset in struct tcp_info of tcpi_last_data_recv, in milliseconds


@dataclass(slots=True)
class _Connection:
    stream: socket.socket  # a duplicate of its descriptor
    address: str
    idle: int  # milliseconds since data was received


def num_descriptors() -> int:
    """Return the number of open descriptors of this process."""
    return len(os.listdir("/proc/self/fd"))


def end_surplus(port: int, limit: int) -> int:
    """Shut down connections to `port` of addresses with more than `limit`; return their number.

    The connections that were silent for longest are shut down.
    """
    by_address: dict[str, list[_Connection]] = {}
    connections = _connections(port)
    try:
        for connection in connections:
            by_address.setdefault(connection.address, []).append(connection)
        surplus = [
            connection
            for same_address in by_address.values()
            for connection in sorted(same_address, key=lambda each: each.idle)[limit:]
        ]
        for connection in surplus:
            with suppress(OSError):  # it has ended
                connection.stream.shutdown(socket.SHUT_RDWR)
        return len(surplus)
    finally:
        for connection in connections:
            connection.stream.close()


def _connections(port: int) -> list[_Connection]:
    connections = []
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # closed meanwhile, or not connected
            if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                continue
            stream = socket.socket(fileno=os.dup(int(name)))
            try:
                connections.append(_describe(stream, port))
            except (OSError, ValueError):
                stream.close()
    return connections


def _describe(stream: socket.socket, port: int) -> _Connection:
    """Describe a connection to `port`.  Raises OSError or ValueError for other sockets."""
    if stream.family not in (socket.AF_INET, socket.AF_INET6):
        raise ValueError("not a TCP socket")
    peer = stream.getpeername()
    if stream.getsockname()[1] != port:
        raise ValueError("a connection of another server or a client")
    info = stream.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _LAST_RECEIVED + 4)
    return _Connection(stream, peer[0], struct.unpack_from("I", info, _LAST_RECEIVED)[0])
