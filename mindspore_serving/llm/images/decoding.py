"""A picture's file decoded.  Knows no request and no model.

Format and size are checked before anything is decoded: a small file may be of many pixels.
"""

import io
import warnings
from typing import Any, Protocol

from mindspore_serving.errors import InvalidInputs

FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF")  # of one with several pictures the first is taken


class ImageLimits(Protocol):
    """`max_image_bytes` of a file, `max_image_pixels` of the picture in it."""

    @property
    def max_image_bytes(self) -> int: ...

    @property
    def max_image_pixels(self) -> int: ...


def decode_file(data: bytes, limits: ImageLimits) -> Any:
    """The picture, RGB, turned as its camera was.

    Raises InvalidInputs that continues the picture's name: too many bytes or pixels, another
    format, a broken file.
    """
    if len(data) > limits.max_image_bytes:
        most = limits.max_image_bytes
        raise InvalidInputs(f"has {len(data):,} bytes, expected at most {most:,}")
    from PIL import Image, ImageOps, UnidentifiedImageError

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a size that is checked here, of odd metadata
            with Image.open(io.BytesIO(data), formats=FORMATS) as image:
                check_size(image.width, image.height, limits)
                return ImageOps.exif_transpose(image).convert("RGB")
    except InvalidInputs:
        raise
    except Image.DecompressionBombError:
        most = limits.max_image_pixels
        raise InvalidInputs(f"has too many pixels, expected at most {most:,}") from None
    except UnidentifiedImageError:
        raise InvalidInputs(f"is no file of {', '.join(FORMATS)}") from None
    except MemoryError:
        raise
    except Exception as error:  # a decoder raises almost anything for a broken file
        raise InvalidInputs(f"is broken: {str(error)[:200]}") from None


def check_size(width: int, height: int, limits: ImageLimits) -> None:
    """Raises InvalidInputs for too many pixels."""
    most = limits.max_image_pixels
    if width * height > most:
        raise InvalidInputs(f"has {width} x {height} pixels, expected at most {most:,}")
