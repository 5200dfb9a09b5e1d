"""Decoding of chunks of tensors to instances, in the worker."""

import math
import struct
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
from google.protobuf.message import DecodeError

from mindspore_serving.core import casting
from mindspore_serving.core.buffers import Buffer, in_memory
from mindspore_serving.core.graph import Method
from mindspore_serving.core.value import BoxedBytes, BoxedStr, Instance, Value
from mindspore_serving.errors import InvalidInputs
from mindspore_serving.proto import inference_pb2 as pb
from mindspore_serving.wire import json_literals
from mindspore_serving.wire import tensor as values
from mindspore_serving.wire.tensor import Array
from mindspore_serving.wire.v2 import datatypes
from mindspore_serving.wire.v2.chunks import LENGTH, InputHeader, read_chunk
from mindspore_serving.wire.v2.datatypes import BF16, BOOL, BYTES, Datatype
from mindspore_serving.wire.v2.tensors import InputTensor, count_elements

_any = json_literals.Decoder[Any]()
_KINDS = {type(None): "null", str: "string", dict: "object", list: "array"}  # as JSON says


def decode(chunks: Sequence[Buffer], method: Method, servable_label: str) -> list[Instance]:
    """Return the inputs of `method` in every instance; arrays are writable.

    Raises InvalidInputs with the name of a wrong or unknown input.
    """
    return [
        instance for chunk in chunks for instance in _decode_chunk(chunk, method, servable_label)
    ]


def _decode_chunk(chunk: Buffer, method: Method, label: str) -> Iterator[Instance]:
    header, contents = read_chunk(chunk)
    unknown = [part.name for part in header.parts if part.name not in method.inputs]
    if unknown:
        raise InvalidInputs(
            f"unexpected input '{unknown[0][:64]}' for {label}, expected: "
            f"{', '.join(method.inputs)}"
        )
    columns: dict[str, Sequence[Value]] = {}
    for part, content in zip(header.parts, contents, strict=True):
        try:
            columns[part.name] = _read(part, content, header.num_instances)
        except InvalidInputs as error:
            raise values.bad_input(part.name[:64], error) from None
    for name in method.inputs:
        if name not in columns:
            if name not in method.defaults:
                raise values.missing_input(name, columns, method, label)
            columns[name] = [method.defaults[name]] * header.num_instances
    names = tuple(columns)
    for row in zip(*columns.values(), strict=True):
        yield dict(zip(names, row, strict=True))


def _read(part: InputHeader, data: memoryview, count: int) -> Sequence[Value]:
    """Return the values of an input in `count` instances."""
    row = datatypes.datatype_of(part.datatype)
    per_instance = count_elements(part.shape)
    if per_instance is None:
        raise InvalidInputs(f"shape {list(part.shape)} cannot be used")
    total = per_instance * count
    if row is BYTES:
        if part.shape not in ((), (1,)):
            raise InvalidInputs(
                f"BYTES of shape {list(part.shape)} in an instance, expected one text: [] or [1]"
            )
        return [_to_text(element, part) for element in _texts(part, data, total)]
    array = _array(part, data, row, total)
    return _split(array, part.shape, count)


def _split(array: Array, shape: tuple[int, ...], count: int) -> Sequence[Value]:
    if count == 1:
        return [array.reshape(shape)]
    if not shape:  # iterating would give numpy scalars
        return [row.reshape(()) for row in array.reshape(count, 1)]
    return list(array.reshape(count, *shape))


def _array(part: InputHeader, data: memoryview, row: Datatype, total: int) -> Array:
    """Return a flat, writable array: a view if `data` are writable, else a copy."""
    if part.form == "json":
        return _from_numbers(_flat(data, total), row)
    if part.form == "typed":
        return _from_typed(_contents(data), row, total)
    if len(data) != total * row.size:
        raise InvalidInputs(f"{len(data)} bytes, expected {total * row.size}")
    if row is BF16:  # the upper half of a float32
        return (np.frombuffer(data, "<u2").astype("<u4") << 16).view("<f4")
    if row is BOOL:  # any byte but 0 is true; a view would keep other bytes than 1
        return np.frombuffer(data, np.uint8).astype(np.bool_)
    if not data.readonly:
        array = np.frombuffer(data, row.numpy)
        if array.flags.aligned:
            return array
    return np.frombuffer(bytearray(data), row.numpy)


