"""The head of a request: what it says, and whether it can be served.  Knows no parser."""

from dataclasses import dataclass

_MAX_DIGITS = 19  # of 64 bits; Python refuses to read thousands


class HeadRefusal(Exception):
    """What was read is not served as HTTP: the answer has `status` and `text`, and the connection
    ends.
    """

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


@dataclass(slots=True)  # not frozen: one is made per request, and takes half the time so
class RequestHead:
    """The request line and the headers, whose names are in lower case.

    Of several headers with one name `fields` has the last.
    """

    method: bytes
    target: bytes
    version: str
    headers: list[tuple[bytes, bytes]]
    fields: dict[bytes, bytes]
    keep_alive: bool

    @property
    def expects_continue(self) -> bool:
        """Whether the client sends the body when it has read "100 Continue"."""
        expected = self.fields.get(b"expect")
        return expected is not None and expected.lower() == b"100-continue"

    @property
    def size(self) -> int:
        """Bytes, without the spaces that may surround values."""
        fields = sum(len(name) + len(value) + 4 for name, value in self.headers)
        return len(self.method) + len(self.target) + 12 + fields

    @property
    def body_size(self) -> int:
        """Bytes, as the client says before it sends them; 0 if it does not."""
        length = self.fields.get(b"content-length", b"")
        is_known = len(length) < 16 and length.isdigit()
        return int(length) if is_known and b"transfer-encoding" not in self.fields else 0

    def check(self) -> None:
        """Raises Refusal for what cannot be served, whatever the path."""
        if self.version != "1.1" and self.version != "1.0":
            raise HeadRefusal(505, f"HTTP/{self.version} is not served here: use HTTP/1.1.")
        if b"transfer-encoding" in self.fields and not self._is_chunked():
            raise HeadRefusal(501, "The only Transfer-Encoding is chunked, in HTTP/1.1.")
        if len(self.fields.get(b"content-length", b"")) > _MAX_DIGITS:
            raise HeadRefusal(400, f"Content-Length has more than {_MAX_DIGITS} digits.")
        if self.method == b"CONNECT":
            raise HeadRefusal(400, "CONNECT is not served: this is not a proxy.")

    def _is_chunked(self) -> bool:
        found = [value for name, value in self.headers if name == b"transfer-encoding"]
        return self.version == "1.1" and [one.strip().lower() for one in found] == [b"chunked"]
