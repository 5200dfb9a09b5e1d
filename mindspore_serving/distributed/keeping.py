"""Connections that end soon when the machine at the other end is gone without a word."""

import socket

IDLE, INTERVAL, PROBES = 5, 5, 3  # seconds, seconds, number
TIMEOUT = 20  # seconds


def keep_alive(stream: socket.socket) -> None:
    """Have the kernel ask the other machine while nothing is sent."""
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        (socket.TCP_KEEPIDLE, IDLE),
        (socket.TCP_KEEPINTVL, INTERVAL),
        (socket.TCP_KEEPCNT, PROBES),
        (socket.TCP_NODELAY, 1),
    ):
        stream.setsockopt(socket.IPPROTO_TCP, option, value)


def end_when_unanswered(stream: socket.socket) -> None:
    """Have the kernel end `stream` when what was sent is not acknowledged for TIMEOUT: for who
    sends often, to one that always reads.
    """
    stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, TIMEOUT * 1000)
