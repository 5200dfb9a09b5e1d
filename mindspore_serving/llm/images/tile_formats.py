"""Image prompt formats of families that cut an image into tiles, each with as many vectors."""

from collections.abc import Sequence
from functools import partial

from mindspore_serving.llm.images.frame_texts import plain_times, smolvlm_times
from mindspore_serving.llm.images.prompt_format import (
    Config,
    ImagePromptFormat,
    Processed,
    image_token_id,
    side_of,
    vision_of,
)

_FAKE, _GLOBAL = "<fake_token_around_image>", "<global-img>"  # of Idefics3 and SmolVLM
_BEGIN, _END = "<img>", "</img>"  # of InternVL
_IMAGE, _SLICE = ("<image>", "</image>"), ("<slice>", "</slice>")  # of MiniCPM-V
_NUMBER = ("<image_id>", "</image_id>")


def idefics(config: Config) -> ImagePromptFormat:
    """Return the format of Idefics3 and SmolVLM."""
    scale = int(config.get("scale_factor", 2))
    count = side_of(vision_of(config)) ** 2 // scale**2
    options = {"return_row_col_info": True}
    whole = {**options, "do_image_splitting": False}
    frames = smolvlm_times if config.get("model_type") == "smolvlm" else plain_times
    return ImagePromptFormat(
        image_token_id(config), count, _write_rows, options, words=(_FAKE, _GLOBAL),
        frames=frames, frame_options=whole,
    )  # fmt: skip


def internvl(config: Config) -> ImagePromptFormat:
    """Return the format of InternVL, whose tiles have no marks between them."""
    side = int(side_of(vision_of(config)) * float(config.get("downsample_ratio", 0.5)))
    return ImagePromptFormat(
        image_token_id(config), side**2, _write_tiles, {"crop_to_patches": True},
        words=(_BEGIN, _END), frame_options={"crop_to_patches": False},
    )  # fmt: skip


def minicpm(config: Config) -> ImagePromptFormat:
    """Return the format of MiniCPM-V 4.6: an image scaled down, then its slices row by row."""
    divisor = 4 if config.get("downsample_mode", "16x") == "4x" else 16  # patches of a vector
    return ImagePromptFormat(
        image_token_id(config), 0, partial(_write_slices, divisor), {},
        words=(*_IMAGE, *_SLICE, *_NUMBER), frame_options={"slice_mode": False}, numbers=_NUMBER,
    )  # fmt: skip


def _write_rows(names: Sequence[str], count: int, processed: Processed) -> str:
    """Write the tiles of an image row by row, then the whole image scaled down."""
    token = names[0]
    (rows,), (columns,) = processed["rows"][0], processed["cols"][0]
    tiles = "".join(
        "".join(f"{_FAKE}<row_{r + 1}_col_{c + 1}>{token * count}" for c in range(columns)) + "\n"
        for r in range(rows)
    )
    between = "\n" if tiles else ""
    return f"{tiles}{between}{_FAKE}{_GLOBAL}{token * count}{_FAKE}"


def _write_tiles(names: Sequence[str], count: int, processed: Processed) -> str:
    return f"{_BEGIN}{names[0] * count * int(processed['num_patches'][0])}{_END}"


def _write_slices(divisor: int, names: Sequence[str], count: int, processed: Processed) -> str:
    """Write an image and its slices, each with the vectors of its size."""
    counts = [int(height * width) // divisor for height, width in processed["target_sizes"]]
    texts = [f"{_SLICE[0]}{names[0] * each}{_SLICE[1]}" for each in counts[1:]]
    rows, columns = processed["grids"][0]
    slices = ["".join(texts[row * columns : (row + 1) * columns]) for row in range(rows)]
    return _IMAGE[0] + names[0] * counts[0] + _IMAGE[1] + "\n".join(slices)
