"""Head of a request: its fields, and whether it can be served.  Knows no parser."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

UPGRADE = "websocket"
"""Extension in the ASGI scope of a request that may go on with a WebSocket: its memory quota."""
_MAX_DIGITS = 19  # of 64 bits; Python refuses to parse thousands


class HeadRefusal(Exception):
    """Data that is not served as HTTP: it is answered, and the connection ends."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


@dataclass(slots=True)  # not frozen: made for each request, in half the time
class RequestHead:
    """The request line and the headers, whose names are in lower case.

    `fields` has the last of several headers with the same name.
    """

    method: bytes
    target: bytes
    version: str
    headers: list[tuple[bytes, bytes]]
    fields: dict[bytes, bytes]
    keep_alive: bool
    facts: object = None  # read from it once, for all requests that share it
    is_upgrade: bool = False  # the bytes after it are those of a WebSocket

    @property
    def expects_continue(self) -> bool:
        """True if the client sends the body only after "100 Continue"."""
        expected = self.fields.get(b"expect")
        return expected is not None and expected.lower() == b"100-continue"

    @property
    def offers_websocket(self) -> bool:
        """True if the client offers to go on with a WebSocket."""
        offered = self.fields.get(b"upgrade", b"").lower().split(b",")
        is_bare = not (b"transfer-encoding" in self.fields or self.body_size)
        is_get = self.method == b"GET" and self.version != "1.0"
        return is_get and is_bare and b"websocket" in map(bytes.strip, offered)

    @property
    def size(self) -> int:
        """Bytes of the head, without spaces around values."""
        fields = sum(len(name) + len(value) + 4 for name, value in self.headers)
        return len(self.method) + len(self.target) + 12 + fields

    @property
    def body_size(self) -> int:
        """Bytes of the body by its content-length; 0 if unknown."""
        length = self.fields.get(b"content-length", b"")
        is_known = len(length) < 16 and length.isdigit()
        return int(length) if is_known and b"transfer-encoding" not in self.fields else 0

    def check(self) -> None:
        """Raise HeadRefusal for a request that cannot be served, whatever its path."""
        if self.version != "1.1" and self.version != "1.0":
            raise HeadRefusal(505, f"HTTP/{self.version} is not supported: use HTTP/1.1.")
        if b"transfer-encoding" in self.fields and not self._is_chunked():
            raise HeadRefusal(501, "Transfer-Encoding can only be chunked, in HTTP/1.1.")
        if len(self.fields.get(b"content-length", b"")) > _MAX_DIGITS:
            raise HeadRefusal(400, f"Content-Length has more than {_MAX_DIGITS} digits.")
        if self.method == b"CONNECT":
            raise HeadRefusal(400, "CONNECT is not supported: this is not a proxy.")

    def _is_chunked(self) -> bool:
        values = [value for name, value in self.headers if name == b"transfer-encoding"]
        return self.version == "1.1" and [value.strip().lower() for value in values] == [b"chunked"]


def subprotocols_of(scope: Mapping[str, Any]) -> list[bytes]:
    """Return the protocols inside a WebSocket that its client offers."""
    values = [value for name, value in scope["headers"] if name == b"sec-websocket-protocol"]
    return [name.strip() for name in b",".join(values).split(b",") if name.strip()]
