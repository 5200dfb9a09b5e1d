"""Videos as models of Qwen-VL and GLM-V take them: pairs of frames with positions in time.

A pair is what their towers take in place of an image, which is a pair of equal frames.  Knows no
decoder and no tokenizer.
"""

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mindspore_serving.errors import InvalidInputs, StartError
from mindspore_serving.llm.checkpoint.model_files import read_json

FRAMES = 2  # of a pair
GRID = "image_grid_thw"  # output of the image processors: patches in time, height and width
INTERVAL = "time_interval"  # between the positions in time of pairs
_MAX_TOKENS_OF_FRAME = 768  # if the model has settings for images alone
Frame = tuple[float, Any]  # seconds, and the image


@dataclass(frozen=True, slots=True)
class VideoFormat:
    """Text and positions that one model has for a video.

    Attributes:
        token_id: the placeholder token of a vector; None for that of images.
        texts: returns the texts before the pairs of frames at some seconds, and after the last.
        is_joined: the pairs follow each other as one image, with positions in time.
        positions_per_second: positions in time for a second, of a joined video; 0: one for a pair.
        size: pixels of a frame, at least and at most, or of all frames unless `is_joined`, if the
            model's files do not have them.
    """

    token_id: int | None
    texts: Callable[[Sequence[float]], list[str]]
    is_joined: bool
    positions_per_second: float
    size: tuple[int, int]


@dataclass(frozen=True, slots=True)
class VideoPart:
    """Pairs of frames that a prompt has in one piece.

    `inputs` are arrays for a tower, `count` is the number of their vectors.
    """

    text_before: str
    count: int
    inputs: dict[str, npt.NDArray[Any]]
    key: bytes


