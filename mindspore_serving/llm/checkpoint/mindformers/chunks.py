"""Checkpoint 2.0 of MindFormers: a directory for each iteration, and chunks of tensors in it.

    latest_checkpointed_iteration.txt    the number of the last iteration
    iteration_00000010/metadata.json     state_dict_metadata: shape and chunks of each tensor;
                                         storage_data: the files of each chunk
    iteration_00000010/common.json       about the training: its step and health
    iteration_00000010/*.safetensors     the chunks, under the names of their tensors

A chunk is known by its name and the index among the parts of its tensor, row by row.
"""

import re
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any, TypeAlias

from mindspore_serving import log
from mindspore_serving.errors import StartError
from mindspore_serving.llm.checkpoint.mindformers.slices import join_parts
from mindspore_serving.llm.checkpoint.model_files import read_json, read_optional_json
from mindspore_serving.llm.checkpoint.safetensors import StoredTensor

Tensors: TypeAlias = dict[str, StoredTensor]
Read: TypeAlias = Callable[[Path], Tensors]

TRACKER, METADATA, COMMON = "latest_checkpointed_iteration.txt", "metadata.json", "common.json"
KEYS = ("state_dict_metadata", "storage_data")
ABNORMAL = 1  # ckpt_status
MAX_DIMS = 32
_OPTIMIZER = re.compile(r"(.+-)?opt-\d+-\d+\.safetensors")


def find_iteration(directory: Path) -> Path | None:
    """Return the directory of the last iteration, or `directory` if it is one; None for others.

    Raises StartError for a tracker without a number, or whose iteration does not exist.
    """
    tracker = directory / TRACKER
    if tracker.is_file():
        text = tracker.read_bytes()[:32].decode(errors="replace").strip()
        path = directory / f"iteration_{int(text):08d}" if text.isdecimal() else directory / text
        if not text.isdecimal() or not path.is_dir():
            raise StartError(
                f"{tracker} has {text!r}, expected the number of an iteration beside it"
            )
        return path
    is_iteration = (directory / METADATA).is_file() and (directory / COMMON).is_file()
    return directory if is_iteration else None


def read_chunks(directory: Path, read: Read) -> Tensors:
    """Read the tensors of the iteration in `directory`, each as a whole, without the optimizer's.

    Raises StartError naming the file or tensor that is missing or does not fit.
    """
    metadata = read_json(directory / METADATA)
    tensors, storage = (metadata.get(key) for key in KEYS)
    if not isinstance(tensors, dict) or not isinstance(storage, dict):
        raise StartError(f"{directory / METADATA} has no {' and no '.join(KEYS)}")
    if read_optional_json(directory / COMMON).get("ckpt_status") == ABNORMAL:
        log.warning("%s says that the training was not healthy (ckpt_status)", directory / COMMON)
    files: dict[str, Tensors] = {}
    result = {}
    for name, entry in tensors.items():
        parts = {}
        label = f"{directory}: tensor {name!r}"
        counts, shape, indices = _chunks(entry, label)
        for index in indices:
            file = _file(storage.get(str((name, (index,)))), label, index)
            if _OPTIMIZER.fullmatch(file):
                break
            if file not in files:
                files[file] = read(directory / file)
            part = files[file].get(name)
            if part is None or part.shape != shape:
                problem = "lacks it" if part is None else f"has {list(part.shape)} of it"
                raise StartError(f"{label}: {file} {problem}, expected a part {list(shape)}")
            parts[_unravelled(index, counts)] = part
        else:
            result[name] = join_parts(label, parts, counts)
    return result


def _chunks(entry: Any, label: str) -> tuple[list[int], tuple[int, ...], list[int]]:
    """Return the number of parts along each axis, their shape, and the indices that are stored."""
    fields = entry if isinstance(entry, dict) else {}
    whole, counts = _sizes(fields.get("global_shape")), _sizes(fields.get("axis_fragmentations"))
    chunks = fields.get("chunk")
    if whole is None or counts is None or not isinstance(chunks, list) or not chunks:
        raise StartError(
            f"{label} has no global_shape, axis_fragmentations and chunk in {METADATA}"
        )
    shape = tuple(size // max(count, 1) for size, count in zip(whole, counts, strict=False))
    indices = []
    for chunk in chunks:
        fields = chunk if isinstance(chunk, dict) else {}
        offset, local = _sizes(fields.get("global_offset")), fields.get("local_shape")
        is_index = offset is not None and len(offset) == 1 and offset[0] < prod(counts)
        if offset is None or not is_index or local != list(shape):
            raise StartError(
                f"{label} has chunk {str(chunk)[:100]}, expected shape {list(shape)} and the index "
                f"of one of {prod(counts)} parts"
            )
        indices.append(offset[0])
    return counts, shape, indices


def _sizes(value: Any) -> list[int] | None:
    """Return a list of sizes that is short enough; None for anything else."""
    is_list = isinstance(value, list) and len(value) <= MAX_DIMS
    is_valid = is_list and all(type(size) is int and 0 <= size < 2**48 for size in value)
    return value if is_valid else None


def _file(entries: Any, label: str, index: int) -> str:
    """Return the name of the first file that has a chunk."""
    first = entries[0] if isinstance(entries, list) and entries else None
    name = first.get("file_name") if isinstance(first, dict) else None
    if not isinstance(name, str) or Path(name).name != name or not name.endswith(".safetensors"):
        raise StartError(
            f"{label}: storage_data of part {index} names {name!r}, expected a *.safetensors file "
            f"beside {METADATA}"
        )
    return name


def _unravelled(index: int, counts: list[int]) -> tuple[int, ...]:
    """Return the index of a part along each axis."""
    result: list[int] = []
    for count in reversed(counts):
        index, along = divmod(index, count)
        result.insert(0, along)
    return tuple(result)
