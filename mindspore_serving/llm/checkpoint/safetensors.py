"""The safetensors format: tensors of a mapped file by name, and the writing of such files.

Files are mapped here, in 2 ms for 0.46 GiB, because the library copies them (550 ms) and has no
bfloat16 for numpy; the library writes them. Every offset is checked when a file is opened, so a
broken or hostile file is refused before anything reads it. Does not know the meaning of the
tensors.
"""

import json
import mmap
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mindspore_serving import file_check
from mindspore_serving.errors import StartError

Array = npt.NDArray[Any]

# dtype of the file -> that of the array; for floats unknown to numpy it holds the bits.
BITS: dict[str, np.dtype[Any]] = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<u2"),
    "BF16": np.dtype("<u2"),
    "I64": np.dtype("<i8"),
    "U64": np.dtype("<u8"),
    "I32": np.dtype("<i4"),
    "U32": np.dtype("<u4"),
    "I16": np.dtype("<i2"),
    "U16": np.dtype("<u2"),
    "I8": np.dtype("i1"),
    "U8": np.dtype("u1"),
    "BOOL": np.dtype("u1"),
    "F8_E4M3": np.dtype("u1"),
    "F8_E5M2": np.dtype("u1"),
    "F8_E8M0": np.dtype("u1"),
}
# The library's name of a dtype for writing, where it differs from numpy's.
WRITTEN = {
    "F16": "float16",
    "BF16": "bfloat16",
    "BOOL": "bool",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "F8_E8M0": "float8_e8m0fnu",
}
INDEX = "model.safetensors.index.json"
SHARD_BYTES = 2 * 2**30  # limit of a written file, unless a single tensor is larger
MAX_HEADER_BYTES = 100 * 2**20  # the format's limit
MAX_TENSORS = 2**17  # of a file
MAX_DIMS = 32  # of numpy arrays
MAX_BYTES = 2**62  # of a tensor, sizes of 0 counted as 1
# Limits of characters in a header, per tensor and for the metadata: parsed JSON takes memory.
_MARKS = {b":": 4, b"[": 2, b"{": 1, b",": MAX_DIMS}
_OTHER_MARKS = 2**18
MADV_POPULATE_READ = 22  # since Linux 5.14; Python has no name for it


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor as stored; `bits`, often a view of the mapped file, reshapes to `shape`."""

    dtype: str
    shape: tuple[int, ...]
    bits: Array

    def views(self) -> Iterator[Array]:
        """Iterate over the arrays that view files."""
        yield self.bits


def prefault(arrays: Iterable[Array]) -> None:
    """Read the files that `arrays` view completely, instead of page by page at first use.

    Arrays that are read in every step are then read 1 to 3 % faster. Has no effect before Linux
    5.14.
    """
    for mapping in _mappings(arrays):
        try:
            mapping.madvise(MADV_POPULATE_READ)
        except OSError:
            return


def release(arrays: Iterable[Array]) -> None:
    """Free the memory of the mapped files of `arrays`; later uses read the files again."""
    for mapping in _mappings(arrays):
        mapping.madvise(mmap.MADV_DONTNEED)


def _mappings(arrays: Iterable[Array]) -> Iterable[mmap.mmap]:
    """Return each mapped file that `arrays` view once."""
    return {id(file): file for file in map(_mapping, arrays) if file is not None}.values()


def _mapping(array: object) -> mmap.mmap | None:
    """Return the mapped file that `array` is a view of, if any."""
    while isinstance(array, np.ndarray | memoryview):
        array = array.base if isinstance(array, np.ndarray) else array.obj
    return array if isinstance(array, mmap.mmap) else None


def read_safetensors(path: Path) -> dict[str, StoredTensor]:
    """Read the tensors of a file.  Raises StartError naming it and the tensor that is wrong."""
    header, mapped = _read_header(path)
    header.pop("__metadata__", None)
    if len(header) > MAX_TENSORS:
        raise StartError(f"{path} has {len(header)} tensors, expected at most {MAX_TENSORS}")
    body: npt.NDArray[np.uint8] = mapped.view(np.ndarray)  # slices of a memmap are slower
    address = body.ctypes.data
    _check_complete(path, header, body.size)
    tensors = {}
    ranges = []
    for name, entry in header.items():
        dtype, shape, begin, end = _checked_entry(path, name, entry)
        ranges.append((begin, end, name))
        bits = body[begin:end]
        if (address + begin) % BITS[dtype].itemsize:
            bits = bits.copy()  # some writers do not align, but native code needs it
        tensors[name] = StoredTensor(dtype, shape, bits.view(BITS[dtype]).reshape(shape))
    ranges.sort()
    for before, after in zip(ranges, ranges[1:], strict=False):
        if after[0] < before[1]:
            raise StartError(f"{path}: tensors {before[2]!r} and {after[2]!r} overlap")
    return tensors


def _read_header(path: Path) -> tuple[dict[str, Any], npt.NDArray[np.uint8]]:
    try:
        size = path.stat().st_size
    except FileNotFoundError:
        raise StartError(f"{path} is missing{file_check.unfinished(path)}") from None
    if why := file_check.why_no_model(path):
        raise StartError(f"{path} {why}")
    if size < 8:
        raise StartError(f"{path} has {size} bytes and is no safetensors file")
    mapped: npt.NDArray[np.uint8] = np.memmap(path, np.uint8, "r")
    length = int.from_bytes(mapped[:8].tobytes(), "little")
    if length > min(size - 8, MAX_HEADER_BYTES):
        begin = mapped[:8].tobytes()
        raise StartError(
            f"{path} is no safetensors file: it begins with {begin!r}"
            if length > MAX_HEADER_BYTES
            else f"{path} is truncated: it has {size} bytes, and its header alone {length + 8}; "
            "download or copy it again"
        )
    text = mapped[8 : 8 + length].tobytes()
    if any(text.count(mark) > n * MAX_TENSORS + _OTHER_MARKS for mark, n in _MARKS.items()):
        raise StartError(f"{path} has a header of more than {MAX_TENSORS} tensors")
    try:
        header = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise StartError(f"{path} has a header that is not JSON: {error}") from None
    if not isinstance(header, dict):
        raise StartError(f"{path} has a header that is not an object")
    return header, mapped[8 + length :]


def _check_complete(path: Path, header: Mapping[str, Any], available: int) -> None:
    """Raise StartError if the file ends before its last tensor does."""
    entries = (entry for entry in header.values() if isinstance(entry, dict))
    offsets = (_sizes(entry.get("data_offsets")) or () for entry in entries)
    missing = max((end for pair in offsets for end in pair), default=0) - available
    if missing > 0:
        total = path.stat().st_size + missing
        raise StartError(
            f"{path} is truncated: {missing} of {total} bytes are missing; download or "
            "copy it again"
        )


def _checked_entry(path: Path, name: str, entry: object) -> tuple[str, tuple[int, ...], int, int]:
    label = f"{path}: tensor {name!r:.200}"
    fields: dict[str, Any] = entry if isinstance(entry, dict) else {}
    dtype, shape = fields.get("dtype"), _sizes(fields.get("shape"))
    offsets = _sizes(fields.get("data_offsets"))
    if not isinstance(dtype, str) or dtype not in BITS:
        raise StartError(f"{label} has dtype {dtype!r:.100}, expected one of {', '.join(BITS)}")
    if shape is None:
        raise StartError(
            f"{label} has shape {fields.get('shape')!r:.100}, expected a list of sizes"
        )
    if offsets is None or len(offsets) != 2 or offsets[0] > offsets[1]:
        value = fields.get("data_offsets")
        raise StartError(f"{label} has data_offsets {value!r:.100}, expected [begin, end]")
    begin, end = offsets
    item = BITS[dtype].itemsize
    if prod(size for size in shape if size) * item > MAX_BYTES:
        raise StartError(f"{label} has shape {list(shape)}, expected at most {MAX_BYTES} bytes")
    if prod(shape) * item != end - begin:
        raise StartError(f"{label} has {end - begin} bytes, expected {list(shape)} of {dtype}")
    return dtype, shape, begin, end


def _sizes(value: object) -> tuple[int, ...] | None:
    if not isinstance(value, list) or len(value) > MAX_DIMS:
        return None
    is_size = all(type(size) is int and 0 <= size < MAX_BYTES for size in value)
    return tuple(value) if is_size else None


def write_safetensors(
    directory: Path, tensors: Iterable[tuple[str, StoredTensor]], metadata: Mapping[str, str]
) -> None:
    """Write `directory`/model.safetensors, or several files and an index over SHARD_BYTES.

    The tensors of at most two files are in memory.
    """
    weight_map: dict[str, str] = {}
    for number, shard in enumerate(_shards(tensors), 1):
        file = f"model-{number:05}.safetensors"
        _write_file(directory / file, shard, metadata)
        weight_map |= dict.fromkeys(shard, file)
    if number == 1:
        (directory / file).rename(directory / "model.safetensors")
    else:
        index = {"metadata": dict(metadata), "weight_map": weight_map}
        (directory / INDEX).write_text(json.dumps(index))


def _shards(tensors: Iterable[tuple[str, StoredTensor]]) -> Iterator[dict[str, StoredTensor]]:
    shard: dict[str, StoredTensor] = {}
    num_bytes = 0
    for name, tensor in tensors:
        if shard and num_bytes + tensor.bits.nbytes > SHARD_BYTES:
            yield shard
            shard, num_bytes = {}, 0
        shard[name] = tensor
        num_bytes += tensor.bits.nbytes
    yield shard


def _write_file(
    path: Path, tensors: Mapping[str, StoredTensor], metadata: Mapping[str, str]
) -> None:
    from safetensors import TensorSpec, serialize_file

    arrays = {name: np.ascontiguousarray(tensor.bits) for name, tensor in tensors.items()}
    specs = {
        name: TensorSpec(
            dtype=WRITTEN.get(tensor.dtype) or str(BITS[tensor.dtype]),
            shape=list(tensor.shape),
            data_ptr=arrays[name].ctypes.data,
            data_len=arrays[name].nbytes,
        )
        for name, tensor in tensors.items()
    }
    serialize_file(specs, path, dict(metadata))
