"""Example values of inputs, from which commands, forms and documents are made.

An example is what the author of a servable declared, else a likely value by dtype, shape and name.
It knows JSON, but no protocol and no shell.
"""

import base64
import math
import re
from typing import Any

import msgspec
import numpy as np

from mindspore_serving.core import dtype as dtypes
from mindspore_serving.core.value import Value
from mindspore_serving.errors import InvalidInputs

MAX_ELEMENTS = 32  # of an example whose elements differ
MAX_BYTES = 1024  # of a text or bytes
TEXT = "text"
IDS = (1, 2, 3)  # token ids that every vocabulary has
PNG = (  # 32x32 pixels, orange: bytes that every library of images decodes
    "iVBORw0KGgoAAAANSUhEUgAAACAAAAAgCAIAAAD8GO2jAAAAKElEQVR42u3NsQkAAAgDsJ7u5/YKByGQPdnJqQgEAoFA"
    "IBAIBIIvQQHoo/xM3BB6yAAAAABJRU5ErkJggg=="
)
WAV = (  # a moment of silence
    "UklGRkwAAABXQVZFZm10IBAAAAABAAEAQB8AAEAfAAABAAgAZGF0YSgAAACAgICAgICAgICAgICAgICAgICAgICAgI"
    "CAgICAgICAgICAgICAgICA"
)
_IMAGES = frozenset({"image", "img", "picture", "photo"})
_TEXTS = frozenset(
    {"text", "sentence", "question", "query", "document", "passage", "title", "message", "word"}
)
_NUMBERS = {bool: True, int: 1, float: 1.0}  # by annotation


class Example(msgspec.Struct, frozen=True, array_like=True):
    """JSON value, repeated over `shape`: Example(1.0, (2, 3)) is [[1.0, 1.0, 1.0]] * 2."""

    value: Any
    shape: tuple[int, ...] = ()

    @property
    def size(self) -> int:
        """Number of repetitions."""
        return math.prod(self.shape)

    def nested(self) -> Any:
        """Return the whole value as JSON."""
        value = self.value
        for size in reversed(self.shape):
            value = [value] * size
        return value


def likely(name: str, dtype: str | None, shape: tuple[int | None, ...] | None) -> Example:
    """Return a likely value of an input; a dynamic dimension is 1.

    Without a dtype, as of an input of a Python function, the name decides: an `image` gets a PNG, a
    `text` or `prompt` a text, and other inputs a number.
    """
    sizes = tuple(1 if size is None else size for size in shape or ())
    words = set(re.split(r"[^a-z]+", name.lower()))
    if dtype in (None, "bytes"):
        if words & _IMAGES:
            return Example({"b64": PNG}, sizes)
        if dtype == "bytes":
            return Example({"b64": _encode(TEXT.encode())}, sizes)
    if "prompt" in words and dtype in (None, "str"):
        return Example("Once upon a time", sizes)
    if dtype == "str" or (dtype is None and words & _TEXTS):
        return Example(TEXT, sizes)
    if dtype == "bool":
        return Example(True, sizes)
    return Example(1.0 if dtype is None or dtype.startswith("float") else 1, sizes)


def declared(name: str, value: Value) -> Example:
    """Return the example of a value that the author of the input `name` declares.

    Raises InvalidInputs for a text, bytes or array that is too large to be shown.
    """
    if isinstance(value, np.ndarray):
        return _of_array(name, value)
    content = value.encode() if isinstance(value, str) else value
    if len(content) > MAX_BYTES:
        raise InvalidInputs(
            f"example: '{name}' has {len(content)} bytes; at most {MAX_BYTES} are shown to clients"
        )
    return Example(value if isinstance(value, str) else {"b64": _encode(content)})


def annotated(name: str, annotation: object) -> Example | None:
    """Return the example of an input by its annotation; None for other types than Python's own."""
    for kind in (str, bytes):
        if annotation in (kind, kind.__name__):  # the name: of `from __future__ import annotations`
            return likely(name, kind.__name__, ())
    for number, value in _NUMBERS.items():
        if annotation in (number, number.__name__):
            return Example(value)
    return None


def _of_array(name: str, array: "np.ndarray[Any, Any]") -> Example:
    if array.dtype not in dtypes.BY_NUMPY:
        raise InvalidInputs(f"example: '{name}' is an array of {array.dtype}, expected numbers")
    if array.size <= MAX_ELEMENTS:
        return Example(array.tolist())
    first = array.flat[0]
    if not np.array_equal(array, np.full_like(array, first)):
        raise InvalidInputs(
            f"example: '{name}' has {array.size} different elements; clients are shown at most "
            f"{MAX_ELEMENTS}, or an array of equal ones, such as np.ones({array.shape})"
        )
    return Example(first.item(), array.shape)


def _encode(content: bytes) -> str:
    return base64.b64encode(content).decode("ascii")
