"""Image prompt formats of architectures: placeholder tokens for an image's vectors, and marks.

A chat template writes one placeholder per image, which is expanded here. Knows no tokenizer and no
pixels.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from mindspore_serving.errors import StartError
from mindspore_serving.llm.images.qwen_formats import in_grid, merge_size_of

Config = Mapping[str, Any]
FAKE, GLOBAL = "<fake_token_around_image>", "<global-img>"  # of Idefics3 and SmolVLM


@dataclass(frozen=True, slots=True)
class ImagePromptFormat:
    """Text that one model has for an image.

    Attributes:
        token_id: the placeholder token, one for each vector.
        count: vectors of an image, or of one tile of it.
        write: returns the text of an image, from the texts of the placeholder and of `frame`,
            `count`, and the output of the image processor.
        options: arguments for the image processor.
        frame: tokens before and after the vectors of an image, if config.json has them; then
            templates write the first of them for an image, and otherwise the placeholder.
        is_bidirectional: tokens of an image attend to each other in both directions.
        merge_size: a token stands for so many patches in height and in width, and has positions in
            both; 0 if the number of an image's tokens does not depend on its size.
    """

    token_id: int
    count: int
    write: Callable[[Sequence[str], int, Mapping[str, Any]], str]
    options: Mapping[str, Any]
    frame: tuple[int, ...] = ()
    is_bidirectional: bool = False
    merge_size: int = 0


def find_prompt_format(config: Config) -> ImagePromptFormat | None:
    """Return the format of the model with this config.json, None if it takes no images.

    Raises StartError for a missing key.
    """
    names = config.get("architectures") or [""]
    return _ROWS[names[0]](config) if names[0] in _ROWS else None


def _llava(config: Config) -> ImagePromptFormat:
    vision = _vision(config)
    count = _patches(vision)
    if vision.get("model_type", "clip_vision_model") == "clip_vision_model":
        count += 1  # the class token
    if config.get("vision_feature_select_strategy", "default") == "default":
        count -= 1  # "default" drops the class token
    return ImagePromptFormat(_token_id(config), count, _in_a_row, {})


def _idefics(config: Config) -> ImagePromptFormat:
    """Return the format of Idefics3 and SmolVLM, which cut an image into tiles."""
    scale = int(config.get("scale_factor", 2))
    count = _patches(_vision(config)) // scale**2
    return ImagePromptFormat(_token_id(config), count, _in_tiles, {"return_row_col_info": True})


def _gemma3(config: Config) -> ImagePromptFormat | None:
    """Return the format of Gemma 3; None for the text model, whose architecture may be the same."""
    if not config.get("vision_config"):
        return None
    count = config.get("mm_tokens_per_image", 256)
    frame = (_id_of(config, "boi_token"), _id_of(config, "eoi_token"))
    return ImagePromptFormat(
        _token_id(config), count, _with_crops, {}, frame, is_bidirectional=True
    )


def _qwen_vl(config: Config) -> ImagePromptFormat | None:
    """Return the format of Qwen-VL and GLM-V; None for a text model of the same architecture."""
    if not config.get("vision_config"):
        return None
    size = merge_size_of(_vision(config))
    write = partial(in_grid, size)
    return ImagePromptFormat(_token_id(config), 0, write, {}, merge_size=size)


def _in_a_row(names: Sequence[str], count: int, processed: Mapping[str, Any]) -> str:
    return names[0] * count


def _with_crops(names: Sequence[str], count: int, processed: Mapping[str, Any]) -> str:
    """Write an image of Gemma 3, followed by its crops if the image processor made some."""
    token, begin, end = names
    image, num_crops = f"\n\n{begin}{token * count}{end}\n\n", int(processed["num_crops"][0])
    if not num_crops:
        return image
    before = f"Here is the original image {image} and here are some crops to help you see better "
    return before + " ".join([image] * num_crops)


def _in_tiles(names: Sequence[str], count: int, processed: Mapping[str, Any]) -> str:
    """Write an image of Idefics3: its tiles row by row, then the whole image scaled down."""
    token = names[0]
    (rows,), (columns,) = processed["rows"][0], processed["cols"][0]
    tiles = "".join(
        "".join(f"{FAKE}<row_{r + 1}_col_{c + 1}>{token * count}" for c in range(columns)) + "\n"
        for r in range(rows)
    )
    between = "\n" if tiles else ""
    return f"{tiles}{between}{FAKE}{GLOBAL}{token * count}{FAKE}"


def _vision(config: Config) -> Config:
    vision = config.get("vision_config")
    if not isinstance(vision, Mapping):
        raise StartError("config.json has no vision_config, which its architecture needs")
    return vision


def _patches(vision: Config) -> int:
    image, patch = vision.get("image_size"), vision.get("patch_size")
    if type(image) is not int or type(patch) is not int or not 0 < patch <= image:
        raise StartError(
            f"config.json has image_size {image!r} and patch_size {patch!r} in vision_config, "
            "expected sizes in pixels"
        )
    return (image // patch) ** 2


def _token_id(config: Config) -> int:
    return _id_of(config, "image_token")


def _id_of(config: Config, name: str) -> int:
    token_id = config.get(f"{name}_id", config.get(f"{name}_index"))
    if type(token_id) is not int:
        raise StartError(f"config.json has {name}_id {token_id!r}, expected a token id")
    return token_id


_ROWS: dict[str, Callable[[Config], ImagePromptFormat | None]] = {
    "Gemma3ForConditionalGeneration": _gemma3,
    "LlavaForConditionalGeneration": _llava,
    "Idefics3ForConditionalGeneration": _idefics,
    "SmolVLMForConditionalGeneration": _idefics,
    "Glm4vForConditionalGeneration": _qwen_vl,
    "Glm4vMoeForConditionalGeneration": _qwen_vl,
    "Qwen2VLForConditionalGeneration": _qwen_vl,
    "Qwen2_5_VLForConditionalGeneration": _qwen_vl,
    "Qwen3VLForConditionalGeneration": _qwen_vl,
    "Qwen3VLMoeForConditionalGeneration": _qwen_vl,
    "Qwen3_5ForConditionalGeneration": _qwen_vl,
    "Qwen3_5MoeForConditionalGeneration": _qwen_vl,
}
ARCHITECTURES = tuple(_ROWS)