class NativeVideo:
    """Preparation of videos for one model.

    Args:
        processor: the image processor of the model.
        video_format: how the model takes videos.
        size: as in `VideoFormat`, of this model.
        max_tokens: of a prompt with its answer.
    """

    def __init__(
        self, processor: Any, video_format: VideoFormat, size: tuple[int, int], max_tokens: int
    ) -> None:
        self._processor, self._format, self._size = processor, video_format, size
        self._max_tokens = max_tokens
        self._merge = int(processor.merge_size)

    def prepare(
        self, frames: Iterable[Frame], count: int, seconds: float
    ) -> tuple[list[VideoPart], str]:
        """Return the parts of a video of at most `count` frames, and the text behind the last.

        Raises InvalidInputs for more tokens than the model has.
        """
        times, pairs, grid = [], [], (0, 0)
        for first, second in _in_pairs(frames):
            (patches, grid), (later, _) = (self._patches(x[1], count) for x in (first, second))
            patches[:, :, 1:] = later[:, :, 1:]
            times += [first[0], second[0]]
            pairs.append(patches.reshape(len(patches), -1))
        *before, last = self._format.texts(times)
        groups = [pairs] if self._format.is_joined else [[pair] for pair in pairs]
        keys = [struct.pack("<q", number) for number in range(len(groups))]
        parts = []
        for text, group, key in zip(before, groups, keys, strict=True):
            inputs: dict[str, npt.NDArray[Any]] = {
                "pixel_values": np.concatenate(group),
                GRID: np.array([[len(group), *grid]], np.int64),
            }
            if rate := self._format.positions_per_second:
                interval = rate * FRAMES * seconds / len(set(times))
                inputs[INTERVAL] = np.array([interval], np.float32)
            tokens = len(inputs["pixel_values"]) // self._merge**2
            parts.append(VideoPart(text, tokens, inputs, key))
        return parts, last

    def _patches(self, frame: Any, count: int) -> tuple[npt.NDArray[Any], tuple[int, int]]:
        """Return the patches of a pair that is `frame` twice [n, 3, 2, size], and their grid."""
        from PIL import Image

        factor = self._processor.patch_size * self._merge
        try:
            height, width = self._frame_size(frame, max(count, FRAMES), factor)
        except ValueError as error:
            raise InvalidInputs(f"cannot be prepared: {error}") from error
        tokens = -(-count // FRAMES) * height * width // factor**2
        if tokens > self._max_tokens:
            raise InvalidInputs(
                f"becomes {tokens:,} tokens, and the model has {self._max_tokens:,} for prompt and "
                "answer; expected a smaller or shorter video, or fewer frames (max_video_frames)"
            )
        resized = frame.convert("RGB").resize((width, height), Image.Resampling.BICUBIC)
        processed = self._processor([resized], do_resize=False, return_tensors="np")
        patches, size = processed["pixel_values"], self._processor.patch_size
        grid = height // size, width // size
        return patches.reshape(len(patches), 3, FRAMES, size**2).copy(), grid

    def _frame_size(self, frame: Any, count: int, factor: int) -> tuple[int, int]:
        """Return the height and width of a frame, as one of `count` frames."""
        from transformers.models.glm4v import image_processing_pil_glm4v as of_all
        from transformers.models.qwen2_vl import image_processing_pil_qwen2_vl as of_each

        smallest, largest = self._size
        width, height = frame.size
        if self._format.is_joined:
            size = of_each.smart_resize(height, width, factor, smallest, largest)
        else:
            size = of_all.smart_resize(count, height, width, FRAMES, factor, smallest, largest)
        return int(size[0]), int(size[1])


def _in_pairs(frames: Iterable[Frame]) -> Iterator[tuple[Frame, Frame]]:
    """Iterate over pairs of frames; the last frame stands for one that is missing."""
    iterator = iter(frames)
    for frame in iterator:
        yield frame, next(iterator, frame)


def read_size(directory: Path, processor: Any, video_format: VideoFormat) -> tuple[int, int]:
    """Return the pixels of frames, at least and at most, that the files of a model have.

    With settings for images alone, a frame of a joined video has those of an image, but no more
    than a few hundred tokens.  Raises StartError for sizes that are no numbers.
    """
    settings = _settings(directory)
    if settings is None and not video_format.is_joined:
        return video_format.size
    if settings is None:
        factor = processor.patch_size * processor.merge_size
        smallest, largest = processor.size["shortest_edge"], processor.size["longest_edge"]
        return smallest, min(largest, _MAX_TOKENS_OF_FRAME * factor**2)
    size = settings.get("size") or {}
    known = (
        settings.get("min_pixels", size.get("shortest_edge", video_format.size[0])),
        settings.get("max_pixels", size.get("longest_edge", video_format.size[1])),
    )
    if not all(type(pixels) is int and pixels > 0 for pixels in known) or known[0] > known[1]:
        raise StartError(f"{directory} has settings of videos with size {known}, expected pixels")
    return known


def _settings(directory: Path) -> Mapping[str, Any] | None:
    """Return the settings of the model's video processor, if its files have some."""
    for name, key in (("video_preprocessor_config.json", ""), ("processor_config.json", "video")):
        if (directory / name).is_file():
            fields = read_json(directory / name)
            settings = fields.get(f"{key}_processor") if key else fields
            if isinstance(settings, Mapping):
                return settings
    return None


def no_texts(times: Sequence[float]) -> list[str]:
    """Return no text before a video and none after, for Qwen2-VL and Qwen2.5-VL."""
    return ["", ""]


def means_of_pairs(times: Sequence[float]) -> list[str]:
    """Return the mean of the times of a pair before each, as Qwen3-VL was trained with."""
    pairs = list(pairwise(times))[::FRAMES]
    return [*(f"<{(first + second) / FRAMES:.1f} seconds>" for first, second in pairs), ""]


def seconds_behind(times: Sequence[float]) -> list[str]:
    """Return the whole second of a pair behind each, as GLM-V was trained with."""
    seconds = [str(int(time)) for time in times[::FRAMES]]
    return ["<|begin_of_video|>", *seconds[:-1], f"{seconds[-1]}<|end_of_video|>"]
