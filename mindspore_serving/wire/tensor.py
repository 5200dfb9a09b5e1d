"""Raw bytes to values, with the limits that hold for every protocol.

Knows no message format; the texts of its errors are worded by the caller or are the original's.
"""

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any

import numpy as np

from mindspore_serving.core import dtype as dtypes
from mindspore_serving.core.dtype import DType
from mindspore_serving.core.graph import Method
from mindspore_serving.core.pieces import LARGE
from mindspore_serving.core.value import BoxedBytes, BoxedStr, Value
from mindspore_serving.errors import InvalidInputs, StageFailed

Array = np.ndarray[Any, Any]

MAX_RANK = 32  # of numpy 1; numpy 2 would take 64
MAX_ELEMENTS = 2**31 - 1
MAX_INSTANCES = 1 << 17  # of one request: the space for their book-keeping is taken before a check
# What the master cuts at instances on its event loop, in some 20 ms at most: bytes of JSON, and
# instances or texts in them.  More goes to one worker as it is.
MOST_CUT, MOST_PIECES = 8 << 20, 1 << 14
_MOST_NAMES, _LONGEST_NAME = 8, 64  # of a request, in an error


class BadTensor(InvalidInputs):
    """A tensor that was read and cannot be used, in whatever format it came."""


def count_elements(shape: Sequence[int]) -> int | None:
    """How many elements `shape` holds; None if it is no shape.

    None for a negative dimension, one after a 0, more than MAX_RANK or MAX_ELEMENTS.
    """
    if len(shape) > MAX_RANK:
        return None
    count = 1
    for dim in shape:
        if dim < 0 or count == 0:
            return None
        count *= dim
        if count > MAX_ELEMENTS:  # also before a 0: numpy takes no such shape
            return None
    return count


def to_array(data: bytes | memoryview, dtype: DType, shape: tuple[int, ...]) -> Array:
    """`data`, little-endian in C order, as an aligned and writable array of its own.

    Stages may change their inputs in place, so the array cannot be a view of a received message: a
    bytearray is the cheapest memory that is both writable and aligned.  The sizes were checked.
    """
    if dtype.name == "bool":  # any byte but 0 is true; numpy would keep, say, a 2 as it is
        return np.ndarray(shape, np.uint8, data).astype(np.bool_)
    return np.ndarray(shape, dtype.numpy, bytearray(data))


def to_bytes(array: Array) -> bytes | memoryview:
    """Its elements in C order; a view if they are many and lie so."""
    if array.nbytes < LARGE or not array.flags.c_contiguous:
        return array.tobytes()
    return memoryview(array).cast("B")  # type: ignore[arg-type]  # an array is a buffer


def to_text(data: bytes, dtype: DType, shape: tuple[int, ...]) -> Value:
    """One str (UTF-8) or bytes of shape () or (1,)."""
    if shape not in ((), (1,)):
        raise BadTensor(
            "Instance tensor check failed: bytes or string type input  shape can only be (1,) or "
            f"empty, but given shape is {list(shape)}"
        )
    if dtype is dtypes.BYTES:
        return BoxedBytes(data) if shape else data
    try:
        return BoxedStr(data, "utf-8") if shape else data.decode()
    except UnicodeDecodeError as error:
        raise BadTensor(f"Tensor check failed: string is not UTF-8: {error}") from None


def from_text(value: str | bytes) -> bytes:
    """The bytes of a str (UTF-8) or bytes.  Raises StageFailed if it has no UTF-8."""
    if isinstance(value, bytes):
        return value
    try:
        return value.encode()
    except UnicodeEncodeError as error:
        raise StageFailed(f"Failed to construct the response: {error}") from None


def shape_of(value: Value) -> tuple[int, ...]:
    """() for a text or bytes, (1,) if it came in with that shape."""
    if isinstance(value, np.ndarray):
        return value.shape
    return (1,) if isinstance(value, BoxedStr | BoxedBytes) else ()


def dtype_of(value: Value) -> DType:
    """The row of the table.  Raises StageFailed for a dtype that cannot be sent."""
    row = dtypes.of(value)
    if row is None:
        kind = value.dtype if isinstance(value, np.ndarray) else type(value)
        raise StageFailed(f"Failed to construct the response: {kind} cannot be sent")
    return row


def missing_input(
    name: str, given: Iterable[str], method: Method, servable_label: str
) -> InvalidInputs:
    """What is said of an instance without one of the method's inputs, which has those `given`."""
    names = [one[:_LONGEST_NAME] for one in islice(given, _MOST_NAMES)]
    return InvalidInputs(
        f"Cannot find input {name} in instance input , {servable_label}: given are {names}, the "
        f"inputs are {list(method.inputs)}"
    )


def bad_input(name: str, detail: object) -> InvalidInputs:
    """What is said of an input that is there and cannot be used."""
    return InvalidInputs(f"Instances input {name} check failed, detail: {detail}")
