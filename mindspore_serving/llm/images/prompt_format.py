"""The image prompt format of one model, and the settings of config.json that formats follow."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mindspore_serving.errors import StartError
from mindspore_serving.llm.images.frame_texts import FrameTexts, plain_times
from mindspore_serving.llm.images.native_video import VideoFormat

Config = Mapping[str, Any]
Processed = Mapping[str, Any]  # output of an image processor


@dataclass(frozen=True, slots=True)
class ImagePromptFormat:
    """Text that one model has for an image.

    Attributes:
        token_id: the placeholder token, one for each vector.
        count: vectors of an image, or of one tile of it.
        write: returns the text of an image, from the texts of the placeholder and of `frame`,
            `count`, and the output of the image processor.
        options: arguments for the image processor.
        frame: tokens before and after the vectors of an image, if config.json has them.
        is_framed: templates write the first token of `frame` for an image, not the placeholder.
        ends_in_vector: the last vector is that of the token after the others.
        words: further tokens that `write` writes, which the tokenizer must have.
        is_bidirectional: tokens of an image attend to each other in both directions.
        fill_id: the token that the model reads in place of each placeholder; None for the same.
        frames: returns the texts before the frames of a video, and the one after the last.
        frame_options: arguments for the image processor of frames, instead of `options`.
        merge_size: a token stands for so many patches in height and in width, and has positions in
            both; 0 if it has the position of the token alone.
        numbers: texts around the number of an image in its prompt, from 0; () for no numbers.
        video: how the model takes videos; None: as images, which are their frames.
        process_shared: returns the output of the image processor, its first argument, for an image
            of a request with several; None if that is the same as for an image alone.
    """

    token_id: int
    count: int
    write: Callable[[Sequence[str], int, Processed], str]
    options: Mapping[str, Any]
    frame: tuple[int, ...] = ()
    is_framed: bool = False
    ends_in_vector: bool = False
    words: tuple[str, ...] = ()
    is_bidirectional: bool = False
    fill_id: int | None = None
    frames: FrameTexts = plain_times
    frame_options: Mapping[str, Any] | None = None
    merge_size: int = 0
    video: VideoFormat | None = None
    process_shared: Callable[[Any, Any], Processed] | None = None
    numbers: tuple[str, str] | tuple[()] = ()


def write_in_a_row(names: Sequence[str], count: int, processed: Processed) -> str:
    """Write an image that has `count` vectors, whatever its size."""
    return names[0] * count


def vision_of(config: Config) -> Config:
    """Return the settings of the vision tower.  Raises StartError if there are none."""
    vision = config.get("vision_config")
    if not isinstance(vision, Mapping):
        raise StartError("config.json has no vision_config, which its architecture needs")
    return vision


def side_of(vision: Config) -> int:
    """Return the number of patches along one side of a square image.  Raises StartError."""
    image, patch = size_of(vision, "image_size"), size_of(vision, "patch_size")
    if patch > image:
        raise StartError(
            f"config.json has patch_size {patch} in vision_config, expected at most its "
            f"image_size, {image}"
        )
    return image // patch


def size_of(config: Config, name: str, default: int | None = None) -> int:
    """Return a size in pixels or patches, which may be a list of two equal sizes.

    Raises StartError for any other value.
    """
    value = config.get(name, default)
    if isinstance(value, list) and len(value) == 2 and value[0] == value[1]:
        value = value[0]
    if type(value) is not int or value < 1:
        raise StartError(f"config.json has {name} {value!r}, expected a size in pixels")
    return value


def patch_features(config: Config) -> int:
    """Return the vectors that LLaVA's `vision_feature_select_strategy` selects of an image."""
    vision = vision_of(config)
    count = side_of(vision) ** 2
    if vision.get("model_type", "clip_vision_model") == "clip_vision_model":
        count += 1  # the class token
    if config.get("vision_feature_select_strategy", "default") == "default":
        count -= 1  # "default" drops the class token
    return count


def image_token_id(config: Config) -> int:
    """Return the id of the placeholder token.  Raises StartError."""
    return id_of(config, "image_token")


def id_of(config: Config, name: str) -> int:
    """Return the id of the token that config.json names `name`.  Raises StartError."""
    token_id = config.get(f"{name}_id", config.get(f"{name}_index"))
    if type(token_id) is not int:
        raise StartError(f"config.json has {name}_id {token_id!r}, expected a token id")
    return token_id
