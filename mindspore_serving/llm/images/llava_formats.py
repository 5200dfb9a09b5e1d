"""Image prompt formats of LLaVA and the families after it.

LLaVA-NeXT and LLaVA-OneVision scale an image to the whole, and cut it at the best of some
resolutions into tiles.  The vectors of the tiles stand row by row, without those of padding, each
row with one vector for its end.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from math import sqrt
from typing import Any

from mindspore_serving.errors import StartError
from mindspore_serving.llm.images.prompt_format import (
    Config,
    ImagePromptFormat,
    Processed,
    image_token_id,
    patch_features,
    side_of,
    size_of,
    vision_of,
    write_in_a_row,
)
from mindspore_serving.llm.images.row_formats import pixtral

Shape = tuple[int, int]

_ANYRES = "anyres_max_"
_NEXT_RESOLUTIONS = [[336, 672], [672, 336], [672, 672], [1008, 336], [336, 1008]]
_ONEVISION_RESOLUTIONS = list(map(list, product(range(384, 2305, 384), repeat=2)))


def llava(config: Config) -> ImagePromptFormat:
    """Return the format of LLaVA, whose images have one size; Pixtral's for its tower."""
    if vision_of(config).get("model_type") == "pixtral":
        return pixtral(config)
    return ImagePromptFormat(image_token_id(config), patch_features(config), write_in_a_row, {})


def llava_next(config: Config) -> ImagePromptFormat:
    """Return the format of LLaVA-NeXT (LLaVA 1.6)."""
    return _tiled(config, {"image_grid_pinpoints": _NEXT_RESOLUTIONS, **config}, 0)


def llava_onevision(config: Config) -> ImagePromptFormat:
    """Return the format of LLaVA-OneVision, which cuts an image into tiles only if it is alone."""
    defaults = {
        "image_grid_pinpoints": _ONEVISION_RESOLUTIONS,
        "vision_feature_select_strategy": "full",
        "vision_aspect_ratio": f"{_ANYRES}9",
    }
    config = {**defaults, **config}
    ratio = str(config["vision_aspect_ratio"])
    max_tiles = ratio.removeprefix(_ANYRES)
    if not ratio.startswith(_ANYRES) or not max_tiles.isdecimal() or int(max_tiles) < 1:
        raise StartError(
            f"config.json has vision_aspect_ratio {ratio!r}, expected {_ANYRES} and a number"
        )
    return _tiled(config, config, int(max_tiles), process_shared=_process_shared)


def _tiled(
    config: Config, settings: Config, max_tiles: int,
    process_shared: Callable[[Any, Any], Processed] | None = None,
) -> ImagePromptFormat:  # fmt: skip
    """Return the format for the resolutions in `settings`, with at most the vectors of `max_tiles`.

    Raises StartError if the vectors of a tile are no square.
    """
    vision = vision_of(config)
    side, tile = side_of(vision), size_of(vision, "image_size")
    if patch_features(config) != side**2:
        strategy = config.get("vision_feature_select_strategy")
        raise StartError(
            f"config.json has vision_feature_select_strategy {strategy!r}, which does not select "
            f"the {side} x {side} patches of a tile"
        )
    tiles = TileLayout(settings["image_grid_pinpoints"], tile, side, max_tiles)
    return ImagePromptFormat(
        image_token_id(config), side**2, tiles.write, {}, process_shared=process_shared
    )


@dataclass(frozen=True, slots=True)
class TileLayout:
    """Tiles of `pixels` and `side` patches on each side, at the best of some resolutions.

    An image has at most about the vectors of `max_tiles`, if that is not 0.
    """

    resolutions: Sequence[Sequence[int]]
    pixels: int
    side: int
    max_tiles: int

    def write(self, names: Sequence[str], count: int, processed: Processed) -> str:
        """Write an image that is cut into tiles, or of a single one."""
        if len(processed["pixel_values"][0]) == 1:  # the image was not cut
            return names[0] * (count + 1)
        rows, columns = self.shapes(processed["image_sizes"][0])[-1]
        return names[0] * (count + rows * (columns + 1))

    def shapes(self, size: Sequence[int]) -> tuple[Shape, Shape, Shape]:
        """Return the rows and columns of patches for an image of `size`, (height, width).

        First of all tiles together, then without padding, and last those that the model gets.
        """
        from transformers.image_processing_utils import select_best_resolution

        height, width = map(int, size)
        chosen = select_best_resolution([height, width], list(self.resolutions))
        patches = (chosen[0] // self.pixels * self.side, chosen[1] // self.pixels * self.side)
        filled = rows, columns = _without_padding(height, width, *patches)
        max_vectors = self.max_tiles * self.side**2
        ratio = sqrt(rows * columns / max_vectors) if max_vectors else 0
        last = (int(rows // ratio), int(columns // ratio)) if ratio > 1.1 else filled
        return patches, filled, last


def _without_padding(height: int, width: int, rows: int, columns: int) -> tuple[int, int]:
    """Return the rows and columns of patches that an image of the size fills, centred."""
    if width / height > columns / rows:
        filled = int(round(height * (columns / width), 7))
        return rows - (rows - filled) // 2 * 2, columns
    filled = int(round(width * (rows / height), 7))
    return rows, columns - (columns - filled) // 2 * 2


def _process_shared(processor: Any, image: Any) -> Processed:
    """Return the output for an image of several: the whole, padded to a square."""
    processed = processor([[image, image.resize((1, 1))]], return_tensors="np")  # two are several
    return {
        **processed,
        **{name: processed[name][:1] for name in ("pixel_values", "image_sizes")},
    }
