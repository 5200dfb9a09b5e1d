"""Outputs of protocol v2: each instance's by the worker, put together to tensors by the master.

An instance is: uint32 size of the header | msgpack header | raw data, JSON text or both of each
output.  JSON text has the elements in C order, without a bracket around them.
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
    """An output in the header of an instance; a size is ABSENT for a form that is not there."""

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
    """As `encode`, with raw data only."""
    return encode(outputs, has_json=False)


def encode_json(outputs: Instance) -> bytes | BufferList:
    """As `encode`, with JSON text only."""
    return encode(outputs, has_raw=False)


def encode(
    outputs: Instance, *, has_raw: bool = True, has_json: bool = True
) -> bytes | BufferList:  # fmt: skip
    """The outputs of one instance; large arrays are not copied.  Raises StageFailed for a value
    that cannot be sent.
    """
    header, data = [], []
    for name, value in outputs.items():
        row = datatypes.of(value)
        raw = _to_raw(value) if has_raw else None
        text = _to_json(name, value) if has_json else None
        raw_size = ABSENT if raw is None else len(raw)
        json_size = ABSENT if text is None else len(text)
        header.append(OutputHeader(name, row.name, values.shape_of(value), raw_size, json_size))
        data += [one for one in (raw, text) if one is not None]
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
            f"output '{name}' has bytes that are no text, which JSON cannot hold: ask for it with "
            "the parameter binary_data: true"
        ) from None


# --------------------------------------------------------------------- master


MANY = 1024  # instances: to put more of them together takes milliseconds
_SMALL = 4096  # bytes; above, a piece of a tensor is not worth copying


@dataclass(frozen=True, slots=True)
class OutputTensor:
    """An output of all instances; `raw` and `json` have a piece for each, in order, or one for many
    small ones.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]
    raw: list[memoryview] = field(default_factory=list)
    json: list[memoryview] = field(default_factory=list)

    @property
    def num_bytes(self) -> int:
        return sum(map(len, self.raw))

    @property
    def json_data(self) -> bytes:
        """A flat JSON list."""
        return b"[%b]" % b",".join(piece for piece in self.json if piece)


_Places: TypeAlias = list[tuple[list[memoryview], int, int]]  # where pieces go, start, end


def join(instances: Sequence[bytes | memoryview], *, is_batched: bool) -> list[OutputTensor]:
    """The tensors of encoded instances.  Raises StageFailed if they do not have the same outputs,
    types and shapes.
    """
    first = _decode_header(_header_of(instances[0])[LENGTH.size :])
    count = (len(instances),) if is_batched else ()
    tensors = [OutputTensor(one.name, one.datatype, count + one.shape) for one in first]
    known: dict[bytes, _Places] = {}  # by header, of which many instances have the same
    for instance in instances:
        header = _header_of(instance)
        places = known.get(header)
        if places is None:
            outputs = _decode_header(header[LENGTH.size :])
            _check_alike(first, outputs)
            places = known[header] = _places(tensors, outputs, len(header))
        view = memoryview(instance)
        for pieces, start, end in places:
            pieces.append(view[start:end])
    if len(instances) > MANY:
        for tensor in tensors:
            _merge(tensor)
    return tensors


def _header_of(instance: bytes | memoryview) -> bytes:
    """Its size and the header itself."""
    return bytes(instance[: LENGTH.size + LENGTH.unpack_from(instance)[0]])


def _places(tensors: list[OutputTensor], outputs: list[OutputHeader], start: int) -> _Places:
    """Where the pieces of `outputs` are, behind a header that ends at `start`."""
    found: _Places = []
    for tensor, output in zip(tensors, outputs, strict=True):
        for pieces, size in ((tensor.raw, output.raw_size), (tensor.json, output.json_size)):
            if size != ABSENT:
                found.append((pieces, start, start + size))
                start += size
    return found


def _merge(tensor: OutputTensor) -> None:
    """Many small pieces are one: whoever writes them need not go through them again."""
    if tensor.num_bytes < _SMALL * len(tensor.raw):
        tensor.raw[:] = [memoryview(b"".join(tensor.raw))]
    if sum(map(len, tensor.json)) < _SMALL * len(tensor.json):
        tensor.json[:] = [memoryview(tensor.json_data)[1:-1]]


def _check_alike(first: list[OutputHeader], other: list[OutputHeader]) -> None:
    if [one[:3] for one in map(_fields, first)] != [one[:3] for one in map(_fields, other)]:
        raise _unlike(first, other)


def _fields(output: OutputHeader) -> tuple[Any, ...]:
    return msgspec.structs.astuple(output)


def _unlike(first: Sequence[OutputHeader], other: Sequence[OutputHeader]) -> StageFailed:
    shapes = [
        ", ".join(f"{one.name} {one.datatype} {list(one.shape)}" for one in outputs)
        for outputs in (first, other)
    ]
    return StageFailed(
        "the instances of the answer cannot be one tensor, they are not alike: "
        f"{shapes[0]} and {shapes[1]}; ask for one at a time"
    )


def of_texts(name: str, texts: Sequence[str]) -> OutputTensor:
    """A tensor of BYTES that is made here: [number of texts]."""
    raw = [memoryview(_to_raw(text)) for text in texts]
    json = [memoryview(_json.encode(text)) for text in texts]
    return OutputTensor(name, datatypes.BYTES.name, (len(texts),), raw, json)
