"""Instance messages to values and back: the worker's half of a PredictRequest.

Messages are parsed by the protobuf library, which copies numbers twice.  Clients send messages of
the same layout again and again; so a message whose bytes around the arrays equal those of an
earlier one is sliced at the known offsets instead.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from google.protobuf.message import DecodeError

from mindspore_serving.core import dtype as dtypes
from mindspore_serving.core.buffers import Buffer
from mindspore_serving.core.dtype import DType
from mindspore_serving.core.graph import Method
from mindspore_serving.core.value import Instance, Value
from mindspore_serving.errors import InvalidInputs, NoInstances
from mindspore_serving.proto import ms_service_pb2 as pb
from mindspore_serving.wire import tensor

_MAX_LAYOUTS = 1024


class _Item(NamedTuple):
    """Position of an array in a message: `size` bytes after `prefix`."""

    name: str
    prefix: bytes
    size: int
    dtype: DType
    shape: tuple[int, ...]


# Layout of the last message with these inputs and this length.
_layouts: dict[tuple[tuple[str, ...], int], tuple[_Item, ...]] = {}


def decode(
    chunks: Sequence[bytes | memoryview], method: Method, servable_label: str
) -> list[Instance]:
    """Decode the inputs of `method` from Instance messages; other items are ignored.

    Arrays are writable and own their memory.  Raises InvalidInputs naming the wrong input.
    """
    if not chunks:
        raise NoInstances(f"Instances count of request cannot be 0, {servable_label}")
    return [_slice(chunk, method) or _parse(chunk, method, servable_label) for chunk in chunks]


def encode(values: Instance) -> bytes:
    """Encode an Instance message.  Raises StageFailed for a value that cannot be sent."""
    return b"".join(pieces(values))


def pieces(values: Instance) -> list[Any]:
    """Return the buffers of an Instance message; arrays are not copied.  Raises StageFailed."""
    buffers: list[Any] = []
    for name, value in values.items():
        if isinstance(value, np.ndarray):
            buffers.append(_array_prefix(name, value.dtype, value.shape))
            buffers.append(value if value.flags.c_contiguous else value.tobytes())
        else:
            buffers.append(_encode_text(name, value))
    return buffers


# --------------------------------------------------------------------- by a known layout


def _slice(chunk: bytes | memoryview, method: Method) -> Instance | None:
    """Slice a message of a known layout; return None if `chunk` has another layout."""
    layout = _layouts.get((method.inputs, len(chunk)))
    if layout is None:
        return None
    view = memoryview(chunk)
    instance: Instance = {}
    pos = 0
    for name, prefix, size, dtype, shape in layout:
        start = pos + len(prefix)
        if view[pos:start] != prefix:
            return None
        pos = start + size
        instance[name] = tensor.to_array(view[start:pos], dtype, shape)
    return instance


def _learn(chunk: bytes | memoryview, instance: Instance, method: Method) -> None:
    """Remember the layout of `chunk`, if `encode` would write the same bytes.

    That is, if its arrays fill it and it has no other items.
    """
    remaining = [
        _Item(name, _array_prefix(name, v.dtype, v.shape), v.nbytes, tensor.dtype_of(v), v.shape)
        for name, v in instance.items()
        if isinstance(v, np.ndarray)
    ]
    layout: list[_Item] = []
    pos = 0
    while remaining:
        item = next((i for i in remaining if chunk[pos : pos + len(i.prefix)] == i.prefix), None)
        if item is None:
            return
        layout.append(item)
        remaining.remove(item)
        pos += len(item.prefix) + item.size
    if pos == len(chunk) and layout:
        if len(_layouts) >= _MAX_LAYOUTS:
            _layouts.clear()
        _layouts[method.inputs, len(chunk)] = tuple(layout)


# --------------------------------------------------------------------- by the protobuf library


def _parse(chunk: bytes | memoryview, method: Method, label: str) -> Instance:
    try:
        message = pb.Instance.FromString(chunk)  # type: ignore[arg-type]  # takes any buffer
    except DecodeError:
        raise InvalidInputs("An instance of the request is not an Instance message") from None
    if message.output_buffers:
        raise InvalidInputs("Instances check failed: output_buffers are not taken from clients")
    items = message.items
    instance: Instance = {}
    for name in method.inputs:
        item = items.get(name)
        if item is None:
            if name not in method.defaults:
                raise tensor.missing_input(name, items, method, label)
            instance[name] = method.defaults[name]
            continue
        try:
            instance[name] = to_value(item)
        except InvalidInputs as error:
            raise tensor.bad_input(name, error) from None
    _learn(chunk, instance, method)
    return instance


def to_value(item: pb.Tensor) -> Value:
    """Return the value of an item.  Raises InvalidInputs."""
    if item.HasField("shm_data"):
        raise InvalidInputs("Tensor check failed: shm_data is not taken from clients, send data")
    row = dtypes.BY_PROTO.get(item.dtype)
    shape = _to_shape(item)
    if row is not None and row.numpy is None:
        if len(item.bytes_val) != 1:
            raise InvalidInputs(
                "Instance tensor check failed: bytes or string type shape batch size can only be 1"
            )
        return tensor.to_text(item.bytes_val[0], row, shape)
    count = tensor.count_elements(shape)
    if count is None:
        raise InvalidInputs(f"Tensor check failed: input  shape {list(shape)} invalid")
    if row is None:
        name = f"proto::{pb.DataType.Name(0)}" if item.dtype == 0 else f"number {item.dtype}"
        raise InvalidInputs(f"Tensor check failed: input data type {name} invalid")
    data = item.data
    if len(data) != count * row.size:
        raise InvalidInputs(
            f"Tensor check failed: input data size {len(data)} invalid, shape {list(shape)} of "
            f"{row.name} has {count * row.size} bytes"
        )
    return tensor.to_array(data, row, shape)


def _to_shape(item: pb.Tensor) -> tuple[int, ...]:
    dims = item.shape.dims
    if len(dims) > tensor.MAX_RANK:
        raise InvalidInputs(
            f"Tensor check failed: input  shape of {len(dims)} dimensions invalid, at most "
            f"{tensor.MAX_RANK} are taken"
        )
    return tuple(dims)


# --------------------------------------------------------------------- writing


@lru_cache(maxsize=4096)
def _array_prefix(name: str, dtype: "np.dtype[Any]", shape: tuple[int, ...]) -> bytes:
    """Return the bytes of an item before its numbers.

    They are equal for all arrays of this name, dtype and shape.
    """
    row = tensor.dtype_of(np.empty(0, dtype))
    size = dtype.itemsize
    for dim in shape:
        size *= dim
    start = sized(0x0A, sized(0x0A, b"".join(map(to_varint, shape)))) if shape else b""
    start += bytes((0x10, row.proto)) + b"\x1a" + to_varint(size)
    item = sized(0x0A, name.encode()) + b"\x12" + to_varint(len(start) + size) + start
    return b"\x0a" + to_varint(len(item) + size) + item


def _encode_text(name: str, value: str | bytes) -> bytes:
    shape = b"\x0a\x03\x0a\x01\x01" if tensor.shape_of(value) else b""
    dtype = bytes((0x10, tensor.dtype_of(value).proto))
    item = shape + dtype + sized(0x22, tensor.from_text(value))
    return sized(0x0A, sized(0x0A, name.encode()) + sized(0x12, item))


def to_varint(number: int) -> bytes:
    """Encode a number >= 0: seven bits per byte, the lowest first."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def from_varint(body: Buffer, pos: int, max_bytes: int = 5) -> tuple[int, int]:
    """Return the number at `pos` and its end.  Raises IndexError past the end of `body`.

    Raises ValueError for a number over `max_bytes`: tags and sizes take 5, 64-bit numbers 10.
    """
    value = 0
    for shift in range(0, 7 * max_bytes, 7):
        byte = body[pos]
        pos += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, pos
    raise ValueError(f"a number has over {max_bytes} bytes")


def field_end(body: Buffer, tag: int, pos: int) -> int:
    """Return the end of the field whose value begins at `pos`.

    Raises ValueError for an invalid tag.
    """
    wire_type, field = tag & 7, tag >> 3
    if 0 < field < 1 << 29:
        if wire_type == 0:
            return from_varint(body, pos, 10)[1]
        if wire_type == 1:
            return pos + 8
        if wire_type == 2:
            size, pos = from_varint(body, pos)
            return pos + size
        if wire_type == 5:
            return pos + 4
    raise ValueError(f"it has a field with the invalid tag {tag}")


@lru_cache(maxsize=4096)
def head(tag: int, size: int) -> bytes:
    """Return the bytes before the `size` bytes of a field; `tag` is field << 3 | 2, one byte."""
    return bytes((tag,)) + to_varint(size)


def sized(tag: int, payload: bytes) -> bytes:
    """Return a complete field of the wire type "sized"."""
    return head(tag, len(payload)) + payload
