"""How architectures write a picture into a prompt: tokens that stand for its vectors, and marks
around them.  A template writes one such token for a picture.

Knows no tokenizer and no pixels.
"""

from collections.abc import Callable, Mapping, Sequence
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
        write: the picture's text, given the texts of that token and of `frame`, `count`, and what
            the image processor made.
        options: of the image processor.
        frame: the tokens before and behind the vectors of a picture, if config.json has them;
            templates write the first of them for a picture, and else the token of a vector.
        is_bidirectional: the tokens of a picture see one another.
    """

    token_id: int
    count: int
    write: Callable[[Sequence[str], int, Mapping[str, Any]], str]
    options: Mapping[str, Any]
    frame: tuple[int, ...] = ()
    is_bidirectional: bool = False


def find_form(config: Config) -> PictureForm | None:
    """Of the model that `config` (config.json) describes; None if it takes no pictures.  Raises
    StartError for a key that is missing.
    """
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


def _gemma3(config: Config) -> PictureForm | None:
    """None for the text part alone, whose class may be the same."""
    if not config.get("vision_config"):
        return None
    count = config.get("mm_tokens_per_image", 256)
    frame = (_id_of(config, "boi_token"), _id_of(config, "eoi_token"))
    return PictureForm(_token_id(config), count, _with_crops, {}, frame, is_bidirectional=True)


def _in_a_row(names: Sequence[str], count: int, made: Mapping[str, Any]) -> str:
    return names[0] * count


def _with_crops(names: Sequence[str], count: int, made: Mapping[str, Any]) -> str:
    """Pieces of a picture follow it, if the image processor cuts it."""
    token, begin, end = names
    whole, crops = f"\n\n{begin}{token * count}{end}\n\n", int(made["num_crops"][0])
    if not crops:
        return whole
    before = f"Here is the original image {whole} and here are some crops to help you see better "
    return before + " ".join([whole] * crops)


def _in_tiles(names: Sequence[str], count: int, made: Mapping[str, Any]) -> str:
    token = names[0]
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
    return _id_of(config, "image_token")


def _id_of(config: Config, name: str) -> int:
    found = config.get(f"{name}_id", config.get(f"{name}_index"))
    if type(found) is not int:
        raise StartError(f"config.json has {name}_id {found!r}, expected a token's number")
    return found


_ROWS: dict[str, Callable[[Config], PictureForm | None]] = {
    "Gemma3ForConditionalGeneration": _gemma3,
    "LlavaForConditionalGeneration": _llava,
    "Idefics3ForConditionalGeneration": _idefics,
    "SmolVLMForConditionalGeneration": _idefics,
}
ARCHITECTURES = tuple(_ROWS)
