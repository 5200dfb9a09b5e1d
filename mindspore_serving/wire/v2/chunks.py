"""Chunks: instances of a request as a worker gets them.

    uint32 size of the header | msgpack header | data of each input, at multiples of 64 bytes

Due to the alignment arrays can be views of the data.
"""

import struct
from collections.abc import Sequence
from typing import Literal, TypeAlias

import msgspec

from mindspore_serving.core.buffers import Buffer, BufferList, StoredBytes, join
from mindspore_serving.errors import InvalidInputs

Form: TypeAlias = Literal["raw", "json", "typed"]  # "typed": an InferTensorContents message

LENGTH = struct.Struct("<I")
_ALIGNMENT = 64
_ZEROS = bytes(_ALIGNMENT)


class InputHeader(msgspec.Struct, array_like=True, frozen=True):
    """An input in the header of a chunk: `shape` is that of one instance."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    form: Form
    content_type: str
    size: int


class Header(msgspec.Struct, array_like=True, frozen=True):
    """Header of a chunk: the number of its instances, and its inputs."""

    num_instances: int
    parts: tuple[InputHeader, ...]


write_header = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Header).decode


def read_header(data: Buffer) -> Header:
    """Decode the header of a chunk.  Raises InvalidInputs."""
    try:
        return _decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidInputs(f"the chunk of tensors has no valid header: {error}") from None


def write_chunk(header: Header, data: Sequence[Buffer | StoredBytes]) -> bytes | BufferList:
    """Make a chunk of the `data` of each input in `header`; large data are not copied."""
    encoded = write_header(header)
    buffers: list[Buffer | StoredBytes] = [LENGTH.pack(len(encoded)), encoded]
    size = LENGTH.size + len(encoded)
    for buffer in data:
        gap = -size % _ALIGNMENT
        buffers += _ZEROS[:gap], buffer
        size += gap + len(buffer)
    return join(buffers)


def read_chunk(chunk: Buffer) -> tuple[Header, list[memoryview]]:
    """Return the header of a chunk, and the data of each input.  Raises InvalidInputs."""
    view = memoryview(chunk)
    try:
        (size,) = LENGTH.unpack_from(view)
    except struct.error as error:
        raise InvalidInputs(f"the chunk of tensors has no valid header: {error}") from None
    end = LENGTH.size + size
    header = read_header(view[LENGTH.size : end])
    contents = []
    for part in header.parts:
        start = end + -end % _ALIGNMENT
        end = start + part.size
        contents.append(view[start:end])
    if end != len(view) or any(part.size < 0 for part in header.parts):
        raise InvalidInputs("the chunk of tensors is incomplete")
    return header, contents