def _from_numbers(flat: list[Any], row: Datatype) -> Array:
    kinds = set(map(type, flat))
    dtype: np.dtype[Any] = row.numpy or np.dtype("<f4")
    accepted: set[type] = {bool} if row is BOOL else {int}
    if dtype.kind == "f":
        accepted.add(float)
    if dtype.kind == "f" and type(None) in kinds:  # a missing value
        flat = [math.nan if element is None else element for element in flat]
        kinds = kinds - {type(None)} | {float}
    if not kinds <= accepted:
        names = ", ".join(sorted(map(_kind_name, kinds - accepted)))
        raise InvalidInputs(f"data of {row.name} have elements of type {names}")
    if row is BOOL or not flat:
        return np.array(flat, dtype)
    array = casting.from_plain(flat, kinds, dtype)
    if array is None:
        raise InvalidInputs(f"data have a number that is out of the range of {row.name}")
    return array


def _kind_name(kind: type) -> str:
    return _KINDS.get(kind, kind.__name__)


def _from_typed(contents: pb.InferTensorContents, row: Datatype, total: int) -> Array:
    if row.numpy is None or not row.contents:
        raise InvalidInputs(f"{row.name} has no field in contents, send raw_input_contents")
    elements = getattr(contents, row.contents)
    _check_count(len(elements), total)
    if row.numpy.itemsize < 4 and row.numpy.kind in "iu":  # wider in protobuf
        return _from_numbers(list(elements), row)
    return np.array(elements, row.numpy)


def _texts(part: InputHeader, data: memoryview, total: int) -> list[Any]:
    if part.form == "json":
        return _flat(data, total)
    if part.form == "typed":
        texts: list[Any] = list(_contents(data).bytes_contents)
        _check_count(len(texts), total)
        return texts
    texts, offset = [], 0
    while offset < len(data) and len(texts) < total:
        try:
            (size,) = LENGTH.unpack_from(data, offset)
        except struct.error:
            break
        offset += LENGTH.size
        texts.append(bytes(data[offset : offset + size]))
        offset += size
    _check_count(len(texts), total)
    if offset != len(data):
        raise InvalidInputs(f"the lengths of {total} elements do not add up to {len(data)} bytes")
    return texts


def _to_text(element: Any, part: InputHeader) -> Value:
    """Convert an element to str, or to bytes by `content_type` or if it is not UTF-8."""
    if not isinstance(element, str | bytes):
        raise InvalidInputs(f"data of BYTES have an element of type {_kind_name(type(element))}")
    is_boxed = bool(part.shape)
    if part.content_type == "bytes":
        data = element if isinstance(element, bytes) else element.encode()
        return BoxedBytes(data) if is_boxed else data
    if isinstance(element, bytes):
        try:
            element = element.decode()
        except UnicodeDecodeError as error:
            if part.content_type == "str":
                raise InvalidInputs(f"it is not UTF-8: {error}") from None
            return BoxedBytes(element) if is_boxed else element
    return BoxedStr(element) if is_boxed else element


def _flat(data: memoryview, total: int) -> list[Any]:
    """Return the elements of a JSON list, which can be nested, as a flat list."""
    try:
        flat = _any.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidInputs(f"data are not valid JSON: {error}") from None
    if type(flat) is not list:
        raise InvalidInputs("data are no JSON list")
    while flat and type(flat[0]) is list:
        if set(map(type, flat)) != {list}:
            raise InvalidInputs("data have a list beside an element")
        flat = [element for row in flat for element in row]
    _check_count(len(flat), total)
    return flat


def _contents(data: memoryview) -> pb.InferTensorContents:
    try:
        return pb.InferTensorContents.FromString(bytes(data))
    except DecodeError:
        raise InvalidInputs("contents cannot be read") from None


def _check_count(count: int, expected: int) -> None:
    if count != expected:
        raise InvalidInputs(f"data have {count} elements, expected {expected}")


def elements(tensor: InputTensor) -> Sequence[Value]:
    """Return all elements of a small tensor, texts or scalar arrays.

    Raises InvalidInputs with its name.
    """
    count = count_elements(tensor.shape) or 0
    kind = tensor.datatype.name
    part = InputHeader(tensor.name, kind, (), tensor.form, tensor.content_type, len(tensor.data))
    try:
        return _read(part, memoryview(in_memory(tensor.data)), count)
    except InvalidInputs as error:
        raise values.bad_input(tensor.name[:64], error) from None
