"""Image prompt formats of Pixtral and Mistral 3: an image keeps its proportions.

Its vectors stand row by row, with a token at the end of each row and another at the end of the
image.
"""

from collections.abc import Sequence
from functools import partial

from mindspore_serving.llm.images.prompt_format import (
    Config,
    ImagePromptFormat,
    Processed,
    image_token_id,
    size_of,
    vision_of,
)

_BREAK, _END = "[IMG_BREAK]", "[IMG_END]"


def pixtral(config: Config, merged: int = 1) -> ImagePromptFormat:
    """Return the format of Pixtral, where a vector stands for `merged` x `merged` patches."""
    patch = size_of(vision_of(config), "patch_size", 16) * merged
    options = {"patch_size": {"height": patch, "width": patch}}
    write = partial(_write_rows, patch)
    return ImagePromptFormat(image_token_id(config), 1, write, options, words=(_BREAK, _END))


def mistral3(config: Config) -> ImagePromptFormat | None:
    """Return the format of Mistral 3; None for a checkpoint of its text part."""
    if not config.get("vision_config"):
        return None
    return pixtral(config, size_of(config, "spatial_merge_size", 2))


def _write_rows(patch: int, names: Sequence[str], count: int, processed: Processed) -> str:
    rows, columns = (int(size) // patch for size in processed["image_sizes"][0])
    return _BREAK.join([names[0] * columns] * rows) + _END
