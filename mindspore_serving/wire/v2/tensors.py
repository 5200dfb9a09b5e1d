"""Inputs of a request: tensors whose first dimension counts instances, as views of its bytes.

The master splits them into instances without reading values.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias, overload

import msgspec
import numpy as np

from mindspore_serving.core.buffers import Buffer, BufferList, StoredBytes, in_memory
from mindspore_serving.errors import InvalidInputs, TooLarge
from mindspore_serving.wire.tensor import (
    MAX_ELEMENTS,
    MAX_INSTANCES,
    MAX_RANK,
    MAX_SPLIT_BYTES,
    MAX_SPLIT_ITEMS,
)
from mindspore_serving.wire.v2.chunks import (
    LENGTH,
    Form,
    Header,
    InputHeader,
    read_header,
    write_chunk,
    write_header,
)
from mindspore_serving.wire.v2.datatypes import BY_NAME, BYTES, Datatype

MAX_INPUTS = 1024
_COMMA = ord(",")
_list_of_raw = msgspec.json.Decoder(list[msgspec.Raw])


def count_elements(shape: Sequence[int]) -> int | None:
    """Return the number of elements of a shape; None if it is invalid or has too many."""
    if len(shape) > MAX_RANK or any(size < 0 for size in shape):
        return None
    count = 1
    for size in shape:
        count *= size or 1  # numpy refuses a shape that is too large without its 0
        if count > MAX_ELEMENTS:
            return None
    return 0 if 0 in shape else count


@dataclass(frozen=True, slots=True)
class InputTensor:
    """An input.

    `data` has its elements in `form`; raw numbers can be in a `StoredBytes` object.  `content_type`
    is "str" or "bytes" for BYTES to be converted to this type, else "".  The size of raw data fits
    the shape.
    """

    name: str
    datatype: Datatype
    shape: tuple[int, ...]
    form: Form
    data: Buffer | StoredBytes
    content_type: str = ""

    def __post_init__(self) -> None:
        count = count_elements(self.shape)
        if count is None:
            shape = list(self.shape[: MAX_RANK + 1])
            raise InvalidInputs(
                f"input '{self.name[:64]}' has shape {shape}, expected at most {MAX_RANK} "
                "dimensions, no negative ones, and at most 2^31 - 1 elements"
            )
        size, num_bytes = count * self.datatype.size, len(self.data)
        if self.form == "raw" and size != num_bytes and self.datatype is not BYTES:
            raise InvalidInputs(
                f"input '{self.name[:64]}' has {num_bytes} bytes, expected {size}: shape "
                f"{list(self.shape)} of {self.datatype.name}"
            )
        if count > num_bytes:  # each element has at least one byte, in every form
            raise InvalidInputs(
                f"input '{self.name[:64]}' has {num_bytes} bytes, too few for shape "
                f"{list(self.shape)}"
            )


Cutter: TypeAlias = Callable[
    [int, int], Buffer | StoredBytes
]  # (start, stop) -> data of these instances


class TensorBody:
    """Tensors of a request, and the number of its instances."""

    __slots__ = ("_cutters", "inputs", "is_batched", "num_instances")

    def __init__(self, inputs: Sequence[InputTensor], *, is_batched: bool = True) -> None:
        """Create a body.  Raises InvalidInputs unless all inputs have as many instances."""
        _check_names(inputs)
        self.inputs = inputs
        self.is_batched = is_batched
        self.num_instances = _count_instances(inputs) if is_batched else 1
        self._cutters: list[Cutter] = []

    def chunk(self, start: int, stop: int) -> bytes | BufferList:
        """Return instances `start` to `stop` as a chunk for a worker.

        Raises InvalidInputs for an input whose data do not fit its shape.
        """
        data = [tensor.data for tensor in self.inputs]
        if start or stop != self.num_instances:
            self._cutters = self._cutters or [_cutter(tensor) for tensor in self.inputs]
            data = [cut(start, stop) for cut in self._cutters]
        return write_chunk(self.header(stop - start, data), data)

    def header(self, count: int, data: Sequence[Buffer | StoredBytes]) -> Header:
        """Return the header of a chunk with `data` of `count` instances."""
        first = 1 if self.is_batched else 0
        parts = [
            InputHeader(
                tensor.name,
                tensor.datatype.name,
                tensor.shape[first:],
                tensor.form,
                tensor.content_type,
                size,
            )
            for tensor, size in zip(self.inputs, map(len, data), strict=True)
        ]
        return Header(count, tuple(parts))

    @property
    def can_be_cut(self) -> bool:
        """True if instances can be split without reading values, in little time."""
        return self.num_instances > 1 and all(map(_can_be_cut, self.inputs))


class Rows(Sequence["bytes | BufferList"]):
    """Chunks of the instances of a body, made on access; a slice is one chunk."""

    def __init__(self, body: TensorBody) -> None:
        self._body = body

    def __len__(self) -> int:
        return self._body.num_instances

    @overload
    def __getitem__(self, index: int) -> bytes | BufferList: ...
    @overload
    def __getitem__(self, index: slice) -> "Sequence[bytes | BufferList]": ...
    def __getitem__(
        self, index: int | slice
    ) -> "bytes | BufferList | Sequence[bytes | BufferList]":
        if isinstance(index, slice):
            start, stop, _ = index.indices(len(self))
            return (self._body.chunk(start, stop),)
        if not 0 <= index < len(self):
            raise IndexError(index)
        return self._body.chunk(index, index + 1)


def split(body: TensorBody) -> "Sequence[bytes | BufferList]":
    """Return a chunk per instance, or one for all if splitting would read values."""
    return Rows(body) if body.can_be_cut else whole(body)


def whole(body: TensorBody) -> "tuple[bytes | BufferList]":
    """Return one chunk with all instances."""
    return (body.chunk(0, body.num_instances),)


def pack(body: TensorBody) -> list[Buffer]:
    """Return an encoded header, and the data of each input, not copied."""
    data = [in_memory(tensor.data) for tensor in body.inputs]
    return [write_header(body.header(body.num_instances, data)), *data]


def unpack(packed: Sequence[Buffer]) -> TensorBody:
    """Return the body of a result of `pack`, as views of it.  Raises InvalidInputs."""
    header = read_header(packed[0])
    count, inputs = header.num_instances, []
    for part, content in zip(header.parts, packed[1:], strict=True):
        shape = part.shape if count == 1 else (count, *part.shape)
        kind = BY_NAME[part.datatype]
        inputs.append(InputTensor(part.name, kind, shape, part.form, content, part.content_type))
    return TensorBody(inputs, is_batched=count > 1)


# --------------------------------------------------------------------- instances


def _check_names(inputs: Sequence[InputTensor]) -> None:
    if len(inputs) > MAX_INPUTS:
        raise TooLarge(f"{len(inputs)} inputs, expected at most {MAX_INPUTS}")
    names = {tensor.name for tensor in inputs}
    if len(names) < len(inputs):
        raise InvalidInputs("two inputs have the same name")


def _count_instances(inputs: Sequence[InputTensor]) -> int:
    counts = {tensor.shape[:1] for tensor in inputs}
    if len(counts) == 1:
        (dimensions,) = counts
        if dimensions and dimensions[0] > MAX_INSTANCES:
            raise TooLarge(f"A request has at most {MAX_INSTANCES} instances")
        if dimensions and dimensions[0]:
            return dimensions[0]
    if not inputs:
        raise InvalidInputs("inputs is [], expected those that GET /v2/models/NAME lists")
    shapes = ", ".join(f"{tensor.name[:64]} {list(tensor.shape)}" for tensor in inputs[:8])
    raise InvalidInputs(
        "the first dimension of every input is the number of instances, at least 1 and the same "
        "for all (or send the parameter batched: false for one instance); given: "
        f"{shapes}"
    )


def _can_be_cut(tensor: InputTensor) -> bool:
    if tensor.datatype is BYTES and (
        _per_instance(tensor) > 1 or tensor.shape[0] > MAX_SPLIT_ITEMS
    ):
        return False
    if tensor.form != "json":
        return tensor.form == "raw"
    if not _per_instance(tensor) or len(tensor.data) > MAX_SPLIT_BYTES:
        return False
    return tensor.datatype is not BYTES or bytes(tensor.data).count(b",") <= MAX_SPLIT_ITEMS


def _cutter(tensor: InputTensor) -> Cutter:
    """Return a function that slices the data of a tensor by instances.  Raises InvalidInputs."""
    count, data = tensor.shape[0], tensor.data
    if not isinstance(data, StoredBytes):
        data = memoryview(data)
    size = len(data) // count
    if tensor.form == "json":
        return _json_cutter(tensor)
    if tensor.datatype is not BYTES:
        return lambda start, stop: data[start * size : stop * size]
    ends = _ends_of_texts(tensor)
    return lambda start, stop: data[ends[start] : ends[stop]]


def _ends_of_texts(tensor: InputTensor) -> Sequence[int]:
    """Return 0 and the offset of the end of each instance of raw BYTES."""
    data, offset, ends = in_memory(tensor.data), 0, [0]
    for _ in range(tensor.shape[0]):
        for _ in range(_per_instance(tensor)):
            if offset + LENGTH.size > len(data):
                raise _other_elements(tensor)
            offset += LENGTH.size + LENGTH.unpack_from(data, offset)[0]
        ends.append(offset)
    if offset != len(data):
        raise _other_elements(tensor)
    return ends


def _json_cutter(tensor: InputTensor) -> Cutter:
    """Return a cutter of JSON text.

    In flat and nested lists each number but the last has a comma after it, so the commas give the
    borders of instances.
    """
    text, per_instance = bytes(tensor.data), _per_instance(tensor)
    if tensor.datatype is BYTES:
        items = _texts(tensor)
        return lambda start, stop: b"[%b]" % b",".join(items[start:stop])
    commas = np.flatnonzero(np.frombuffer(text, np.uint8) == _COMMA)
    is_list = text[:1] == b"[" and text[-1:] == b"]"
    if not is_list or len(commas) != per_instance * tensor.shape[0] - 1:
        raise _other_elements(tensor)
    ends = [0, *commas[per_instance - 1 :: per_instance].tolist(), len(text) - 1]
    return lambda start, stop: b"[%b]" % text[ends[start] + 1 : ends[stop]]


def _texts(tensor: InputTensor) -> list[bytes]:
    try:
        items = [bytes(item) for item in _list_of_raw.decode(in_memory(tensor.data))]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        name = tensor.name[:64]
        raise InvalidInputs(f"the data of input '{name}' are not a JSON list: {error}") from None
    if len(items) != tensor.shape[0]:
        raise _other_elements(tensor)
    return items


def _per_instance(tensor: InputTensor) -> int:
    return (count_elements(tensor.shape) or 0) // tensor.shape[0]


def _other_elements(tensor: InputTensor) -> InvalidInputs:
    return InvalidInputs(
        f"the data of input '{tensor.name[:64]}' do not have the {count_elements(tensor.shape)} "
        f"elements of its shape {list(tensor.shape)}"
    )
