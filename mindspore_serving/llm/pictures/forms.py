"""How architectures write a picture into a prompt: tokens that stand for its vectors, and marks
around them.  A template writes one such token for a picture.

Knows no tokenizer and no pixels.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from mindspore_serving.errors import StartError

Config = Mapping[str, Any]
FAKE, WHOLE = "<fake_token_around_image>", "<global-img>"  # of Idefics3 and SmolVLM


@dataclass(frozen=True, slots=True)
class PictureForm:
    """Of one model.

    Args:
        token_id: of the token that stands for a vector.
        count: vectors of a picture, or of a tile of one.
        write: the picture's text, given the text of that token, `count`, and what the image
            processor made.
        options: of the image processor.
    """

    token_id: int
    count: int
    write: Callable[[str, int, Mapping[str, Any]], str]
    options: Mapping[str, Any]


def find_form(config: Config) -> PictureForm | None:
    """Of the model that `config` (config.json) describes; None if it takes no pictures.  Raises
    StartError for a key that is missing."""
    names = config.get("architectures") or [""]
    return _ROWS[names[0]](config) if names[0] in _ROWS else None


def _llava(config: Config) -> PictureForm:
    vision = _vision(config)
    count = _patches(vision)
    if vision.get("model_type", "clip_vision_model") == "clip_vision_model":
        count += 1  # of the class
    if config.get("vision_feature_select_strategy", "default") == "default":
        count -= 1  # which is left out
    return PictureForm(_token_id(config), count, _in_a_row, {})


def _idefics(config: Config) -> PictureForm:
    """Idefics3 and SmolVLM, which cut a picture into tiles."""
    scale = int(config.get("scale_factor", 2))
    count = _patches(_vision(config)) // scale**2
    return PictureForm(_token_id(config), count, _in_tiles, {"return_row_col_info": True})


def _in_a_row(token: str, count: int, made: Mapping[str, Any]) -> str:
    return token * count


def _in_tiles(token: str, count: int, made: Mapping[str, Any]) -> str:
    (rows,), (columns,) = made["rows"][0], made["cols"][0]
    tiles = "".join(
        "".join(f"{FAKE}<row_{r + 1}_col_{c + 1}>{token * count}" for c in range(columns)) + "\n"
        for r in range(rows)
    )
    between = "\n" if tiles else ""
    return f"{tiles}{between}{FAKE}{WHOLE}{token * count}{FAKE}"


def _vision(config: Config) -> Config:
    found = config.get("vision_config")
    if not isinstance(found, Mapping):
        raise StartError("config.json has no vision_config, which its architecture needs")
    return found


def _patches(vision: Config) -> int:
    image, patch = vision.get("image_size"), vision.get("patch_size")
    if type(image) is not int or type(patch) is not int or not 0 < patch <= image:
        raise StartError(
            f"config.json has image_size {image!r} and patch_size {patch!r} in vision_config, "
            "expected numbers of pixels"
        )
    return (image // patch) ** 2


def _token_id(config: Config) -> int:
    found = config.get("image_token_id", config.get("image_token_index"))
    if type(found) is not int:
        raise StartError(f"config.json has image_token_id {found!r}, expected a token's number")
    return found


_ROWS: dict[str, Callable[[Config], PictureForm]] = {
    "LlavaForConditionalGeneration": _llava,
    "Idefics3ForConditionalGeneration": _idefics,
    "SmolVLMForConditionalGeneration": _idefics,
}
ARCHITECTURES = tuple(_ROWS)
