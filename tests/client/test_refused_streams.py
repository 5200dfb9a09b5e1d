"""A server that refuses each call before it begins, as one that stops does; frames by hand."""

import socket
import struct
import threading
from collections.abc import Iterator
from typing import BinaryIO

import pytest

from mindspore_serving.client import Client
from tests.frontends.raw_grpc import ACK, HEADERS, PREFACE, SETTINGS

GOAWAY, NO_STREAM, NO_ERROR = 7, 0, 0


class Refusing:
    """Listens on `port`; `num_calls` is how many calls have come."""

    def __init__(self) -> None:
        self.num_calls = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection, connection.makefile("rb") as read:
                self._answer(connection, read)

    def _answer(self, connection: socket.socket, read: BinaryIO) -> None:
        if read.read(len(PREFACE)) != PREFACE:
            return
        connection.sendall(frame(SETTINGS, 0, 0))
        while head := read.read(9):
            kind, flags = head[3], head[4]
            read.read(int.from_bytes(head[:3], "big"))
            if kind == SETTINGS and not flags & ACK:
                connection.sendall(frame(SETTINGS, ACK, 0))
            if kind == HEADERS:
                self.num_calls += 1
                connection.sendall(frame(GOAWAY, 0, 0, struct.pack(">II", NO_STREAM, NO_ERROR)))
                return


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


@pytest.fixture
def refusing() -> Iterator[Refusing]:
    server = Refusing()
    yield server
    server.close()


def test_a_refused_call_fails_and_is_not_tried_again_by_the_transport(refusing: Refusing) -> None:
    """grpcio tries such calls again without a pause, for gigabytes while a server stops."""
    with Client(f"127.0.0.1:{refusing.port}", "toy", "double") as client:
        found = client.infer({"x": 1})
    assert "unavailable" in found["error"]
    assert refusing.num_calls == 1
