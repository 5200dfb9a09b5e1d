"""Patches of an image, square by square, and their positions, as towers take them.

A tower sees one order of patches whatever its image processor's is: squares of `merge` x `merge`
patches row by row, each row by row, or by squares of 2 x 2 patches. Knows no runtime.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from mindspore_serving.llm.images.patch_settings import PatchSettings
from mindspore_serving.llm.images.resampling import resampling_matrix
from mindspore_serving.llm.images.tower_pass import Inputs

Floats = npt.NDArray[np.float32]
Indices = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Patches:
    """Patches of the frames of an image, [frames, height * width, numbers], which has one."""

    values: Floats
    height: int
    width: int


@dataclass(frozen=True, slots=True)
class Windows:
    """Windows of attention among patches.

    `members` [windows, size] are patches, some of which only fill up: `mask` [windows, size] is
    -inf there.  `slots` [patches] finds each patch in all windows.
    """

    members: Indices
    mask: Floats
    slots: Indices


def read_patches(image: Inputs, settings: PatchSettings) -> list[Patches]:
    """Return the patches of an image, or of each of its slices.

    Raises ValueError if the output of its image processor does not fit.
    """
    pixels = image["pixel_values"]
    if settings.form == "grid":
        frames, height, width = map(int, image["image_grid_thw"][0])
        return [Patches(pixels.reshape(frames, height * width, -1), height, width)]
    if settings.form == "slices":
        return _slices(pixels[0], image["target_sizes"], settings)
    patch = settings.patch_size
    if settings.form == "pixels":
        height, width = (int(size) // patch for size in image["image_sizes"][0])
        image_pixels = pixels[0, :, : height * patch, : width * patch]
        cells = image_pixels.reshape(3, height, patch, width, patch).transpose(1, 3, 0, 2, 4)
        rows = cells.reshape(height * width, -1)
    else:
        spots = image["image_position_ids"][0]  # columns and rows
        is_real = (spots >= 0).all(-1)
        width, height = map(int, spots[is_real].max(0) + 1)
        rows = np.empty((height * width, pixels.shape[-1]), np.float32)
        rows[spots[is_real] @ [1, width]] = 2 * (pixels[0, is_real] - 0.5)
        if is_real.sum() != len(rows):
            raise ValueError(f"{is_real.sum()} patches do not fill {height} x {width}")
    return [_ordered(rows, height, width, settings)]


def _slices(pixels: Floats, sizes: Indices, settings: PatchSettings) -> list[Patches]:
    """Return the patches of slices of `sizes`, whose rows of patches follow each other."""
    patch = settings.patch_size
    rows = pixels.reshape(3, patch, -1, patch).transpose(2, 0, 1, 3).reshape(-1, 3 * patch**2)
    counts = [int(height * width) for height, width in sizes]
    if sum(counts) != len(rows):
        raise ValueError(f"{len(rows)} patches do not fill slices of {sizes.tolist()}")
    parts = np.split(rows, np.cumsum(counts)[:-1])
    return [
        _ordered(part, int(height), int(width), settings)
        for part, (height, width) in zip(parts, sizes, strict=True)
    ]


def _ordered(rows: Floats, height: int, width: int, settings: PatchSettings) -> Patches:
    """Return patches that are given row by row.  Raises ValueError if they are no squares."""
    merge = settings.merge
    if height % merge or width % merge:
        raise ValueError(f"{height} x {width} patches are no squares of {merge} x {merge}")
    return Patches(rows[_order(height, width, settings)][None], height, width)


def _order(height: int, width: int, settings: PatchSettings) -> Indices:
    """Return the index, row by row, of each patch in the order of squares."""
    merge, inner = settings.merge, settings.merge // settings.last_merge
    cells = np.arange(height * width).reshape(
        height // merge, merge // inner, inner, width // merge, merge // inner, inner
    )
    return cells.transpose(0, 3, 1, 4, 2, 5).reshape(-1)


@lru_cache(maxsize=8)
def rotary_tables(height: int, width: int, settings: PatchSettings) -> tuple[Floats, Floats]:
    """Return cosines and sines of the angles of each patch, [height * width, head_size]."""
    rows, columns = np.divmod(_order(height, width, settings), width)
    size = settings.head_size
    if settings.rope_layout == "mixed":
        frequencies = _frequencies(size, settings.theta)
        by_row, by_column = frequencies[0::2], frequencies[1::2]
    else:
        by_row = by_column = _frequencies(size // 2, settings.theta)
    angles = [rows[:, None] * by_row, columns[:, None] * by_column]
    if settings.rope_layout == "parts":  # columns are first
        parts = [angles[1], angles[1], angles[0], angles[0]]
    else:
        parts = [*angles, *angles]
    joined = np.concatenate(parts, -1, dtype=np.float32)
    return np.cos(joined), np.sin(joined)


def _frequencies(size: int, theta: float) -> Floats:
    exponents = np.arange(0, size, 2, dtype=np.float32) / np.float32(size)
    return (1.0 / np.float32(theta) ** exponents).astype(np.float32)


def positions(table: Floats, height: int, width: int, settings: PatchSettings) -> Floats:
    """Return the vectors of positions that a table has for each patch, [patches, features]."""
    if settings.resampling == "sum":
        columns, rows = table[0, :width], table[1, :height]
        grid = rows[:, None] + columns[None]
    else:
        side = int(len(table) ** 0.5)
        aligned = settings.resampling == "bilinear"
        by_row, by_column = (
            resampling_matrix(size, side, settings.resampling, align_corners=aligned)
            for size in (height, width)
        )
        square = table.reshape(side, side, -1)
        grid = np.einsum("hs,wt,stc->hwc", by_row, by_column, square, optimize=True)
    return grid.reshape(height * width, -1)[_order(height, width, settings)]


@lru_cache(maxsize=8)
def windows_of(height: int, width: int, settings: PatchSettings) -> Windows:
    """Return the windows of an image of `height` x `width` patches."""
    merge, side = settings.merge, settings.window
    rows, columns = np.divmod(np.arange(height // merge * (width // merge)), width // merge)
    names = rows // side * (-(-width // merge // side)) + columns // side
    order, size = np.argsort(names, kind="stable"), merge**2
    counts = np.bincount(names)
    members = np.zeros((len(counts), side**2 * size), np.int64)
    mask = np.full(members.shape, -np.inf, np.float32)
    slots = np.empty(height * width, np.int64)
    for number, squares in enumerate(np.split(order, np.cumsum(counts)[:-1])):
        patches = (squares[:, None] * size + np.arange(size)).reshape(-1)
        members[number, : len(patches)] = patches
        mask[number, : len(patches)] = 0
        slots[patches] = number * members.shape[1] + np.arange(len(patches))
    return Windows(members, mask, slots)


def joined_windows(windows: list[Windows], num_patches: int) -> dict[str, Any]:
    """Return the windows of several frames of `num_patches` each as inputs of a graph."""
    sizes = [each.members.size for each in windows]
    begins = np.cumsum([0, *sizes[:-1]])
    return {
        "members": np.concatenate(
            [each.members + number * num_patches for number, each in enumerate(windows)]
        ),
        "mask": np.concatenate([each.mask for each in windows])[:, None, None],
        "slots": np.concatenate(
            [each.slots + begin for each, begin in zip(windows, begins, strict=True)]
        ),
    }
