"""Slices of a checkpoint by rank, as MindSpore's parallel training saves them, merged when read.

    rank_0/*.safetensors or *.ckpt    the part that each rank holds, of several files the last step
    strategy/*.ckpt, here or beside   which part that is (`strategy`); in pipeline stages, one file
                                      for each stage, or a merged one

A tensor that several ranks hold may be in the file of one of them only.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from mindspore_serving.errors import StartError
from mindspore_serving.llm.checkpoint.derived import DerivedTensor
from mindspore_serving.llm.checkpoint.mindformers.strategy import (
    ParameterLayout,
    ParameterLayouts,
    read_strategies,
)
from mindspore_serving.llm.checkpoint.safetensors import StoredTensor

Tensors: TypeAlias = dict[str, StoredTensor]
Read: TypeAlias = Callable[[Path], Tensors]

STRATEGIES = tuple(
    f"{directory}.{suffix}"
    for suffix in ("ckpt", "json")
    for directory in ("*strategy/*", "../*strategy/*", "*strategy*")
)
MAX_RANKS = 4096  # of which files are mapped
_RANK = re.compile(r"rank_(\d{1,5})")
_SHOWN = 4


def find_ranks(directory: Path, suffixes: Iterable[str]) -> dict[int, Path]:
    """Return the directories rank_0, rank_1, ... in `directory` that have weights, by rank."""
    ranks = {}
    for path in directory.glob("rank_*"):
        match = _RANK.fullmatch(path.name)
        if match and any(next(path.glob(f"*{suffix}"), None) for suffix in suffixes):
            ranks[int(match[1])] = path
    return dict(sorted(ranks.items()))


def read_slices(directory: Path, ranks: Mapping[int, Path], readers: Mapping[str, Read]) -> Tensors:
    """Read the tensors of the slices in `ranks`, each as a whole.

    `readers` are by suffix. Raises StartError naming a rank, file or tensor that is missing or does
    not fit the strategy.
    """
    if len(ranks) > MAX_RANKS:
        raise StartError(f"{directory} has {len(ranks)} ranks, expected at most {MAX_RANKS}")
    slices = {rank: _read_rank(path, readers) for rank, path in ranks.items()}
    paths = next((some for p in STRATEGIES if (some := sorted(directory.glob(p)))), [])
    if not paths and len(ranks) > 1:
        raise StartError(
            f"{directory} has slices of {len(ranks)} ranks but no strategy, expected the files "
            "of the training's strategy directory in strategy/*.ckpt"
        )
    stages = read_strategies(paths)
    names = dict.fromkeys(name for tensors in slices.values() for name in tensors)
    return {name: _merged(directory, name, slices, stages) for name in names}


def _read_rank(path: Path, readers: Mapping[str, Read]) -> Tensors:
    """Read the last step of the first of the formats that there are files of."""
    by_format = (
        (read, sorted(path.glob(f"*{suffix}"), key=_step)) for suffix, read in readers.items()
    )
    read, files = next(pair for pair in by_format if pair[1])
    return read(files[-1])


def _step(path: Path) -> list[int]:
    """Return the last two numbers in the name, epoch and step, as MindSpore orders files."""
    return [int(number) for number in re.findall(r"\d+", path.stem)[-2:]]


def _merged(
    directory: Path, name: str, slices: Mapping[int, Tensors], stages: ParameterLayouts
) -> StoredTensor:
    holders = {rank: tensors[name] for rank, tensors in slices.items() if name in tensors}
    stage = next((stage for stage in sorted(stages) if name in stages[stage]), None)
    first = next(iter(holders.values()))
    if stage is None:  # not of the model's parallel part, such as the number of a step
        return first
    layout = stages[stage][name]
    begin = layout.num_devices * stage
    local = {rank - begin: stored for rank, stored in holders.items()}
    parts = {device: local[device] for device in local if 0 <= device < layout.num_devices}
    label = f"{directory}: tensor {name!r}"
    if any((part.dtype, part.shape) != (first.dtype, first.shape) for part in parts.values()):
        raise StartError(f"{label} has slices of different shapes or types")
    if not first.shape:
        return first
    if len(layout.axes) > len(first.shape):
        raise StartError(f"{label} is cut along {len(layout.axes)} axes, but has {first.shape}")
    return _joined(label, len(first.shape), parts, layout, begin)


def _joined(
    label: str,
    num_dims: int,
    parts: Mapping[int, StoredTensor],
    layout: ParameterLayout,
    begin: int,
) -> StoredTensor:
    """Return the tensor whose slices are `parts`, by the device of the stage."""
    counts = layout.counts(num_dims)
    by_index: dict[tuple[int, ...], StoredTensor] = {}
    for device, part in parts.items():
        by_index.setdefault(layout.part_index(device, num_dims), part)
    if len(by_index) != prod(counts):
        devices = range(layout.num_devices)
        absent = [d + begin for d in devices if layout.part_index(d, num_dims) not in by_index]
        shown = ", ".join(f"rank_{rank}" for rank in absent[:_SHOWN])
        raise StartError(
            f"{label} lacks {prod(counts) - len(by_index)} of {prod(counts)} slices, those of "
            f"{shown}{', ...' * (len(absent) > _SHOWN)}"
        )
    return join_parts(label, by_index, counts)


def join_parts(
    label: str, parts: Mapping[tuple[int, ...], StoredTensor], counts: Sequence[int]
) -> StoredTensor:
    """Return the tensor of equal `parts`, by their index along each axis.

    `counts` are the numbers of parts along the axes. Raises StartError, which begins with `label`,
    if one is missing.
    """
    if len(parts) != prod(counts):
        raise StartError(f"{label} lacks {prod(counts) - len(parts)} of {prod(counts)} parts")
    first = next(iter(parts.values()))
    if len(parts) == 1:
        return first
    if any(part.dtype != first.dtype for part in parts.values()):
        raise StartError(f"{label} has parts of different types")
    shape = tuple(size * count for size, count in zip(first.shape, counts, strict=True))

    def merge() -> Any:
        whole = np.empty(shape, first.bits.dtype)
        for index, part in parts.items():
            whole[_window(index, first.shape)] = part.bits.reshape(first.shape)
        return whole

    return DerivedTensor(first.dtype, shape, list(parts.values()), merge)


def _window(indices: Iterable[int], shape: tuple[int, ...]) -> tuple[slice, ...]:
    pairs = zip(indices, shape, strict=True)
    return tuple(slice(index * size, (index + 1) * size) for index, size in pairs)
