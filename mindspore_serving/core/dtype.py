"""Element types: numpy dtype, number in the MindSpore proto, and name in errors."""

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True)
class DType:
    """Element type; `kind` is the name that the original prints, as `kMSI_Float32`."""

    name: str
    proto: int
    kind: str
    numpy: "np.dtype[Any] | None"  # None for str and bytes

    @property
    def size(self) -> int:
        """Bytes per element; 0 for str and bytes."""
        return self.numpy.itemsize if self.numpy is not None else 0


def _row(name: str, proto: int, kind: str, numpy_name: str = "") -> DType:
    return DType(name, proto, kind, np.dtype(numpy_name) if numpy_name else None)


TABLE = (
    _row("bool", 1, "kMSI_Bool", "?"),
    _row("int8", 2, "kMSI_Int8", "i1"),
    _row("uint8", 3, "kMSI_Uint8", "u1"),
    _row("int16", 4, "kMSI_Int16", "<i2"),
    _row("uint16", 5, "kMSI_Uint16", "<u2"),
    _row("int32", 6, "kMSI_Int32", "<i4"),
    _row("uint32", 7, "kMSI_Uint32", "<u4"),
    _row("int64", 8, "kMSI_Int64", "<i8"),
    _row("uint64", 9, "kMSI_Uint64", "<u8"),
    _row("float16", 10, "kMSI_Float16", "<f2"),
    _row("float32", 11, "kMSI_Float32", "<f4"),
    _row("float64", 12, "kMSI_Float64", "<f8"),
    _row("str", 13, "kMSI_String"),
    _row("bytes", 14, "kMSI_Bytes"),
)
BY_PROTO = {row.proto: row for row in TABLE}
BY_NAME = {row.name: row for row in TABLE}
STR, BYTES = BY_NAME["str"], BY_NAME["bytes"]
TEXT = np.dtype(str)
"""Type of texts in a model's signature; arrays of texts have dtype object instead."""
BY_NUMPY = {row.numpy: row for row in TABLE if row.numpy is not None}  # of arrays
BY_SPEC = BY_NUMPY | {TEXT: STR}  # of the signature of a model


def of(value: object) -> DType | None:
    """Return the type of an array, str or bytes; None if it is not in the table."""
    if isinstance(value, np.ndarray):
        return BY_NUMPY.get(value.dtype)
    if isinstance(value, str):
        return STR
    return BYTES if isinstance(value, bytes) else None
