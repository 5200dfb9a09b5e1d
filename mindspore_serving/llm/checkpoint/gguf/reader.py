"""The GGUF format: metadata and tensors of a mapped file.

Every count, length, offset and type is checked when a file is opened, before memory is allocated
for it. Arrays of texts (a vocabulary) are read on demand. Does not know the meaning of keys and
tensors.
"""

import mmap
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mindspore_serving import file_check
from mindspore_serving.errors import StartError
from mindspore_serving.llm.checkpoint.gguf.types import TENSOR_TYPES, TensorType, unsupported_type

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MAX_KEYS, MAX_TENSORS, MAX_DIMS = 2**16, 2**17, 4
MAX_NAME, MAX_TEXT = 2**16, 2**26  # bytes of a key or a tensor's name, and of a text
MAX_HEAD = 2**28  # bytes of all metadata: a sparse file may claim more than it stores
MAX_ELEMENTS = 2**22  # of an array, and of all arrays of texts together
ALIGNMENT = "general.alignment"
TEXT, ARRAY, BOOL = 8, 9, 7
NUMBERS = {
    0: "<u1", 1: "<i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", 7: "<u1", 10: "<u8",
    11: "<i8", 12: "<f8",
}  # fmt: skip

_LENGTH = struct.Struct("<Q").unpack_from  # of a text


@dataclass(frozen=True, slots=True)
class UnreadArray:
    """An array of the metadata that is not read yet; its `count` elements start at byte `begin`."""

    kind: int
    count: int
    begin: int


@dataclass(frozen=True, slots=True)
class Blocks:
    """A tensor as stored: uint8 [rows, bytes of a row].  `shape` ends with the length of a row."""

    kind: str
    shape: tuple[int, ...]
    rows: npt.NDArray[np.uint8]


