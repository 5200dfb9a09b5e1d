"""Sockets of clients that behave badly: half a request, a reset, one byte at a time, no reading."""

import json
import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from tests.chaos.asking import CLOSED, Ask, Code, Flight
from tests.chaos.server import Server
from tests.waiting import PATIENCE

LINE = b"POST %b HTTP/1.1\r\nHost: localhost\r\n"


def connect(server: Server, port: str = "http") -> socket.socket:
    stream = socket.create_connection(("127.0.0.1", getattr(server, port)), timeout=PATIENCE)
    stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return stream


def reset(stream: socket.socket) -> None:
    """Close it so that the other side gets a reset."""
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    stream.close()


def request(server: Server, path: str, body: Any, **headers: str) -> bytes:
    """A whole request; `body` is JSON unless it is bytes."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = {**server.headers, **headers, "Content-Length": str(len(data))}
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    return LINE % path.encode() + head.encode() + b"\r\n" + data


def first_line(stream: socket.socket) -> Code:
    """The status of the answer that comes next."""
    answer = b""
    with suppress(OSError):
        while b"\r\n" not in answer and (piece := stream.recv(1 << 16)):
            answer += piece
    return _status_of(answer)


def _status_of(answer: bytes) -> Code:
    words = answer.split(b" ", 2)
    return int(words[1]) if len(words) > 1 and words[1].isdigit() else CLOSED


def sending(server: Server, send: Callable[[socket.socket], None], port: str = "http") -> Ask:
    """Send by `send`, then read; the code is the first status that came, or CLOSED."""

    def ask(flight: Flight) -> Code:
        with connect(server, port) as stream:
            flight.cancel = lambda: stream.shutdown(socket.SHUT_RDWR)
            with suppress(ConnectionError):
                send(stream)
            return first_line(stream)

    return ask


def dripping(
    server: Server,
    start: bytes,
    drop: bytes,
    port: str = "http",
    ended: "Callable[[bytes], Code | None]" = lambda _: None,
) -> Ask:
    """Send `start`, then `drop` twenty times a second, until the server closes the connection, or
    what has come makes `ended` give a code; else the code is the status that came, or CLOSED."""

    def ask(flight: Flight) -> Code:
        given_up = threading.Event()
        flight.cancel = given_up.set
        with connect(server, port) as stream:
            stream.sendall(start)
            stream.settimeout(0.05)
            answer = b""
            while (code := ended(answer)) is None and not given_up.is_set():
                try:
                    stream.sendall(drop)
                    piece = stream.recv(1 << 16)
                except TimeoutError:
                    continue  # nothing has come yet
                except ConnectionError:
                    break
                if not piece:
                    break
                answer += piece
        return _status_of(answer) if code is None else code

    return ask
