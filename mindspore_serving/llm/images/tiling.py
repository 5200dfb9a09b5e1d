"""Vectors of the tiles of an image in the order in which LLaVA-NeXT and LLaVA-OneVision have them.

Knows no runtime.
"""

from collections.abc import Sequence

import numpy as np

from mindspore_serving.llm.images.llava_formats import TileLayout
from mindspore_serving.llm.images.resampling import resampling_matrix
from mindspore_serving.llm.step import Vectors


def ordered(vectors: Vectors, size: Sequence[int], tiles: TileLayout, newline: Vectors) -> Vectors:
    """Return the vectors of an image of `size`, (height, width), each row with `newline` behind.

    `vectors` [tiles, count, width] has those of the whole image first.
    """
    whole, width = vectors[0], vectors.shape[-1]
    if len(vectors) == 1:
        return np.concatenate([whole, newline[None]])
    (rows, columns), filled, last = tiles.shapes(size)
    side = tiles.side
    cut = vectors[1:].reshape(rows // side, columns // side, side, side, width)
    grid = cut.swapaxes(1, 2).reshape(rows, columns, width)
    top, left = ((a - b) // 2 for a, b in zip((rows, columns), filled, strict=True))
    grid = grid[top : rows - top, left : columns - left]
    if last != filled:
        by_row, by_column = (
            resampling_matrix(new, old, "bilinear") for new, old in zip(last, filled, strict=True)
        )
        grid = np.einsum("hs,wt,stc->hwc", by_row, by_column, grid, optimize=True)
    ends = np.broadcast_to(newline, (last[0], 1, width))
    joined = np.concatenate([grid, ends], 1).reshape(-1, width)
    result: Vectors = np.concatenate([whole, joined])
    return result
