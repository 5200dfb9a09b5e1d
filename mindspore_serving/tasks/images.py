"""Images in requests.  Knows no model."""

from typing import Any

import numpy as np
import numpy.typing as npt

from mindspore_serving.core.tasks import TaskOptions
from mindspore_serving.core.value import Value
from mindspore_serving.errors import InvalidInputs
from mindspore_serving.llm.images.decoding import FORMATS, check_size, decode_file


def decode_image(value: "Value | None", options: TaskOptions) -> Any:
    """Decode the bytes of an image file to RGB; return an array of pixels unchanged.

    Arrays are uint8 [height, width, 3].  Raises InvalidInputs: neither of them, too many bytes or
    pixels, another format, a broken file.
    """
    try:
        return _decode(value, options)
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
