"""Image prompt formats of Gemma, whose images stand between two tokens."""

from collections.abc import Sequence
from functools import partial

from mindspore_serving.llm.images.prompt_format import (
    Config,
    ImagePromptFormat,
    Processed,
    id_of,
    image_token_id,
    size_of,
)


def gemma3(config: Config) -> ImagePromptFormat | None:
    """Return the format of Gemma 3; None for the text model, whose architecture may be the same."""
    if not config.get("vision_config"):
        return None
    return ImagePromptFormat(
        image_token_id(config), config.get("mm_tokens_per_image", 256), _write_with_crops, {},
        _frame(config), is_framed=True, is_bidirectional=True,
    )  # fmt: skip


def gemma3n(config: Config) -> ImagePromptFormat | None:
    """Return the format of Gemma 3n; None for a checkpoint of its text part."""
    if not config.get("vision_config"):
        return None
    return ImagePromptFormat(
        image_token_id(config), size_of(config, "vision_soft_tokens_per_image", 256), _write_apart,
        {}, _frame(config), ends_in_vector=True,
    )  # fmt: skip


def gemma4(config: Config) -> ImagePromptFormat | None:
    """Return the format of Gemma 4; None for a checkpoint of its text part."""
    if not config.get("vision_config"):
        return None
    text = config.get("text_config") or {}
    is_bidirectional = text.get("use_bidirectional_attention") == "vision"
    window = size_of(text, "sliding_window", 512)
    write = partial(_write_counted, window if is_bidirectional else 0)
    return ImagePromptFormat(
        image_token_id(config), 1, write, {}, _frame(config),
        is_bidirectional=is_bidirectional, fill_id=text.get("pad_token_id") or 0,
    )  # fmt: skip


def _frame(config: Config) -> tuple[int, int]:
    return id_of(config, "boi_token"), id_of(config, "eoi_token")


def _write_counted(window: int, names: Sequence[str], count: int, processed: Processed) -> str:
    """Write an image of Gemma 4, for which its processor counts the vectors.

    Raises ValueError if they attend to each other and are more than fit into `window`.
    """
    token, begin, end = names
    length = int(processed["num_soft_tokens_per_image"][0])
    if window and length > window:
        raise ValueError(
            f"it has {length} tokens that attend to each other, expected at most the {window} of "
            "sliding_window: lower max_soft_tokens of the image processor"
        )
    return f"{begin}{token * length}{end}"


def _write_apart(names: Sequence[str], count: int, processed: Processed) -> str:
    """Write an image between empty lines."""
    token, begin, end = names
    return f"\n\n{begin}{token * count}{end}\n\n"


def _write_with_crops(names: Sequence[str], count: int, processed: Processed) -> str:
    """Write an image of Gemma 3, followed by its crops if the image processor made some."""
    image, num_crops = _write_apart(names, count, processed), int(processed["num_crops"][0])
    if not num_crops:
        return image
    before = f"Here is the original image {image} and here are some crops to help you see better "
    return before + " ".join([image] * num_crops)
