"""Encoding of values between the server's own processes: a header, then the bytes of each value.

    uint32 size of the header | msgpack [[dtype number, shape, size], ...] | padding | bytes | ...

Every value starts at a multiple of 16, so that decoded arrays are aligned views of the message.
Numbers are little-endian in C order.  It contains no pickle and no code.
"""

import struct
from collections.abc import Sequence
from typing import Any, TypeAlias

import msgspec
import numpy as np

from mindspore_serving.core import dtype as dtypes
from mindspore_serving.core.graph import Method
from mindspore_serving.core.value import Instance, Value
from mindspore_serving.errors import InvalidInputs
from mindspore_serving.wire import tensor

_ALIGNMENT = 16
_LENGTH = struct.Struct("<I")
_PADDING = tuple(bytes(-size % _ALIGNMENT) for size in range(_ALIGNMENT))


class _Part(msgspec.Struct, array_like=True, frozen=True):
    dtype: int
    shape: tuple[int, ...]
    size: int


Piece: TypeAlias = "tuple[_Part, Any]"
"""Encoded value: its row of the header, and a buffer of its bytes."""

_header_encoder = msgspec.msgpack.Encoder()
_header_decoder = msgspec.msgpack.Decoder(list[_Part])


def encode_values(values: Sequence[Value]) -> bytes:
    """Encode `values` as one message.  Raises StageFailed for a value that cannot be sent."""
    pieces: list[Piece] = []
    for value in values:
        payload: Any
        if isinstance(value, np.ndarray):
            payload = value if value.flags.c_contiguous else value.tobytes()
            size = value.nbytes
        else:
            payload = tensor.from_text(value)
            size = len(payload)
        part = _Part(tensor.dtype_of(value).proto, tensor.shape_of(value), size)
        pieces.append((part, payload))
    return join_values(pieces)


def join_values(pieces: Sequence[Piece]) -> bytes:
    """Return the message of values that are encoded already."""
    encoded = _header_encoder.encode([part for part, _ in pieces])
    padding = _PADDING[(_LENGTH.size + len(encoded)) % _ALIGNMENT]
    parts: list[Any] = [_LENGTH.pack(len(encoded)), encoded, padding]
    for part, payload in pieces:
        parts += payload, _PADDING[part.size % _ALIGNMENT]
    return b"".join(parts)


def split_values(buffer: bytes | bytearray | memoryview) -> list[Piece]:
    """Split a message into its values, and decode none: they are views of `buffer`.

    Raises InvalidInputs if the message is truncated or not of this format.
    """
    view = memoryview(buffer)
    try:
        (size,) = _LENGTH.unpack_from(view)
        pos = _LENGTH.size + size
        header = _header_decoder.decode(view[_LENGTH.size : pos])
    except (struct.error, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidInputs(f"The message of values has no valid header: {error}") from None
    pieces: list[Piece] = []
    for part in header:
        start = pos + -pos % _ALIGNMENT
        pos = start + part.size
        if part.size < 0 or pos > len(view):
            raise InvalidInputs(f"The message of values is truncated: {len(view)} bytes")
        pieces.append((part, view[start:pos]))
    return pieces


def decode_values(buffer: bytes | bytearray | memoryview) -> tuple[Value, ...]:
    """Decode the values of a message; arrays are views of `buffer`, writable if it is.

    Raises InvalidInputs if the message is truncated or not of this format.
    """
    return tuple([_to_value(part, data) for part, data in split_values(buffer)])


def decode(
    chunks: Sequence[bytes | bytearray | memoryview], method: Method, servable_label: str
) -> list[Instance]:
    """Decode one instance per message, whose values are the inputs of `method` in order.

    Optional inputs may be left out at the end.

    Arrays are writable: views of a writable chunk, else of a copy.  Raises InvalidInputs.
    """
    instances: list[Instance] = []
    for chunk in chunks:
        values = decode_values(bytearray(chunk) if memoryview(chunk).readonly else chunk)
        missing = method.inputs[len(values) :]
        if all(name in method.defaults for name in missing):
            values += tuple(method.defaults[name] for name in missing)
        if len(values) != len(method.inputs):
            raise InvalidInputs(
                f"{len(values)} values given, {servable_label} has "
                f"{len(method.inputs)} inputs: {', '.join(method.inputs)}"
            )
        instances.append(dict(zip(method.inputs, values, strict=True)))
    return instances


def encode(outputs: Instance) -> bytes:
    """Encode the values of the outputs in order, without names, as the caller knows them."""
    return encode_values(tuple(outputs.values()))


def _to_value(part: _Part, data: memoryview) -> Value:
    row = dtypes.BY_PROTO.get(part.dtype)
    if row is None:
        raise InvalidInputs(f"The message of values has a type number {part.dtype}")
    if row.numpy is None:
        return tensor.to_text(bytes(data), row, part.shape)
    count = tensor.count_elements(part.shape)
    if count is None or part.size != count * row.size:
        raise InvalidInputs(
            f"The message of values has {part.size} bytes for shape "
            f"{list(part.shape[: tensor.MAX_RANK])} of {row.name}"
        )
    return np.ndarray(part.shape, row.numpy, data)
