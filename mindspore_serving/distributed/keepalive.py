"""TCP options that end a connection soon after the peer's machine has disappeared."""

import socket

IDLE, INTERVAL, PROBES = 5, 5, 3  # seconds, seconds, number
TIMEOUT = 20  # seconds


def keep_alive(stream: socket.socket) -> None:
    """Enable TCP keepalive, and send small messages at once (TCP_NODELAY)."""
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        (socket.TCP_KEEPIDLE, IDLE),
        (socket.TCP_KEEPINTVL, INTERVAL),
        (socket.TCP_KEEPCNT, PROBES),
        (socket.TCP_NODELAY, 1),
    ):
        stream.setsockopt(socket.IPPROTO_TCP, option, value)


def set_send_timeout(stream: socket.socket) -> None:
    """Make the kernel close `stream` if sent data is not acknowledged for TIMEOUT.

    For senders of frequent messages to a peer that always reads.
    """
    stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, TIMEOUT * 1000)
