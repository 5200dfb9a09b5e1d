"""Encoding of gRPC's messages, metadata and status on HTTP/2.  Knows no call."""

import base64
import binascii
import re
import zlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any
from urllib.parse import quote

import grpc
from google.protobuf.message import DecodeError

from mindspore_serving.core.buffers import Buffer
from mindspore_serving.frontends import access
from mindspore_serving.frontends.http.exchange import Fields
from mindspore_serving.frontends.http.head import RequestHead
from mindspore_serving.frontends.http2.fields import encode_fields, encode_head
from mindspore_serving.frontends.request_id import NAME

Metadata = tuple[tuple[str, str | bytes], ...]
Code = grpc.StatusCode
WINDOWS = {b"gzip": 31, b"deflate": 15}  # of zlib, by grpc-encoding
ENCODINGS = b"identity,deflate,gzip"
PREFIX = 5  # bytes before a message: whether it is compressed, and its size
SMALL = 64 << 10  # bytes of a message that do not count in the memory quota, or are waited for
HEADERS = ((b"content-type", b"application/grpc"),)
HEAD = encode_head(200, HEADERS)
OK = encode_fields([(b"grpc-status", b"0")])
_RESERVED = frozenset(
    {b"host", b"te", b"content-type", b"content-length", b"grpc-timeout", b"grpc-encoding"}
)
_TIMEOUT = re.compile(rb"(\d{1,8})([HMSmun])")
SHORTEST = 1e-3  # seconds of a deadline: uvloop makes no timer of less, but a handle without time
_UNITS = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}
_UNQUOTED = " !\"#$&'()*+,/:;<=>?@[]"  # the rest of printable ASCII but %


class CallFault(Exception):
    """An end of a call that no method decides."""

    def __init__(self, code: Code, text: str) -> None:
        super().__init__(text)
        self.code = code


class CallHead:
    """Fields of a call, read once for all calls whose heads are the same bytes.

    `fault` is why it cannot be a call, and `trailing` what its client is told beside.
    """

    def __init__(self, head: RequestHead) -> None:
        self.size = head.size
        self.path = head.target.decode("latin-1")
        self.protocol = access.protocol_of_service(self.path.strip("/").partition("/")[0])
        self.encoding = head.fields.get(b"grpc-encoding", b"identity")
        self.request_id = head.fields.get(NAME)
        self.authorization = head.fields.get(b"authorization")
        self.timeout: float | None = None  # seconds
        self.metadata: Metadata = ()
        self.trailing: Metadata = ()
        self.fault: CallFault | None = None
        self._metadata_fault: CallFault | None = None
        try:
            self.metadata = tuple(decode_metadata(head.headers))
        except CallFault as fault:
            self.fault = self._metadata_fault = fault.with_traceback(None)
        try:
            self._read(head)
        except CallFault as fault:
            self.fault = fault.with_traceback(None)

    def read_metadata(self) -> Metadata:
        """Return the metadata.  Raises CallFault."""
        if self._metadata_fault is not None:
            raise self._metadata_fault.with_traceback(None)
        return self.metadata

    def find(self, name: str) -> str:
        """Return a field of the metadata; "" without one, and for one that is no text."""
        value = next((value for key, value in self.metadata if key == name), "")
        return value if isinstance(value, str) else ""

    def _read(self, head: RequestHead) -> None:
        timeout = head.fields.get(b"grpc-timeout")
        if timeout is not None:
            match = _TIMEOUT.fullmatch(timeout)
            if match is None:
                raise CallFault(Code.INTERNAL, "grpc-timeout is not a number with a unit")
            self.timeout = max(SHORTEST, int(match[1]) * _UNITS[match[2]])
        if self.encoding != b"identity" and self.encoding not in WINDOWS:
            self.trailing = (("grpc-accept-encoding", ENCODINGS.decode()),)
            text = f"grpc-encoding {self.encoding.decode('latin-1')!r} is not supported"
            raise CallFault(Code.UNIMPLEMENTED, text)


def call_head(head: RequestHead) -> CallHead:
    """Return what the head of a request says of its call."""
    facts = head.facts
    if not isinstance(facts, CallHead):
        head.facts = facts = CallHead(head)
    return facts


def check_prefix(data: bytes, limit: int, encoding: bytes) -> int:
    """Return the size of the message after the prefix `data`.  Raises CallFault."""
    size = int.from_bytes(data[1:PREFIX], "big")
    if size > limit:
        text = f"message of {size} bytes is larger than max ({limit})"
        raise CallFault(Code.RESOURCE_EXHAUSTED, text)
    if data[0] and encoding == b"identity":
        raise CallFault(Code.INTERNAL, "a message is compressed, but grpc-encoding is missing")
    return size


def frame_response(parts: Sequence[Buffer], limit: int) -> tuple[int, Sequence[Buffer]]:
    """Return the size of a response, and its parts with its prefix: joined unless it is large.

    Raises CallFault if it has over `limit` bytes.
    """
    size = sum(map(len, parts))
    if size > limit:
        text = f"message of {size} bytes is larger than max ({limit})"
        raise CallFault(Code.RESOURCE_EXHAUSTED, text)
    parts = (b"\0" + size.to_bytes(4, "big"), *parts)
    return size, (b"".join(parts),) if size < SMALL else parts


def inflate(message: Buffer, window: int, limit: int) -> bytes:
    """Decompress a message to at most `limit` bytes; `window` is of zlib.  Raises CallFault."""
    stream = zlib.decompressobj(window)
    try:
        data = stream.decompress(message, limit + 1)
    except zlib.error as error:
        raise CallFault(Code.INTERNAL, f"a message cannot be decompressed: {error}") from None
    if len(data) > limit:
        raise CallFault(Code.RESOURCE_EXHAUSTED, f"a message has over {limit} bytes decompressed")
    return data


def parse(message: bytes, deserialize: Callable[[bytes], Any]) -> Any:
    """Return a message as `deserialize` makes it.  Raises CallFault."""
    try:
        return deserialize(message)
    except DecodeError as error:
        raise CallFault(Code.INTERNAL, f"a message cannot be parsed: {error}") from None


def decode_metadata(headers: Fields) -> Iterable[tuple[str, str | bytes]]:
    """Iterate over the metadata among the fields of a request.  Raises CallFault."""
    for name, value in headers:
        if name in _RESERVED:
            continue
        if name.endswith(b"-bin"):
            stripped = value.rstrip(b"=")
            padded = stripped + b"=" * (-len(stripped) % 4)
            try:
                yield name.decode("latin-1"), base64.b64decode(padded, validate=True)
            except binascii.Error:
                text = f"the metadata {name.decode('latin-1')} is not base64"
                raise CallFault(Code.INVALID_ARGUMENT, text) from None
        else:
            yield name.decode("latin-1"), value.decode("latin-1")


def encode_metadata(metadata: Metadata) -> Fields:
    """Iterate over the fields of metadata; bytes are in base64."""
    for name, value in metadata:
        if isinstance(value, str):
            yield name.encode(), value.encode()
        else:
            yield name.encode(), base64.b64encode(value).rstrip(b"=")


def encode_status(code: Code, text: str) -> list[tuple[bytes, bytes]]:
    """Return the fields of a status."""
    fields = [(b"grpc-status", b"%d" % code.value[0])]
    if text:
        fields.append((b"grpc-message", quote(text, safe=_UNQUOTED).encode()))
    return fields
