"""Conversion of a file's attributes and tensors to Python values and arrays.

It knows no operator.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

import numpy as np

from mindspore_serving.errors import StartError
from mindspore_serving.mindir.messages import Attribute, AttributeKind, Tensor
from mindspore_serving.mindir.values import MONAD, Array, Constant, Value
from mindspore_serving.mindir.wire import Damaged

# Type names by the number of TensorProto.DataType; types that numpy lacks are missing.
NUMPY = {
    1: "float32",
    2: "uint8",
    3: "int8",
    4: "uint16",
    5: "int16",
    6: "int32",
    7: "int64",
    9: "bool",
    10: "float16",
    11: "float64",
    12: "uint32",
    13: "uint64",
    17: "float64",
}
BFLOAT16 = 16
_MAX_DEPTH = 50
_INTS = (AttributeKind.INT8, AttributeKind.INT16, AttributeKind.INT32, AttributeKind.INT64) + (
    (AttributeKind.UINT8, AttributeKind.UINT16, AttributeKind.UINT32, AttributeKind.UINT64)
)

ReadFile = Callable[[str], memoryview]


@dataclass(frozen=True, slots=True)
class Values:
    """Reader of values; `read_file` returns the content of a file next to the model's."""

    read_file: ReadFile

    def of(self, attribute: Attribute, depth: int = 0) -> Value:
        """Return the value of `attribute`.

        Raises StartError if it is damaged or of an unsupported kind.
        """
        kind = attribute.type
        if depth > _MAX_DEPTH:
            raise Damaged(f"tuples are nested more than {_MAX_DEPTH} deep")
        if kind in (AttributeKind.TUPLE, AttributeKind.LIST):
            return tuple(self.of(value, depth + 1) for value in attribute.values)
        if kind in (AttributeKind.TENSOR, AttributeKind.TENSORS):
            return self._tensors(attribute)
        if kind in (AttributeKind.UMONAD, AttributeKind.IOMONAD):
            return MONAD
        if kind in _SCALARS:
            return _SCALARS[AttributeKind(kind)](attribute)
        if kind == AttributeKind.UNDEFINED:
            return _of_unsaid_kind(attribute)
        raise StartError(f"an attribute of kind {kind} ('{attribute.name}') is not supported")

    def tensor(self, tensor: Tensor) -> Constant:
        """Return the content of `tensor`.

        Raises StartError if its number of bytes does not fit its shape, or for an unsupported type.
        """
        is_bfloat16 = tensor.data_type == BFLOAT16
        kind = "uint16" if is_bfloat16 else NUMPY.get(tensor.data_type)
        if kind is None or tensor.compression_type:
            what = f"data type {tensor.data_type}" if kind is None else "compression"
            raise StartError(f"tensor '{tensor.name}' has {what}, which is not supported")
        raw = self._bytes(tensor)
        dtype = np.dtype(kind)
        size = prod(tensor.dims) if all(dim >= 0 for dim in tensor.dims) else -1
        if size * dtype.itemsize != len(raw):
            raise Damaged(
                f"tensor '{tensor.name}' of shape {tuple(tensor.dims)} and type "
                f"{'bfloat16' if is_bfloat16 else kind} has {len(raw)} bytes"
            )
        return Constant(_array(raw, dtype).reshape(tensor.dims), is_bfloat16)

    def _bytes(self, tensor: Tensor) -> memoryview:
        location = tensor.external_data
        if location is None or not location.location:
            return tensor.raw_data
        content = self.read_file(location.location)
        end = location.offset + location.length
        if location.offset < 0 or location.length < 0 or end > len(content):
            raise Damaged(
                f"weight '{tensor.name}' is bytes {location.offset} to {end} of "
                f"'{location.location}', which has {len(content)}"
            )
        return content[location.offset : end]

    def _tensors(self, attribute: Attribute) -> Value:
        tensors = attribute.tensors or ([attribute.t] if attribute.t is not None else [])
        if len(tensors) != 1:
            raise Damaged(f"attribute '{attribute.name}' has {len(tensors)} tensors, not one")
        return self.tensor(tensors[0])


def _array(raw: memoryview, dtype: "np.dtype[np.generic]") -> Array:
    return np.frombuffer(raw, dtype) if len(raw) else np.zeros(0, dtype)


def _text(attribute: Attribute) -> str:
    try:
        return str(attribute.strings[0] if attribute.strings else attribute.s, "utf-8")
    except UnicodeDecodeError as error:
        raise Damaged(f"attribute '{attribute.name}' is no text") from error


def _number(several: str, single: str) -> Callable[[Attribute], Value]:
    """Make the reader of a number, which older files write as a list of a single number."""

    def read(attribute: Attribute) -> Value:
        numbers = getattr(attribute, several)
        return numbers[0] if numbers else getattr(attribute, single)

    return read


_int, _float = _number("ints", "i"), _number("floats", "f")


def _of_unsaid_kind(attribute: Attribute) -> Value:
    """Return the numbers of an attribute without a kind, as older files write lists."""
    return tuple(attribute.ints) or tuple(attribute.floats) or None


_SCALARS: dict[AttributeKind, Callable[[Attribute], Value]] = {
    **dict.fromkeys(_INTS, _int),
    **dict.fromkeys((AttributeKind.FLOAT, AttributeKind.FLOAT16, AttributeKind.BFLOAT16), _float),
    AttributeKind.DOUBLE: _number("doubles", "d"),
    AttributeKind.BOOL: lambda attribute: bool(_int(attribute)),
    AttributeKind.STRING: _text,
    AttributeKind.NONE: lambda _: None,
}
