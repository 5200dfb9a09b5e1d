"""Encoding of gRPC's messages, metadata and status on HTTP/2.  Knows no call."""

import base64
import binascii
import zlib
from collections.abc import Callable, Iterable
from typing import Any
from urllib.parse import quote

import grpc
from google.protobuf.message import DecodeError

from mindspore_serving.frontends.http.exchange import Fields

Metadata = tuple[tuple[str, str | bytes], ...]
Code = grpc.StatusCode
WINDOWS = {b"gzip": 31, b"deflate": 15}  # of zlib, by grpc-encoding
ENCODINGS = b"identity,deflate,gzip"
_RESERVED = frozenset(
    {b"host", b"te", b"content-type", b"content-length", b"grpc-timeout", b"grpc-encoding"}
)
_UNQUOTED = " !\"#$&'()*+,/:;<=>?@[]"  # the rest of printable ASCII but %


class CallFault(Exception):
    """An end of a call that no method decides."""

    def __init__(self, code: Code, text: str) -> None:
        super().__init__(text)
        self.code = code


def inflate(message: bytes, window: int, limit: int) -> bytes:
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