class GgufFile:
    """A mapped file.  `metadata` holds texts, numbers, bools and `UnreadArray`s by key."""

    def __init__(self, path: Path) -> None:
        """Open a file.  Raises StartError naming it, and the key or tensor that is wrong."""
        self.path = path
        with path.open("rb") as file:
            size = path.stat().st_size
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if size else b""
        self._at = self._num_texts = 0
        num_tensors, num_keys = self._read_head()
        self.metadata: dict[str, Any] = dict(self._keys(num_keys))
        self._end = self._at  # of the metadata
        self.tensors: dict[str, Blocks] = self._tensors(num_tensors)

    def head(self) -> memoryview:
        """Return the bytes of all metadata, without those about tensors."""
        return memoryview(self._map)[: self._end]

    def array(self, key: str) -> list[Any]:
        """Return the elements of an array.  Raises StartError if there is none."""
        array = self.metadata.get(key)
        if not isinstance(array, UnreadArray):
            raise StartError(f"{self.path} has {key} {array!r}, expected an array")
        if array.kind != TEXT:
            dtype = np.dtype(NUMBERS[array.kind])
            numbers: list[Any] = np.frombuffer(self._map, dtype, array.count, array.begin).tolist()
            return numbers
        return self._texts(array)

    def texts(self, key: str) -> list[str]:
        """Return the elements of an array of texts.  Raises StartError if there is none."""
        array = self.metadata.get(key)
        if isinstance(array, UnreadArray) and array.kind != TEXT:
            raise StartError(f"{self.path} has {key} of type {array.kind}, expected texts")
        return self.array(key)

    def _read_head(self) -> tuple[int, int]:
        """Read the head; return (number of tensors, of keys)."""
        if self._map[:4] != MAGIC:
            why = file_check.why_no_model(self.path)
            begin = bytes(self._map[:8])
            raise StartError(f"{self.path} {why or f'is no GGUF file: it begins with {begin!r}'}")
        self._at = 4
        version = self._number("<I")
        if version not in VERSIONS:
            variant = "big-endian" if version & 0xFFFF == 0 else f"version {version}"
            raise StartError(
                f"{self.path} is GGUF {variant}, expected version 2 or 3, little-endian; convert "
                "the model again with a current llama.cpp"
            )
        num_tensors, num_keys = self._number("<Q"), self._number("<Q")
        if num_tensors > MAX_TENSORS or num_keys > MAX_KEYS:
            raise self._broken(f"{num_tensors} tensors and {num_keys} keys")
        return num_tensors, num_keys

    def _keys(self, count: int) -> Iterator[tuple[str, Any]]:
        seen = set()
        for _ in range(count):
            key = self._text(MAX_NAME)
            if key in seen:
                raise self._broken(f"key {key!r} twice")
            seen.add(key)
            yield key, self._value(key, self._number("<I"))

    def _value(self, key: str, kind: int) -> Any:
        if kind == TEXT:
            return self._text(MAX_TEXT)
        if kind == ARRAY:
            return self._array(key)
        if kind not in NUMBERS:
            raise self._broken(f"key {key!r} of type {kind}")
        code = np.dtype(NUMBERS[kind])
        (value,) = np.frombuffer(self._take(code.itemsize), code).tolist()
        return bool(value) if kind == BOOL else value

    def _array(self, key: str) -> UnreadArray:
        kind, count = self._number("<I"), self._number("<Q")
        begin = self._at
        if kind == TEXT:
            self._num_texts += count
            if self._num_texts > MAX_ELEMENTS or count > (len(self._map) - begin) // 8:
                raise self._broken(f"key {key!r} with {count} texts")
            self._skip_texts(count)
        elif kind in NUMBERS:
            self._skip(count * np.dtype(NUMBERS[kind]).itemsize)
            if count > MAX_ELEMENTS:
                raise self._broken(f"key {key!r} with {count} numbers")
        else:
            raise self._broken(f"key {key!r}, an array of type {kind}")
        return UnreadArray(kind, count, begin)

    def _tensors(self, count: int) -> dict[str, Blocks]:
        entries: dict[str, tuple[TensorType, tuple[int, ...], int]] = {}
        for _ in range(count):
            name, entry = self._entry()
            if name in entries:
                raise self._broken(f"tensor {name!r} twice")
            entries[name] = entry
        alignment = self.metadata.get(ALIGNMENT, 32)
        if type(alignment) is not int or not 8 <= alignment <= 2**20 or alignment % 8:
            raise self._broken(f"{ALIGNMENT} {alignment!r}")
        start = -(-self._at // alignment) * alignment
        return self._placed(entries, start)

    def _entry(self) -> tuple[str, tuple[TensorType, tuple[int, ...], int]]:
        name = self._text(MAX_NAME)
        num_dims = self._number("<I")
        if not 1 <= num_dims <= MAX_DIMS:
            raise self._broken(f"tensor {name!r} of {num_dims} dimensions")
        dims = tuple(self._number("<Q") for _ in range(num_dims))[::-1]  # a row's length is first
        kind, offset = self._number("<I"), self._number("<Q")
        tensor_type = TENSOR_TYPES.get(kind)
        if tensor_type is None or not tensor_type.is_supported:
            raise unsupported_type(f"{self.path}: tensor {name!r}", kind)
        if not all(dims) or prod(dims) >= 2**60 or dims[-1] % tensor_type.block:
            raise self._broken(f"tensor {name!r} of {list(dims)} in blocks of {tensor_type.block}")
        return name, (tensor_type, dims, offset)

    def _placed(
        self, entries: dict[str, tuple[TensorType, tuple[int, ...], int]], start: int
    ) -> dict[str, Blocks]:
        data = np.frombuffer(self._map, np.uint8)
        self._check_complete(entries, start)
        tensors, end = {}, start
        for name, (kind, dims, offset) in sorted(entries.items(), key=lambda item: item[1][2]):
            begin, width = start + offset, dims[-1] // kind.block * kind.num_bytes
            if begin < end:
                raise self._broken(f"tensor {name!r} at {begin}, inside the one before it")
            end = begin + prod(dims[:-1]) * width
            tensors[name] = Blocks(kind.name, dims, data[begin:end].reshape(-1, width))
        return tensors

    def _check_complete(
        self, entries: Mapping[str, tuple[TensorType, tuple[int, ...], int]], start: int
    ) -> None:
        """Raise StartError if the file ends before its last tensor does."""
        ends = (
            start + offset + prod(dims) // kind.block * kind.num_bytes
            for kind, dims, offset in entries.values()
        )
        total, size = max(ends, default=0), len(self._map)
        if total > size:
            raise StartError(
                f"{self.path} is truncated: {total - size} of {total} bytes are missing; download "
                "or copy it again"
            )

    def _take(self, count: int) -> bytes:
        begin = self._at
        self._skip(count)
        return self._map[begin : self._at]

    def _skip(self, count: int) -> None:
        if count > min(len(self._map), MAX_HEAD) - self._at:
            raise self._broken(f"{count} bytes at {self._at} of {len(self._map)}")
        self._at += count

    def _number(self, code: str) -> int:
        (value,) = struct.unpack(code, self._take(struct.calcsize(code)))
        return int(value)

    def _text(self, longest: int) -> str:
        begin = self._at
        length = self._number("<Q")
        if length > longest:
            raise self._broken(f"a text of {length} bytes at {begin}")
        try:
            return self._take(length).decode()
        except UnicodeDecodeError:
            raise self._broken(f"a text that is not UTF-8 at {begin}") from None

    def _skip_texts(self, count: int) -> None:
        """Skip texts without a call for each, as a vocabulary has 262,144 and as many merges."""
        at, limit = self._at, min(len(self._map), MAX_HEAD)
        try:
            for _ in range(count):
                begin = at
                (length,) = _LENGTH(self._map, begin)
                at = begin + 8 + length
        except (struct.error, OverflowError):
            at = limit + 1
        if at > limit:
            raise self._broken(f"texts of more bytes at {self._at} of {len(self._map)}")
        self._at = at

    def _texts(self, array: UnreadArray) -> list[str]:
        content, at = self._map, array.begin
        texts = []
        for _ in range(array.count):
            begin = at + 8
            (length,) = _LENGTH(content, at)
            at = begin + length
            try:
                texts.append(content[begin:at].decode())
            except UnicodeDecodeError:
                raise self._broken(f"a text that is not UTF-8 at {begin - 8}") from None
        return texts

    def _broken(self, fault: str) -> StartError:
        return StartError(f"{self.path} has {fault}: it is truncated, damaged, or no GGUF file")
