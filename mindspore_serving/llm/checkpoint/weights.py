"""A checkpoint on disk: its configuration, and its tensors by name as views of mapped files.

Knows no model and no runtime.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from mindspore_serving import file_check
from mindspore_serving.errors import StartError
from mindspore_serving.llm.checkpoint import mistral, pickled
from mindspore_serving.llm.checkpoint.ckpt import read_ckpt
from mindspore_serving.llm.checkpoint.derived import DerivedTensor
from mindspore_serving.llm.checkpoint.gguf.files import is_gguf
from mindspore_serving.llm.checkpoint.gguf.pieces import open_gguf
from mindspore_serving.llm.checkpoint.gguf.tensors import read_tensors
from mindspore_serving.llm.checkpoint.mindformers.adapters import merge_adapters
from mindspore_serving.llm.checkpoint.mindformers.chunks import find_iteration, read_chunks
from mindspore_serving.llm.checkpoint.mindformers.fused import split_fused
from mindspore_serving.llm.checkpoint.mindformers.names import (
    has_mindspore_names,
    hugging_face_names,
)
from mindspore_serving.llm.checkpoint.mindformers.settings import find_weights, read_adapter
from mindspore_serving.llm.checkpoint.mindformers.slices import find_ranks, read_slices
from mindspore_serving.llm.checkpoint.model_files import CONFIG, read_json
from mindspore_serving.llm.checkpoint.packing import Packed, is_packed, pack, packed_tensor, unpack
from mindspore_serving.llm.checkpoint.quantized.methods import (
    merge_quantized,
    read_config,
    with_names,
)
from mindspore_serving.llm.checkpoint.quantized.parts import QuantizedTensor, StaticInputs
from mindspore_serving.llm.checkpoint.safetensors import (
    INDEX,
    StoredTensor,
    read_safetensors,
    release,
)

Array = npt.NDArray[Any]

Gather: TypeAlias = Callable[[npt.NDArray[np.int32]], npt.NDArray[np.float32]]
Read: TypeAlias = Callable[[Path], dict[str, StoredTensor]]

FLOATS = ("F64", "F32", "F16", "BF16")
SINGLE_FILE = "model.safetensors"
SLICES: dict[str, Read] = {".safetensors": read_safetensors, ".ckpt": read_ckpt}  # of ranks
MAX_SHARDS = 10_000
_SHARD = re.compile(r"(.*-)(?:\d{5})-of-(\d{5})(\.safetensors)")
_SHOWN = 3  # max names of files in an error


class Checkpoint:
    """Tensors and configuration of one model directory.

    Arrays of `raw` are views of the mapped files, valid as long as the checkpoint or the view is
    referenced. A runtime that passes their memory to native code must keep the arrays.
    """

    def __init__(
        self, directory: Path, config: dict[str, Any], tensors: dict[str, StoredTensor]
    ) -> None:
        self.directory = directory
        self.config = config
        self.num_bytes = 0  # of all tensors in the files, by `open`
        self._tensors = tensors

    @classmethod
    def open(cls, directory: str | Path) -> "Checkpoint":
        """Map the weights of `directory`, which may be a GGUF file.

        Files are chosen in this order: chunks of the last iteration (`chunks`); those of
        model.safetensors.index.json, model.safetensors, *.safetensors; slices in rank_0, rank_1,
        ... (`slices`); MindSpore's *.ckpt; pytorch_model*.bin (`pickled`). Tensors with names of
        MindFormers, MindNLP (`mindformers`) or Mistral (`mistral`) get those of Hugging Face.
        Raises StartError naming the file and the tensor that is missing or broken.
        """
        directory = Path(directory)
        if is_gguf(directory):
            tensors = read_tensors(open_gguf(directory))
        elif directory.is_dir():
            tensors = _read_files(directory)
        else:
            raise StartError(f"{directory} is not a directory; expected one with config.json")
        config = read_config(directory) or read_json(directory / CONFIG)
        if mistral.is_consolidated(tensors):
            tensors = mistral.hugging_face_tensors(tensors, config, str(directory))
        if has_mindspore_names(tensors):
            names = hugging_face_names(tensors)
            tensors = {new: tensors[name] for name, new in names.items()}
            adapter = read_adapter(directory)
            tensors = merge_adapters(tensors, adapter, str(directory), to_f32)
            tensors = split_fused(tensors, config, str(directory))
            config = with_names(config, names)
        checkpoint = cls(directory, config, merge_quantized(config, tensors))
        checkpoint.num_bytes = sum(stored.bits.nbytes for stored in tensors.values())
        return checkpoint

    @classmethod
    def of(
        cls,
        other: "Checkpoint",
        *,
        config: dict[str, Any] | None = None,
        tensors: dict[str, StoredTensor] | None = None,
    ) -> "Checkpoint":
        """Return `other` with another configuration or other tensors."""
        config = other.config if config is None else config
        return cls(other.directory, config, other._tensors if tensors is None else tensors)

    def tracked(self) -> "TrackedCheckpoint":
        """Return the checkpoint as one that records which tensors are read."""
        return TrackedCheckpoint(self.directory, self.config, self._tensors)

    def release(self) -> None:
        """Free the memory of the files; tensors are read from them again when they are used."""
        release(view for stored in self._tensors.values() for view in stored.views())

    def names(self) -> list[str]:
        return list(self._tensors)

    def has(self, name: str) -> bool:
        return name in self._tensors

    def stored(self, name: str) -> StoredTensor:
        """Return a tensor as it is stored.  Raises StartError if it is missing."""
        stored = self._tensors.get(name)
        if stored is None:
            raise StartError(f"{self.directory} has no tensor {name!r}, which its model needs")
        if (
            not isinstance(stored, DerivedTensor) and not stored.bits.flags.aligned
        ):  # native code reads aligned memory
            stored = self._tensors[name] = replace(stored, bits=stored.bits.copy())
        return stored

    def raw(self, name: str) -> tuple[str, tuple[int, ...], Array]:
        """Return (dtype of the file, shape, bits); BF16 and F16 are uint16 arrays.

        For a matrix in another format the dtype is the format's name, and the bits are one of its
        arrays. Raises StartError if the tensor is missing.
        """
        stored = self.stored(name)
        if isinstance(stored, QuantizedTensor):
            return stored.dtype, stored.shape, stored.bits
        return stored.dtype, stored.shape, stored.bits.reshape(stored.shape)

    def is_quantized(self, name: str) -> bool:
        """Return whether it is a matrix in another format."""
        return isinstance(self.stored(name), QuantizedTensor)

    def input_rounding(self, name: str) -> StaticInputs | str:
        """Return how the format of a matrix rounds its inputs, "" if it does not."""
        stored = self.stored(name)
        return stored.inputs if isinstance(stored, QuantizedTensor) else ""

    def rounded(self, name: str, bits: int) -> Packed:
        """Return a matrix of floats, rounded to integers of so many bits."""
        return pack(self.f32(name), bits)

    def packed(self, name: str) -> Packed | None:
        """Return the integers and scales of a quantised tensor.

        Returns None for floats, and for a format without such a form.
        """
        stored = self.stored(name)
        if isinstance(stored, QuantizedTensor):
            packed = stored.read() if stored.is_packed else None
            return packed if isinstance(packed, Packed) else None
        if not is_packed(stored.dtype):
            return None
        scales = self.stored(f"{name}.scale").bits
        zeros = self.stored(f"{name}.zero").bits if self.has(f"{name}.zero") else None
        return packed_tensor(name, stored.bits, scales.view(np.float16), zeros)

    def gatherer(self, name: str) -> Gather | None:
        """Return a function that reads some rows of a quantised matrix.

        It maps int32 [count] to float32 [count, features]. Returns None for floats, and where it
        would have to read the whole matrix.
        """
        stored = self.stored(name)
        return stored.gather if isinstance(stored, QuantizedTensor) else None

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape that the model sees, also for a quantised tensor."""
        dtype, shape, _ = self.raw(name)
        packed = self.packed(name) if is_packed(dtype) else None
        return shape if packed is None else packed.shape

    def f32(self, name: str) -> npt.NDArray[np.float32]:
        """Return the tensor as float32, dequantised; a copy unless it is stored as float32."""
        stored = self.stored(name)
        if isinstance(stored, QuantizedTensor):
            matrix = stored.read()
            return unpack(matrix) if isinstance(matrix, Packed) else matrix
        packed = self.packed(name)
        if packed is not None:
            return unpack(packed)
        return to_f32(StoredTensor(*self.raw(name)), f"tensor {name!r} of {self.directory}")


