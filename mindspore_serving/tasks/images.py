"""Pictures out of requests.  Knows no model.

Format and size are checked before anything is decoded: a small file may be of many pixels.
"""

import io
import warnings
from typing import Any

import numpy as np
import numpy.typing as npt

from mindspore_serving.core.value import Value
from mindspore_serving.errors import InvalidInputs
from mindspore_serving.tasks.options import TaskOptions

FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF")  # of one with several pictures the first is taken


def decode_image(value: "Value | None", options: TaskOptions) -> Any:
    """The picture, RGB, of a file's bytes, or an array uint8 [height, width, 3] as it is.

    Raises InvalidInputs: neither of them, too many bytes or pixels, another format, a broken file.
    """
    if isinstance(value, np.ndarray) and value.dtype == np.uint8 and value.ndim in (1, 3):
        if value.ndim == 3:
            return _checked_array(value, options)
        value = value.tobytes()
    if not isinstance(value, bytes):
        raise InvalidInputs(
            f"image is {_kind(value)}, expected the bytes of a file of {', '.join(FORMATS)}; in "
            'JSON {"b64": "..."}'
        )
    if len(value) > options.max_image_bytes:
        most = options.max_image_bytes
        raise InvalidInputs(f"image has {len(value):,} bytes, expected at most {most:,}")
    return _decode(value, options)


def _decode(data: bytes, options: TaskOptions) -> Any:
    from PIL import Image, ImageOps, UnidentifiedImageError

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a size that is checked here, of odd metadata
            with Image.open(io.BytesIO(data), formats=FORMATS) as image:
                _check_size(image.width, image.height, options)
                return ImageOps.exif_transpose(image).convert("RGB")
    except InvalidInputs:
        raise
    except Image.DecompressionBombError:
        most = options.max_image_pixels
        raise InvalidInputs(f"image has too many pixels, expected at most {most:,}") from None
    except UnidentifiedImageError:
        raise InvalidInputs(f"image is no file of {', '.join(FORMATS)}") from None
    except Exception as error:  # a decoder raises almost anything for a broken file
        raise InvalidInputs(f"image is broken: {str(error)[:200]}") from None


def _checked_array(value: "npt.NDArray[Any]", options: TaskOptions) -> Any:
    height, width, channels = value.shape
    if channels != 3 or not height or not width:
        raise InvalidInputs(f"image is an array {list(value.shape)}, expected [height, width, 3]")
    _check_size(width, height, options)
    return value


def _check_size(width: int, height: int, options: TaskOptions) -> None:
    if width * height > options.max_image_pixels:
        raise InvalidInputs(
            f"image has {width} x {height} pixels, expected at most {options.max_image_pixels:,}"
        )


def _kind(value: "Value | None") -> str:
    if value is None:
        return "empty"
    return f"an array of {value.dtype}" if isinstance(value, np.ndarray) else "a text"
