"""Conversion of raw bytes to values, with the limits of every protocol.

It knows no message format.  Error texts come from the caller or are those of the original server.
"""

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any

import numpy as np

from mindspore_serving.core import dtype as dtypes
from mindspore_serving.core.buffers import LARGE
from mindspore_serving.core.dtype import DType
from mindspore_serving.core.graph import Method
from mindspore_serving.core.value import BoxedBytes, BoxedStr, Value
from mindspore_serving.errors import InvalidInputs, StageFailed

Array = np.ndarray[Any, Any]

MAX_RANK = 32  # of numpy 1; numpy 2 would take 64
MAX_ELEMENTS = 2**31 - 1
MAX_INSTANCES = 1 << 17  # per request: memory for bookkeeping is allocated before they are checked
# Limits of JSON that the master splits on its event loop, in 20 ms at most: bytes, and instances
# or strings.  A larger body goes to a single worker unchanged.
MAX_SPLIT_BYTES, MAX_SPLIT_ITEMS = 8 << 20, 1 << 14
_MAX_NAMES, _MAX_NAME_LENGTH = 8, 64  # in an error


class BadTensor(InvalidInputs):
    """Tensor that was decoded but is invalid, in any format."""


def count_elements(shape: Sequence[int]) -> int | None:
    """Return the number of elements of `shape`; None if the shape is invalid.

    Invalid are a negative dimension, a dimension after a 0, more than MAX_RANK or MAX_ELEMENTS.
    """
    if len(shape) > MAX_RANK:
        return None
    count = 1
    for dim in shape:
        if dim < 0 or count == 0:
            return None
        count *= dim
        if count > MAX_ELEMENTS:  # also before a 0, as numpy does not support such shapes
            return None
    return count


def to_array(data: bytes | memoryview, dtype: DType, shape: tuple[int, ...]) -> Array:
    """Copy `data`, little-endian in C order, into a new aligned and writable array.

    Stages may change their inputs in place, so the array cannot be a view of a received message; a
    bytearray is the cheapest memory that is both writable and aligned.  The caller has checked
    sizes.
    """
    if dtype.name == "bool":  # any byte but 0 is true; numpy would keep a 2, for example
        return np.ndarray(shape, np.uint8, data).astype(np.bool_)
    return np.ndarray(shape, dtype.numpy, bytearray(data))


def to_bytes(array: Array) -> bytes | memoryview:
    """Return the elements in C order; a view if the array is large and contiguous."""
    if array.nbytes < LARGE or not array.flags.c_contiguous:
        return array.tobytes()
    return memoryview(array).cast("B")  # type: ignore[arg-type]  # an array is a buffer


def to_text(data: bytes, dtype: DType, shape: tuple[int, ...]) -> Value:
    """Return a str (UTF-8) or bytes of shape () or (1,)."""
    if shape not in ((), (1,)):
        raise BadTensor(
            "Instance tensor check failed: bytes or string type input shape can only be (1,) or "
            f"empty, but given shape is {list(shape)}: send each text in an instance of its own"
        )
    if dtype is dtypes.BYTES:
        return BoxedBytes(data) if shape else data
    try:
        return BoxedStr(data, "utf-8") if shape else data.decode()
    except UnicodeDecodeError as error:
        raise BadTensor(f"Tensor check failed: string is not UTF-8: {error}") from None


def from_text(value: str | bytes) -> bytes:
    """Return the bytes of a str (UTF-8) or bytes.  Raises StageFailed if it cannot be encoded."""
    if isinstance(value, bytes):
        return value
    try:
        return value.encode()
    except UnicodeEncodeError as error:
        raise StageFailed(f"Failed to construct the response: {error}") from None


def shape_of(value: Value) -> tuple[int, ...]:
    """Return the shape of a value; of a str or bytes (1,) if it is boxed, else ()."""
    if isinstance(value, np.ndarray):
        return value.shape
    return (1,) if isinstance(value, BoxedStr | BoxedBytes) else ()


def dtype_of(value: Value) -> DType:
    """Return the row of a value's dtype.  Raises StageFailed for a dtype that cannot be sent."""
    row = dtypes.of(value)
    if row is None:
        kind = value.dtype if isinstance(value, np.ndarray) else type(value)
        raise StageFailed(f"Failed to construct the response: {kind} cannot be sent")
    return row


def missing_input(
    name: str, present: Iterable[str], method: Method, servable_label: str
) -> InvalidInputs:
    """Return the error of an instance without an input of the method; its inputs are `present`."""
    names = [key[:_MAX_NAME_LENGTH] for key in islice(present, _MAX_NAMES)]
    return InvalidInputs(
        f"Cannot find input {name} in instance input: given are {names}, the inputs of "
        f"{servable_label} are {list(method.inputs)}"
    )


def bad_input(name: str, detail: object) -> InvalidInputs:
    """Return the error of an input with an invalid value."""
    return InvalidInputs(f"Instances input {name} check failed, detail: {detail}")