class TrackedCheckpoint(Checkpoint):
    """A checkpoint that records in `read` the names of tensors that are read."""

    def __init__(
        self, directory: Path, config: dict[str, Any], tensors: dict[str, StoredTensor]
    ) -> None:
        super().__init__(directory, config, tensors)
        self.read: set[str] = set()

    def stored(self, name: str) -> StoredTensor:
        self.read.add(name)
        return super().stored(name)


def to_f32(stored: StoredTensor, label: str) -> npt.NDArray[np.float32]:
    """Convert one tensor as `Checkpoint.f32` does.

    Raises StartError, which begins with `label`, unless the tensor has floats.
    """
    dtype, bits = stored.dtype, stored.bits
    if dtype not in FLOATS:
        raise StartError(f"{label} is {dtype}, expected one of {FLOATS}")
    if dtype == "BF16":
        return (bits.astype(np.uint32) << 16).view(np.float32)
    if dtype == "F16":
        return bits.view(np.float16).astype(np.float32)
    return bits.astype(np.float32, copy=False)


def to_bf16(array: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    """Return the bits of bfloat16, rounded to nearest, ties to even."""
    bits = np.ascontiguousarray(array).view(np.uint32)
    rounded = bits + 0x7FFF + ((bits >> 16) & 1)
    return (rounded >> 16).astype(np.uint16)


def from_bf16(bits: npt.NDArray[np.uint16]) -> npt.NDArray[np.float32]:
    """Convert the bits of bfloat16 to float32."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def _read_files(directory: Path, *, follows_settings: bool = True) -> dict[str, StoredTensor]:
    iteration = find_iteration(directory)
    if iteration is not None:
        return read_chunks(iteration, read_safetensors)
    if (directory / INDEX).exists():
        return _read_shards(directory / INDEX, read_safetensors)
    files = _unindexed_files(directory)
    if files:
        return _read_all(files, read_safetensors)
    ranks = find_ranks(directory, SLICES)
    if ranks:
        return read_slices(directory, ranks, SLICES)
    files = sorted(directory.glob("*.ckpt"))
    if files:
        return _read_all(files, read_ckpt)
    if (directory / pickled.INDEX).exists():
        return _read_shards(directory / pickled.INDEX, pickled.read_pickled)
    files = pickled.find_pickled(directory)
    if files:
        return _read_all(files, pickled.read_pickled)
    other = find_weights(directory) if follows_settings else None
    if other is not None:
        return _read_named(other)
    raise StartError(
        f"{directory} has no *.safetensors, no MindSpore *.ckpt and no pytorch_model*.bin file"
        f"{file_check.unfinished(directory)}"
    )


def _read_named(path: Path) -> dict[str, StoredTensor]:
    """Read the file or directory of weights that settings name."""
    if path.is_dir():
        return _read_files(path, follows_settings=False)
    read = SLICES.get(path.suffix)
    if read is None:
        raise StartError(f"{path} is no file of weights, expected {' or '.join(SLICES)}")
    return read(path)


def _unindexed_files(directory: Path) -> list[Path]:
    """Return the files to read without an index."""
    if (directory / SINGLE_FILE).exists():
        return [directory / SINGLE_FILE]  # other files are variants (model.fp16.safetensors)
    files = sorted(directory.glob("*.safetensors"))
    named = [path for path in files if not path.name.startswith(mistral.WEIGHTS)]
    files = named or files  # the same weights, with Mistral's names
    if files and (match := _SHARD.fullmatch(files[0].name)):
        total = min(int(match[2]), MAX_SHARDS)
        names = [f"{match[1]}{number:05}-of-{match[2]}{match[3]}" for number in range(1, total + 1)]
        _check_present(directory, names, files[0].name)
    return files


def _check_present(directory: Path, names: Sequence[str], source: str) -> None:
    """Raise StartError if a file of weights is missing, of those that `source` tells of."""
    missing = [name for name in names if not (directory / name).exists()]
    if missing:
        shown = ", ".join(missing[:_SHOWN]) + ", ..." * (len(missing) > _SHOWN)
        raise StartError(
            f"{directory} lacks {len(missing)} of {len(names)} files of weights, by the name or "
            f"the content of {source}: download {shown}{file_check.unfinished(directory)}"
        )


def _read_all(files: Iterable[Path], read: Read) -> dict[str, StoredTensor]:
    tensors: dict[str, StoredTensor] = {}
    for path in files:
        for name, stored in read(path).items():
            if name in tensors:
                raise StartError(f"tensor {name!r} is in {path.name} and in another file")
            tensors[name] = stored
    return tensors


def _read_shards(index: Path, read: Read) -> dict[str, StoredTensor]:
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise StartError(f"{index} has no weight_map")
    names = sorted({str(value) for value in weight_map.values()})
    suffix = Path(index.name.removesuffix(".index.json")).suffix
    for name in names:
        if Path(name).name != name or not name.endswith(suffix):
            raise StartError(f"{index} names {name!r}, expected a *{suffix} file beside it")
    _check_present(index.parent, names, index.name)
    files = {name: read(index.parent / name) for name in names}
    for name, file in weight_map.items():
        if name not in files[file]:
            raise StartError(
                f"{index.parent / file} has no tensor {name!r}, which {index.name} names"
            )
    return {name: files[file][name] for name, file in weight_map.items()}
