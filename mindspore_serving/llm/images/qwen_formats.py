"""Images of Qwen-VL models and similar ones, with tokens by their size: texts and positions.

A grid has an image's number of tokens in time, height and width. Knows no tokenizer and no pixels.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from mindspore_serving.errors import InvalidInputs, StartError
from mindspore_serving.llm.images.native_video import (
    FRAMES,
    GRID,
    INTERVAL,
    VideoFormat,
    means_of_pairs,
    no_texts,
    seconds_behind,
)
from mindspore_serving.llm.images.prompt_format import (
    Config,
    ImagePromptFormat,
    Processed,
    id_of,
    image_token_id,
    vision_of,
)

Grid = tuple[int, int, int]


def qwen2_vl(config: Config) -> ImagePromptFormat | None:
    """Return the format of Qwen2-VL and Qwen2.5-VL, whose videos have positions in time."""
    rate = (config.get("vision_config") or {}).get("tokens_per_second", 0)
    return _by_size(config, "video_token", no_texts, (128 * 28**2, 768 * 28**2), rate)


def qwen3_vl(config: Config) -> ImagePromptFormat | None:
    """Return the format of Qwen3-VL and Qwen3.5, whose videos have times between frames."""
    return _by_size(config, "video_token", means_of_pairs, (128 * 32**2, 768 * 32**2))


def glm_v(config: Config) -> ImagePromptFormat | None:
    """Return the format of GLM-V, whose videos have times between frames and tokens of images."""
    return _by_size(config, "", seconds_behind, (112**2, 2 * 30_000 * 28**2))


def _by_size(
    config: Config, token: str, texts: Callable[[Sequence[float]], list[str]],
    size: tuple[int, int], rate: float = 0,
) -> ImagePromptFormat | None:  # fmt: skip
    """Return a format with tokens by size; None for a text model of the same architecture."""
    if not config.get("vision_config"):
        return None
    if type(rate) not in (int, float) or not 0 <= rate < 1000:
        raise StartError(f"config.json has tokens_per_second {rate!r}, expected a number")
    merge_size = merge_size_of(vision_of(config))
    video = None
    if vision_of(config).get("temporal_patch_size", FRAMES) == FRAMES:
        token_id = id_of(config, token) if token else None
        video = VideoFormat(token_id, texts, texts is no_texts, rate, size)
    write = partial(_write_grid, merge_size)
    return ImagePromptFormat(
        image_token_id(config), 0, write, {}, merge_size=merge_size, video=video
    )


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


def grid_and_interval(
    inputs: Mapping[str, npt.NDArray[Any]], merge_size: int
) -> tuple[Grid, float]:
    """Return the grid of an image or a video, and what is between its positions in time."""
    interval = inputs[INTERVAL][0] if INTERVAL in inputs else 1.0
    return grid_of(inputs[GRID][0], merge_size), float(interval)


def rope_positions(
    length: int, image_tokens: Sequence[int], grids: Sequence[tuple[Grid, float]]
) -> npt.NDArray[np.int32]:
    """Return the positions in time, height and width of `length` tokens, int32 [length, 3].

    Those at `image_tokens` are of images: each has its row and column in its grid, counted from the
    position that follows the largest one before the image.  Those of a text's token are equal in
    all three, and follow the largest one before it (M-RoPE, arXiv:2409.12191).  Positions in time
    of a video are an interval apart, and do not count for those of the text behind it.
    """
    positions = np.zeros((length, 3), np.int32)
    following = end = begin = 0  # position and token behind the last image; first token of the next
    for grid, interval in grids:
        count = prod(grid)
        first, behind = image_tokens[begin], image_tokens[begin + count - 1] + 1
        following = _write_text(positions[end:first], following)
        tokens = list(image_tokens[begin : begin + count])
        axes = np.indices(grid, np.int32).reshape(3, -1)
        axes[0] = axes[0] * np.float32(interval)
        positions[tokens] = axes.T + following
        begin, end, following = begin + count, behind, following + max(grid[1:])
    _write_text(positions[end:], following)
    return positions


def _write_text(positions: npt.NDArray[np.int32], following: int) -> int:
    """Write the positions of a text that begins at `following`; return the next one."""
    end = following + len(positions)
    positions[:] = np.arange(following, end, dtype=np.int32)[:, None]
    return end
