"""Decoding of image files.  Knows no request and no model.

Format and size are checked before anything is decoded: a small file may expand to many pixels.
"""

import io
import warnings
from typing import Any, Protocol

from mindspore_serving.errors import InvalidInputs

FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF")  # only the first image of a file is used


class ImageLimits(Protocol):
    """Limits of one image: bytes of its file, and its width times height in pixels."""

    @property
    def max_image_bytes(self) -> int: ...

    @property
    def max_image_pixels(self) -> int: ...


def decode_file(data: bytes, limits: ImageLimits) -> Any:
    """Return the image in `data` as RGB, upright by its EXIF orientation.

    Raises InvalidInputs, whose message follows the image's name: too many bytes or pixels, an
    unknown format, a broken file.
    """
    if len(data) > limits.max_image_bytes:
        max_bytes = limits.max_image_bytes
        raise InvalidInputs(f"has {len(data):,} bytes, expected at most {max_bytes:,}")
    from PIL import Image, ImageOps, UnidentifiedImageError

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about sizes, which are checked here, and odd metadata
            with Image.open(io.BytesIO(data), formats=FORMATS) as image:
                check_size(image.width, image.height, limits)
                return ImageOps.exif_transpose(image).convert("RGB")
    except InvalidInputs:
        raise
    except Image.DecompressionBombError:
        max_pixels = limits.max_image_pixels
        raise InvalidInputs(f"has too many pixels, expected at most {max_pixels:,}") from None
    except UnidentifiedImageError:
        raise InvalidInputs(f"is no {', '.join(FORMATS[:-1])} or {FORMATS[-1]} file") from None
    except MemoryError:
        raise
    except Exception as error:  # a decoder raises almost anything for a broken file
        raise InvalidInputs(f"is broken: {str(error)[:200]}") from None


def check_size(width: int, height: int, limits: ImageLimits) -> None:
    """Raise InvalidInputs if the image has too many pixels."""
    max_pixels = limits.max_image_pixels
    if width * height > max_pixels:
        raise InvalidInputs(f"has {width} x {height} pixels, expected at most {max_pixels:,}")
