"""Resampling of rows of vectors to another number of rows, as a matrix.  Knows no image."""

from typing import Literal

import numpy as np
import numpy.typing as npt

_SHARPNESS = -0.75  # of the bicubic kernel of PyTorch (Keys)


def resampling_matrix(
    size: int,
    side: int,
    kind: Literal["bilinear", "bicubic", "nearest"],
    *,
    align_corners: bool = False,
) -> npt.NDArray[np.float32]:
    """Return the matrix [size, side] that resamples `side` values to `size`.

    It does on one axis what PyTorch's `interpolate` does: neighbours outside are the outermost.
    "nearest" is what MiniCPM-V does.
    """
    if kind == "nearest":
        return np.eye(side, dtype=np.float32)[_nearest(size, side)]
    index = np.arange(size, dtype=np.float32)
    if align_corners:
        sources = index * np.float32(side - 1) / np.float32(max(size - 1, 1))
    else:
        sources = (index + np.float32(0.5)) * np.float32(side) / np.float32(size) - np.float32(0.5)
    if kind == "bilinear":
        sources = sources.clip(0)
    taps = np.arange(2) if kind == "bilinear" else np.arange(-1, 3)
    whole = np.floor(sources)
    neighbours = whole[:, None] + taps.astype(np.float32)
    distances = np.abs(sources[:, None] - neighbours)
    weights = 1 - distances if kind == "bilinear" else _bicubic(distances)
    matrix = np.zeros((size, side), np.float32)
    columns = neighbours.astype(np.int64).clip(0, side - 1)
    np.add.at(matrix, (np.arange(size)[:, None], columns), weights)
    return matrix


def _nearest(size: int, side: int) -> npt.NDArray[np.int64]:
    """Return which of `side` values each of `size` gets, rounded as in transformers."""
    import torch

    bounds = torch.arange(1 / side, 1.0, 1 / side)
    indices: npt.NDArray[np.int64] = torch.bucketize(
        torch.arange(size) / size, bounds, right=True
    ).numpy()
    return indices


def _bicubic(distances: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    a = np.float32(_SHARPNESS)
    near = ((a + 2) * distances - (a + 3)) * distances**2 + 1
    far = ((a * distances - 5 * a) * distances + 8 * a) * distances - 4 * a
    return np.where(distances <= 1, near, far)
