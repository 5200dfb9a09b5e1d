"""MindSpore's `.ckpt` format: tensors of a memory-mapped file by name.

The file is a protobuf message. It is parsed here because the protobuf library copies all contents
and is limited to 2 GiB. Knows neither MindSpore nor the meaning of the tensors.
"""

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from math import prod
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mindspore_serving import file_check
from mindspore_serving.backends.crypto import is_encrypted
from mindspore_serving.errors import StartError
from mindspore_serving.llm.checkpoint.encrypted import decrypted
from mindspore_serving.llm.checkpoint.safetensors import BITS, StoredTensor
from mindspore_serving.mindir.wire import Damaged, fields_of, read, repeated, single

# tensor_type -> the name of the type here.
_WIDE = [(word, bits) for word in ("Float", "Int", "UInt") for bits in (64, 32, 16)]
TYPES = {f"{word}{bits}": f"{word[0]}{bits}" for word, bits in _WIDE}
TYPES |= {"Int8": "I8", "UInt8": "U8", "BFloat16": "BF16", "Bool": "BOOL"}
TEXT = "str"  # tensor_type of an entry that is text, such as a note by the writer
CRC_MARK, CRC_BYTES = b"crc_num", 10  # they end a file with a checksum, which is big-endian
MAX_ENTRIES = 2**20
MAX_DIMS = 32


@dataclass(slots=True)
class _Tensor:
    dims: list[int] = repeated(1, "int")
    kind: str = single(2, "text")
    content: memoryview = single(3, "bytes")


@dataclass(slots=True)
class _Value:
    """Entry of the file; a large tensor is split into several, each with all of its `dims`."""

    name: str = single(1, "text")
    tensor: _Tensor | None = single(2, _Tensor)


def read_ckpt(path: Path) -> dict[str, StoredTensor]:
    """Read the tensors of one file; texts stored among them are left out.

    The tensors are views of the mapped file and may be unaligned. A checksum in the file is
    verified. Raises StartError naming the file and the tensor that is wrong.
    """
    tensors: dict[str, StoredTensor] = {}
    content = _content(path)
    try:
        for name, run in groupby(_values(content), attrgetter("name")):
            values = list(run)
            if name in tensors:
                raise StartError(f"tensor {name!r} is stored twice")
            parts = [value.tensor for value in values if value.tensor is not None]
            if len(parts) < len(values):
                raise StartError(f"{name!r} is no tensor (a map parameter?)")
            if parts[0].kind != TEXT:
                tensors[name] = _joined(name, parts)
    except Damaged as error:
        raise StartError(
            f"{path} is truncated, damaged, or no MindSpore checkpoint: {error.why}"
        ) from None
    except StartError as error:
        raise StartError(f"{path}: {error}") from None
    return tensors


def _content(path: Path) -> memoryview:
    """Return the message in the file, without the checksum that may follow; verify the checksum."""
    if why := file_check.why_no_model(path):
        raise StartError(f"{path} {why}")
    mapped: npt.NDArray[np.uint8] = np.memmap(path, np.uint8, "r")
    view = memoryview(mapped.view(np.ndarray))  # type: ignore[arg-type]
    end = len(view) - len(CRC_MARK) - CRC_BYTES
    tail = bytes(view[max(end, 0) :])
    has_checksum = end >= 0 and tail.startswith(CRC_MARK)
    if is_encrypted(bytes(view[:4])):  # MindSpore writes 0 as its checksum
        return decrypted(path, view[:end] if has_checksum else view)
    if not has_checksum:
        return view
    if zlib.crc32(view[:end]) != int.from_bytes(tail[len(CRC_MARK) :], "big"):
        raise StartError(f"{path} is damaged: its checksum does not match")
    return view[:end]


def _values(content: memoryview) -> Iterator[_Value]:
    for count, (number, _, view) in enumerate(fields_of(content)):
        if count >= MAX_ENTRIES:
            raise StartError(f"it has more than {MAX_ENTRIES} tensors")
        if number != 1 or isinstance(view, int):
            raise Damaged(f"field {number} at its top")
        value = read(_Value, view)
        if not value.name:
            raise Damaged("a tensor without a name")
        yield value


def _joined(name: str, parts: list[_Tensor]) -> StoredTensor:
    """Return the tensor that is stored in consecutive `parts`."""
    first, label = parts[0], f"tensor {name!r}"
    dtype = TYPES.get(first.kind)
    if dtype is None:
        raise StartError(f"{label} has type {first.kind!r}, expected one of {', '.join(TYPES)}")
    if len(first.dims) > MAX_DIMS:
        raise StartError(f"{label} has {len(first.dims)} dimensions")
    if any((part.kind, part.dims) != (first.kind, first.dims) for part in parts):
        raise StartError(f"{label} is stored twice, with another type or shape")
    size, item = sum(len(part.content) for part in parts), BITS[dtype].itemsize
    shape = () if first.dims == [0] and size == item else tuple(first.dims)
    is_sane = min(shape, default=0) >= 0 and prod(max(dim, 1) for dim in shape) < 2**60
    if not is_sane or prod(shape) * item != size:
        raise StartError(f"{label} has {size} bytes, expected {list(shape)} of {dtype}")
    arrays = [np.frombuffer(part.content, np.uint8) for part in parts]
    bits: Any = arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
    return StoredTensor(dtype, shape, bits.view(BITS[dtype]).reshape(shape))
