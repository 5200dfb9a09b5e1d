"""Image prompt formats of Gemma, whose images stand between two tokens."""

from collections.abc import Sequence

from mindspore_serving.llm.images.prompt_format import (
    Config,
    ImagePromptFormat,
    Processed,
    id_of,
    image_token_id,
)


def gemma3(config: Config) -> ImagePromptFormat | None:
    """Return the format of Gemma 3; None for the text model, whose architecture may be the same."""
    if not config.get("vision_config"):
        return None
    return ImagePromptFormat(
        image_token_id(config), config.get("mm_tokens_per_image", 256), _write_with_crops, {},
        _frame(config), is_framed=True, is_bidirectional=True,
    )  # fmt: skip


def _frame(config: Config) -> tuple[int, int]:
    return id_of(config, "boi_token"), id_of(config, "eoi_token")


def _write_with_crops(names: Sequence[str], count: int, processed: Processed) -> str:
    """Write an image of Gemma 3, followed by its crops if the image processor made some."""
    token, begin, end = names
    image, num_crops = f"\n\n{begin}{token * count}{end}\n\n", int(processed["num_crops"][0])
    if not num_crops:
        return image
    before = f"Here is the original image {image} and here are some crops to help you see better "
    return before + " ".join([image] * num_crops)
