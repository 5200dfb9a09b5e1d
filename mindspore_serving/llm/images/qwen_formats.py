"""Images of Qwen-VL models and similar ones, with tokens by their size: texts and positions.

A grid has an image's number of tokens in time, height and width. Knows no tokenizer and no pixels.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from mindspore_serving.errors import InvalidInputs, StartError
from mindspore_serving.llm.images.prompt_format import (
    Config,
    ImagePromptFormat,
    Processed,
    image_token_id,
    vision_of,
)

Grid = tuple[int, int, int]
GRID = "image_grid_thw"  # output of the image processors: patches in time, height and width


def qwen_vl(config: Config) -> ImagePromptFormat | None:
    """Return the format of Qwen-VL and GLM-V; None for a text model of the same architecture."""
    if not config.get("vision_config"):
        return None
    size = merge_size_of(vision_of(config))
    write = partial(_write_grid, size)
    return ImagePromptFormat(image_token_id(config), 0, write, {}, merge_size=size)


def merge_size_of(vision: Mapping[str, Any]) -> int:
    """Return the side of a token in patches, of a vision_config.  Raises StartError."""
    size = vision.get("spatial_merge_size", 2)
    if type(size) is not int or not 0 < size <= 64:
        raise StartError(
            f"config.json has spatial_merge_size {size!r} in vision_config, expected a number of "
            "patches"
        )
    return size


def grid_of(patches: Sequence[int], merge_size: int) -> Grid:
    """Return the grid of an image whose processor has made `patches` in each direction."""
    time, height, width = map(int, patches)
    return time, height // merge_size, width // merge_size


def _write_grid(merge_size: int, names: Sequence[str], count: int, processed: Processed) -> str:
    """Write an image: a placeholder for each token of its grid."""
    return names[0] * prod(grid_of(processed[GRID][0], merge_size))


def check_tokens(processor: Any, size: tuple[int, int], merge_size: int, max_tokens: int) -> None:
    """Raise InvalidInputs if an image of `size`, (width, height), has more than `max_tokens`."""
    width, height = size
    count = processor.get_number_of_image_patches(height, width) // merge_size**2
    if count > max_tokens:
        raise InvalidInputs(
            f"{width} x {height} pixels become {count:,} tokens, and the model has {max_tokens:,} "
            "for prompt and answer; expected a smaller image"
        )


def rope_positions(
    length: int, image_tokens: Sequence[int], grids: Sequence[Grid]
) -> npt.NDArray[np.int32]:
    """Return the positions in time, height and width of `length` tokens, int32 [length, 3].

    Those at `image_tokens` are of images: each has its row and column in its grid, counted from the
    position that follows the largest one before the image.  Those of a text's token are equal in
    all three, and follow the largest one before it (M-RoPE, arXiv:2409.12191).
    """
    positions = np.zeros((length, 3), np.int32)
    following = end = begin = 0  # position and token behind the last image; first token of the next
    for grid in grids:
        count = prod(grid)
        first, behind = image_tokens[begin], image_tokens[begin + count - 1] + 1
        following = _write_text(positions[end:first], following)
        tokens = list(image_tokens[begin : begin + count])
        positions[tokens] = np.indices(grid, np.int32).reshape(3, -1).T + following
        begin, end, following = begin + count, behind, following + max(grid)
    _write_text(positions[end:], following)
    return positions


def _write_text(positions: npt.NDArray[np.int32], following: int) -> int:
    """Write the positions of a text that begins at `following`; return the next one."""
    end = following + len(positions)
    positions[:] = np.arange(following, end, dtype=np.int32)[:, None]
    return end
