"""A gRPC client of one connection, by hand: it may send a part of a message and stop."""

import socket
import struct

from tests.waiting import PATIENCE

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, WINDOW_UPDATE = 0, 1, 3, 4, 6, 8
END_STREAM, END_HEADERS, ACK = 1, 4, 1
MAX_FRAME = 16384


class RawGrpc:
    """`closed` has the streams that the server has ended, `answers` what came of them;
    `initial_window` is how many bytes of a call the server takes before it reads them."""

    def __init__(self, port: int, source: str = "127.0.0.1", path: str = "") -> None:
        """`source` is the address that it comes from; `path` that of a unix socket."""
        if path:
            self.stream = socket.socket(socket.AF_UNIX)
            self.stream.settimeout(PATIENCE)
            self.stream.connect(path)
        else:
            where = ("127.0.0.1", port)
            self.stream = socket.create_connection(where, PATIENCE, source_address=(source, 0))
            self.stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.closed: set[int] = set()
        self.answers: dict[int, bytearray] = {}
        self._next = 1
        self._windows: dict[int, int] = {0: 65535}
        self.initial_window = 65535
        self._rest = b""
        self.stream.sendall(PREFACE)
        self._send(SETTINGS, 0, 0, b"")

    def take_nothing(self) -> None:
        """Of calls that follow no answer is taken, until `take`."""
        self._send(SETTINGS, 0, 0, struct.pack(">HI", 4, 0))

    def take(self, number: int) -> None:
        """All of the answer."""
        for window in (0, number):
            self._send(WINDOW_UPDATE, 0, window, (1 << 28).to_bytes(4, "big"))
        self.wait_until_closed(number)

    def messages(self, number: int) -> list[bytes]:
        """Those of an answer, of which all has come."""
        found, rest = [], bytes(self.answers.pop(number, b""))
        while rest:
            end = 5 + int.from_bytes(rest[1:5], "big")
            found.append(rest[5:end])
            rest = rest[end:]
        return found

    def call(self, path: str, **metadata: str) -> int:
        """The new stream of a call."""
        number, self._next = self._next, self._next + 2
        fields = {
            ":method": "POST",
            ":scheme": "http",
            ":path": path,
            ":authority": "localhost",
            "te": "trailers",
            "content-type": "application/grpc",
            **metadata,
        }
        self._send(HEADERS, END_HEADERS, number, b"".join(map(_field, fields.items())))
        self._windows[number] = self.initial_window
        return number

    def begin(self, number: int, size: int) -> None:
        """Say that a message of `size` bytes follows."""
        self.send(number, b"\0" + struct.pack(">I", size))

    def send(self, number: int, data: bytes, *, is_last: bool = False) -> None:
        """Waits until the server takes it."""
        while data and number not in self.closed:
            room = min(self._windows[0], self._windows[number], MAX_FRAME, len(data))
            if room <= 0:
                self.receive()
                continue
            part, data = data[:room], data[room:]
            self._windows[0] -= room
            self._windows[number] -= room
            self._send(DATA, END_STREAM if is_last and not data else 0, number, part)

    def receive(self) -> None:
        """Read one frame."""
        head = self._read(9)
        size, kind, flags = int.from_bytes(head[:3], "big"), head[3], head[4]
        number = int.from_bytes(head[5:], "big") & 0x7FFFFFFF
        body = self._read(size)
        if kind == SETTINGS and not flags & ACK:
            self._apply(body)
            self._send(SETTINGS, ACK, 0, b"")
        elif kind == PING and not flags & ACK:
            self._send(PING, ACK, 0, body)
        elif kind == WINDOW_UPDATE:
            self._windows[number] = self._windows.get(number, 0) + int.from_bytes(body, "big")
        if kind == DATA:
            self.answers.setdefault(number, bytearray()).extend(body)
        if kind == RST_STREAM or (kind in (HEADERS, DATA) and flags & END_STREAM):
            self.closed.add(number)
        elif kind == DATA and size:
            for window in (0, number):
                self._send(WINDOW_UPDATE, 0, window, size.to_bytes(4, "big"))

    def drip(self) -> None:
        """Send a byte of each call that is open, if it can be sent without waiting."""
        for number in self._windows.keys() - self.closed - {0}:
            if min(self._windows[0], self._windows[number]) > 0:
                self.send(number, b"x")

    def wait_until_closed(self, number: int) -> None:
        while number not in self.closed:
            self.receive()

    def _apply(self, settings: bytes) -> None:
        for name, value in struct.iter_unpack(">HI", settings):
            if name == 4:  # the initial window
                for number in self._windows.keys() - {0}:
                    self._windows[number] += value - self.initial_window
                self.initial_window = value

    def _send(self, kind: int, flags: int, number: int, body: bytes) -> None:
        head = len(body).to_bytes(3, "big") + bytes([kind, flags]) + number.to_bytes(4, "big")
        self.stream.sendall(head + body)

    def _read(self, size: int) -> bytes:
        while len(self._rest) < size:
            data = self.stream.recv(1 << 16)
            assert data, "the server closed the connection"
            self._rest += data
        found, self._rest = self._rest[:size], self._rest[size:]
        return found


def _field(pair: tuple[str, str]) -> bytes:
    """A header that no table has, as HPACK writes it."""
    name, value = (text.encode("utf-8", "surrogateescape") for text in pair)
    assert len(name) < 127
    assert len(value) < 127
    return b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value
