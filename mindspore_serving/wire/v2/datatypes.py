"""Table of the element types of protocol v2.

BYTES are texts or bytes; BF16 is converted to float32.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from mindspore_serving.core import dtype as dtypes
from mindspore_serving.core.value import Value
from mindspore_serving.errors import InvalidInputs, StageFailed


@dataclass(frozen=True, slots=True)
class Datatype:
    """An element type.

    `size` is bytes per element, 0 for BYTES; `numpy` is None for BYTES and BF16.  `contents` is the
    field of InferTensorContents, "" if contents must be raw.  `number` is that of ModelConfig.
    """

    name: str
    size: int
    numpy: "np.dtype[Any] | None"
    contents: str
    number: int


def _row(name: str, numpy: str, contents: str, number: int) -> Datatype:
    dtype = np.dtype(numpy)
    return Datatype(name, dtype.itemsize, dtype, contents, number)


TABLE = (
    _row("BOOL", "?", "bool_contents", 1),
    _row("UINT8", "u1", "uint_contents", 2),
    _row("UINT16", "<u2", "uint_contents", 3),
    _row("UINT32", "<u4", "uint_contents", 4),
    _row("UINT64", "<u8", "uint64_contents", 5),
    _row("INT8", "i1", "int_contents", 6),
    _row("INT16", "<i2", "int_contents", 7),
    _row("INT32", "<i4", "int_contents", 8),
    _row("INT64", "<i8", "int64_contents", 9),
    _row("FP16", "<f2", "", 10),
    _row("FP32", "<f4", "fp32_contents", 11),
    _row("FP64", "<f8", "fp64_contents", 12),
    Datatype("BYTES", 0, None, "bytes_contents", 13),
    Datatype("BF16", 2, None, "", 14),
)
BY_NAME = {row.name: row for row in TABLE}
BY_NUMPY = {row.numpy: row for row in TABLE if row.numpy is not None}
BY_DTYPE = {  # by the names of core.dtype
    row.name: BY_NUMPY[row.numpy] if row.numpy is not None else BY_NAME["BYTES"]
    for row in dtypes.TABLE
}
BOOL, BYTES, BF16 = BY_NAME["BOOL"], BY_NAME["BYTES"], BY_NAME["BF16"]


def datatype_of(name: str) -> Datatype:
    """Return a type by name.  Raises InvalidInputs that lists the names."""
    row = BY_NAME.get(name)
    if row is None:
        raise InvalidInputs(f"datatype {name[:64]!r}, expected one of {', '.join(BY_NAME)}")
    return row


def of(value: Value) -> Datatype:
    """Return the type of a stage's output.  Raises StageFailed if it cannot be sent."""
    if not isinstance(value, np.ndarray):
        return BYTES
    row = BY_NUMPY.get(value.dtype)
    if row is None:
        raise StageFailed(f"Failed to construct the response: {value.dtype} cannot be sent")
    return row
