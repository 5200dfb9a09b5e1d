"""Outputs of protocol v2: the worker encodes those of each instance, the master joins them.

An encoded instance is

    uint32 size of the header | msgpack header | raw data, JSON text or both of each output

JSON text has the elements in C order, without brackets.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import msgspec
import numpy as np

from mindspore_serving.core.buffers import BufferList
from mindspore_serving.core.buffers import join as join_pieces
from mindspore_serving.core.value import Instance, Value
from mindspore_serving.errors import StageFailed
from mindspore_serving.wire import tensor as values
from mindspore_serving.wire.v2 import datatypes
from mindspore_serving.wire.v2.chunks import LENGTH

ABSENT = -1


class OutputHeader(msgspec.Struct, array_like=True, frozen=True):
    """An output in the header of an instance; the size of a missing form is ABSENT."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    raw_size: int
    json_size: int


_json = msgspec.json.Encoder()
_encode_header = msgspec.msgpack.Encoder().encode
_decode_header = msgspec.msgpack.Decoder(list[OutputHeader]).decode


# --------------------------------------------------------------------- worker


def encode_raw(outputs: Instance) -> bytes | BufferList:
    """Encode the outputs of one instance with raw data only."""
    return encode(outputs, has_json=False)


def encode_json(outputs: Instance) -> bytes | BufferList:
    """Encode the outputs of one instance with JSON text only."""
    return encode(outputs, has_raw=False)


def encode(
    outputs: Instance, *, has_raw: bool = True, has_json: bool = True
) -> bytes | BufferList:  # fmt: skip
    """Encode the outputs of one instance; large arrays are not copied.

    Raises StageFailed for a value that cannot be sent.
    """
    header, data = [], []
    for name, value in outputs.items():
        row = datatypes.of(value)
        raw = _to_raw(value) if has_raw else None
        text = _to_json(name, value) if has_json else None
        raw_size = ABSENT if raw is None else len(raw)
        json_size = ABSENT if text is None else len(text)
        header.append(OutputHeader(name, row.name, values.shape_of(value), raw_size, json_size))
        data += [buffer for buffer in (raw, text) if buffer is not None]
    encoded = _encode_header(header)
    return join_pieces((LENGTH.pack(len(encoded)), encoded, *data))


def _to_raw(value: Value) -> bytes | memoryview:
    if isinstance(value, np.ndarray):
        return values.to_bytes(value)
    text = values.from_text(value)
    return LENGTH.pack(len(text)) + text


def _to_json(name: str, value: Value) -> bytes:
    if isinstance(value, np.ndarray):
        return _json.encode(value.ravel().tolist())[1:-1]
    try:
        return _json.encode(values.from_text(value).decode())
    except UnicodeDecodeError:
        raise StageFailed(
            f"output '{name}' has bytes that are not UTF-8, which JSON cannot represent: request "
            "it with the parameter binary_data: true"
        ) from None


# --------------------------------------------------------------------- master


MANY = 1024  # instances; joining more takes milliseconds
_SMALL = 4096  # bytes; larger pieces of a tensor are not copied


@dataclass(frozen=True, slots=True)
class OutputTensor:
    """An output of all instances.

    `raw` and `json` have a piece for each instance in order, or one for all if they are small.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]
    raw: list[memoryview] = field(default_factory=list)
    json: list[memoryview] = field(default_factory=list)

    @property
    def num_bytes(self) -> int:
        """Bytes of the raw data."""
        return sum(map(len, self.raw))

    @property
    def json_data(self) -> bytes:
        """Elements as a flat JSON list."""
        return b"[%b]" % b",".join(piece for piece in self.json if piece)


_Slices: TypeAlias = list[tuple[list[memoryview], int, int]]  # target of a piece, start, end


def join(instances: Sequence[bytes | memoryview], *, is_batched: bool) -> list[OutputTensor]:
    """Join encoded instances to tensors.

    Raises StageFailed unless all have the same outputs, types and shapes.
    """
    first = _decode_header(_header_of(instances[0])[LENGTH.size :])
    count = (len(instances),) if is_batched else ()
    tensors = [OutputTensor(output.name, output.datatype, count + output.shape) for output in first]
    known: dict[bytes, _Slices] = {}  # by header, which is the same for many instances
    for instance in instances:
        header = _header_of(instance)
        slices = known.get(header)
        if slices is None:
            outputs = _decode_header(header[LENGTH.size :])
            _check_alike(first, outputs)
            slices = known[header] = _slices_of(tensors, outputs, len(header))
        view = memoryview(instance)
        for pieces, start, end in slices:
            pieces.append(view[start:end])
    if len(instances) > MANY:
        for tensor in tensors:
            _merge(tensor)
    return tensors


def _header_of(instance: bytes | memoryview) -> bytes:
    """Return the header of an instance, with its size."""
    return bytes(instance[: LENGTH.size + LENGTH.unpack_from(instance)[0]])


def _slices_of(tensors: list[OutputTensor], outputs: list[OutputHeader], start: int) -> _Slices:
    """Return the slices of `outputs` in an instance whose header ends at `start`."""
    slices: _Slices = []
    for tensor, output in zip(tensors, outputs, strict=True):
        for pieces, size in ((tensor.raw, output.raw_size), (tensor.json, output.json_size)):
            if size != ABSENT:
                slices.append((pieces, start, start + size))
                start += size
    return slices


def _merge(tensor: OutputTensor) -> None:
    """Merge small pieces of a tensor, so that writing it does not iterate over them."""
    if tensor.num_bytes < _SMALL * len(tensor.raw):
        tensor.raw[:] = [memoryview(b"".join(tensor.raw))]
    if sum(map(len, tensor.json)) < _SMALL * len(tensor.json):
        tensor.json[:] = [memoryview(tensor.json_data)[1:-1]]


def _check_alike(first: list[OutputHeader], other: list[OutputHeader]) -> None:
    if [_key(output) for output in first] != [_key(output) for output in other]:
        raise _unlike(first, other)


def _key(output: OutputHeader) -> tuple[Any, ...]:
    return output.name, output.datatype, output.shape


def _unlike(first: Sequence[OutputHeader], other: Sequence[OutputHeader]) -> StageFailed:
    shapes = [
        ", ".join(f"{output.name} {output.datatype} {list(output.shape)}" for output in outputs)
        for outputs in (first, other)
    ]
    return StageFailed(
        "the instances of the answer cannot be one tensor, as their outputs differ: "
        f"{shapes[0]} and {shapes[1]}; send one instance per request"
    )


def of_texts(name: str, texts: Sequence[str], shape: tuple[int, ...] = ()) -> OutputTensor:
    """Return a tensor of BYTES; its default shape is [number of texts]."""
    raw = [memoryview(_to_raw(text)) for text in texts]
    json = [memoryview(_json.encode(text)) for text in texts]
    return OutputTensor(name, datatypes.BYTES.name, shape or (len(texts),), raw, json)
