"""The inputs of a request: tensors whose first dimension counts instances, in views of the bytes
that came, and how the master cuts them without reading values.
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
    """How many elements `shape` holds; None if it is no shape, or holds too many."""
    if len(shape) > MAX_RANK or any(size < 0 for size in shape):
        return None
    count = 1
    for size in shape:
        count *= size or 1  # numpy takes no shape that is too large but for a 0
        if count > MAX_ELEMENTS:
            return None
    return 0 if 0 in shape else count


@dataclass(frozen=True, slots=True)
class InputTensor:
    """One input.  `data` are its elements in `form`, raw numbers maybe elsewhere; `content_type` is
    "str" or "bytes" for BYTES that are to be one of them, else "".  Size and shape fit each other
    if it is raw.
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
        size, given = count * self.datatype.size, len(self.data)
        if self.form == "raw" and size != given and self.datatype is not BYTES:
            raise InvalidInputs(
                f"input '{self.name[:64]}' has {given} bytes, expected {size}: shape "
                f"{list(self.shape)} of {self.datatype.name}"
            )
        if count > given:  # each takes a byte at least, in every form
            raise InvalidInputs(
                f"input '{self.name[:64]}' has {given} bytes, too few for shape {list(self.shape)}"
            )


# Returns the data of instances `start` to `stop`.
Cutter: TypeAlias = Callable[[int, int], Buffer | StoredBytes]


class TensorBody:
    """The tensors of one request, and how many instances they are."""

    __slots__ = ("_cutters", "inputs", "is_batched", "num_instances")

    def __init__(self, inputs: Sequence[InputTensor], *, is_batched: bool = True) -> None:
        """Raises InvalidInputs if the inputs do not have the same number of instances."""
        _check_names(inputs)
        self.inputs = inputs
        self.is_batched = is_batched
        self.num_instances = _count_instances(inputs) if is_batched else 1
        self._cutters: list[Cutter] = []

    def chunk(self, start: int, stop: int) -> bytes | BufferList:
        """Instances `start` to `stop` for a worker.  Raises InvalidInputs for an input whose data
        are not those of its shape.
        """
        data = [tensor.data for tensor in self.inputs]
        if start or stop != self.num_instances:
            self._cutters = self._cutters or [_cutter(tensor) for tensor in self.inputs]
            data = [cut(start, stop) for cut in self._cutters]
        return write_chunk(self.header(stop - start, data), data)

    def header(self, count: int, data: Sequence[Buffer | StoredBytes]) -> Header:
        """What says of `data` that they are those of `count` instances."""
        first = 1 if self.is_batched else 0
        parts = [
            InputHeader(
                one.name, one.datatype.name, one.shape[first:], one.form, one.content_type, size
            )
            for one, size in zip(self.inputs, map(len, data), strict=True)
        ]
        return Header(count, tuple(parts))

    @property
    def can_be_cut(self) -> bool:
        """Whether instances can be found without reading values, in little time."""
        return self.num_instances > 1 and all(map(_can_be_cut, self.inputs))


class Rows(Sequence["bytes | BufferList"]):
    """A chunk for each instance of a body, made when it is asked for: a slice is one chunk."""

    def __init__(self, body: TensorBody) -> None:
        self._body = body

    def __len__(self) -> int:
        return self._body.num_instances

    @overload
    def __getitem__(self, place: int) -> bytes | BufferList: ...
    @overload
    def __getitem__(self, place: slice) -> "Sequence[bytes | BufferList]": ...
    def __getitem__(
        self, place: int | slice
    ) -> "bytes | BufferList | Sequence[bytes | BufferList]":
        if isinstance(place, slice):
            start, stop, _ = place.indices(len(self))
            return (self._body.chunk(start, stop),)
        if not 0 <= place < len(self):
            raise IndexError(place)
        return self._body.chunk(place, place + 1)


def split(body: TensorBody) -> "Sequence[bytes | BufferList]":
    """A chunk per instance, or one for all where that takes reading values."""
    return Rows(body) if body.can_be_cut else whole(body)


def whole(body: TensorBody) -> "tuple[bytes | BufferList]":
    return (body.chunk(0, body.num_instances),)


def pack(body: TensorBody) -> list[Buffer]:
    """A header, and the data of each input where they are."""
    data = [in_memory(one.data) for one in body.inputs]
    return [write_header(body.header(body.num_instances, data)), *data]


def unpack(packed: Sequence[Buffer]) -> TensorBody:
    """The body of what `pack` gave, in views of it.  Raises InvalidInputs."""
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
    names = {one.name for one in inputs}
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
    shapes = ", ".join(f"{one.name[:64]} {list(one.shape)}" for one in inputs[:8])
    raise InvalidInputs(
        "the first dimension of every input is the number of instances, at least 1 and the same "
        "for all (or send the parameter batched: false for one instance); given: "
        f"{shapes or 'none'}"
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
    """Raises InvalidInputs."""
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
    """Where each instance of raw BYTES ends, behind a 0."""
    data, place, ends = in_memory(tensor.data), 0, [0]
    for _ in range(tensor.shape[0]):
        for _ in range(_per_instance(tensor)):
            if place + LENGTH.size > len(data):
                raise _other_elements(tensor)
            place += LENGTH.size + LENGTH.unpack_from(data, place)[0]
        ends.append(place)
    if place != len(data):
        raise _other_elements(tensor)
    return ends


def _json_cutter(tensor: InputTensor) -> Cutter:
    """Of numbers, flat or in lists of lists, each but the last has a comma behind it."""
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
