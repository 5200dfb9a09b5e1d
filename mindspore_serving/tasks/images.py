"""Images in requests.  Knows no model."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from mindspore_serving.core.tasks import TaskOptions
from mindspore_serving.core.value import Value
from mindspore_serving.errors import InvalidInputs, ServingError
from mindspore_serving.llm.images.decoding import FORMATS, check_size, decode_file
from mindspore_serving.tasks.text_task import Outcome

MAX_RATIO = 100  # of the sides of an image


def answer_each(
    rows: Sequence[Sequence[Value]], answer: Callable[[Sequence[Value]], tuple[Value, ...]]
) -> list[Outcome]:
    """Return what `answer` returns for each row of inputs, or the error that it raises."""
    outcomes: list[Outcome] = []
    for row in rows:
        try:
            outcomes.append(answer(row))
        except ServingError as error:
            outcomes.append(error)
    return outcomes


def size_of_image(image: Any) -> tuple[int, int]:
    """Return the height and width of what `decode_image` returns."""
    if isinstance(image, np.ndarray):
        return image.shape[0], image.shape[1]
    return image.height, image.width


def decode_image(value: "Value | None", options: TaskOptions, max_pixels: int | None = None) -> Any:
    """Decode the bytes of an image file to RGB; return an array of pixels unchanged.

    Arrays are uint8 [height, width, 3].  Raises InvalidInputs: neither of them, too many bytes or
    pixels, more than `max_pixels` among them, an image that is too thin, another format, a broken
    file.
    """
    if max_pixels is not None:
        limit = min(max_pixels, options.max_image_pixels)
        options = replace(options, max_image_pixels=limit)
    try:
        image = _decode(value, options)
        _check_sides(*size_of_image(image))
        return image
    except InvalidInputs as error:
        raise InvalidInputs(f"image {error}") from None


def _decode(value: "Value | None", options: TaskOptions) -> Any:
    if isinstance(value, np.ndarray) and value.dtype == np.uint8 and value.ndim in (1, 3):
        if value.ndim == 3:
            return _checked_array(value, options)
        value = value.tobytes()
    if not isinstance(value, bytes):
        raise InvalidInputs(
            f"is {_kind(value)}, expected the bytes of a file of {', '.join(FORMATS)}; in "
            'JSON {"b64": "..."}'
        )
    return decode_file(value, options)


def _check_sides(height: int, width: int) -> None:
    """Raise InvalidInputs for an image whose short side processors would enlarge beyond memory."""
    if max(height, width) > MAX_RATIO * min(height, width):
        raise InvalidInputs(
            f"has {width} x {height} pixels, expected at most {MAX_RATIO} times as many on the "
            "long side as on the short one"
        )


def _checked_array(value: "npt.NDArray[Any]", options: TaskOptions) -> Any:
    height, width, channels = value.shape
    if channels != 3 or not height or not width:
        raise InvalidInputs(f"is an array {list(value.shape)}, expected [height, width, 3]")
    check_size(width, height, options)
    return value


def _kind(value: "Value | None") -> str:
    if value is None:
        return "empty"
    return f"an array of {value.dtype}" if isinstance(value, np.ndarray) else "a text"
