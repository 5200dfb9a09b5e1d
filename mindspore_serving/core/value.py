"""Values of a method: an array, a text or bytes.  Knows neither wire nor models."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from mindspore_serving.core import dtype as dtypes
from mindspore_serving.errors import StageFailed

Value: TypeAlias = "np.ndarray[Any, Any] | str | bytes"
Instance: TypeAlias = dict[str, Value]

_ACCEPTED = (bool, int, float, np.generic, tuple, list)
_PLAIN, _BUFFERS = (
    (str, bytes),
    (bytearray, memoryview),
)  # tuples, as `str | bytes` would be created for each call


class BoxedStr(str):
    """Text that arrived with shape (1,); it has that shape in the answer if it is unchanged."""

    __slots__ = ()


class BoxedBytes(bytes):
    """Bytes that arrived with shape (1,), see `BoxedStr`."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Input or output of a model.

    `shape` has -1 for a dimension that is known only at run time, and is None if even the rank is
    unknown; `dtype` is None if unknown (a Python model that did not say), `core.dtype.TEXT` for
    texts, of which an instance has one. `max_rows` is the limit of a dynamic first dimension; 0 if
    none is known. `example` is a likely value of an instance as JSON, such as a category that the
    model has learnt. `columns` are the names of the values of a row, if the model knows them.
    A request may leave out an input that `is_optional`: it is `default` then, and None is an
    argument None, which is an empty array on the way to the backend. All instances of a batch
    share one value of an argument (`is_argument`): it has no batch dimension.
    `symbols` are the names of the dimensions, "" for those without one; () if there are none.
    `trial` is a shape with which the model has run, () if it has not. `labels` are those of the
    classes that an output has values of.
    """

    name: str
    dtype: "np.dtype[Any] | None"
    shape: tuple[int, ...] | None
    max_rows: int = 0
    example: str | float | list[float] | None = None
    columns: tuple[str, ...] = ()
    is_argument: bool = False
    is_optional: bool = False
    default: float | None = None
    symbols: tuple[str, ...] = ()
    trial: tuple[int, ...] = ()
    labels: tuple[str, ...] = ()

    @property
    def is_static(self) -> bool:
        return self.shape is not None and all(dim >= 0 for dim in self.shape)

    def zeros(self, shape: Sequence[int] | None) -> "np.ndarray[Any, Any] | None":
        """Return an array of zeros, the default of an optional input; None if it is unknown."""
        if self.is_optional and self.default is None:
            return np.empty(0, self.dtype)
        if shape is None or self.dtype is None:
            return None
        array = np.zeros([abs(dim) for dim in shape], self.dtype)
        if self.default is not None:
            array[...] = self.default
        return array


@dataclass(frozen=True, slots=True)
class Signature:
    """Inputs and outputs of one graph of a model, in call order."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]


def to_value(result: object) -> Value:
    """Convert the result of a stage to a value.  Raises StageFailed for other types.

    Accepts arrays, numpy and Python numbers, bool, str, bytes, lists and tuples of numbers, and
    anything with `asnumpy()` (a MindSpore Tensor) or `__array__` (a PyTorch tensor).
    """
    if type(result) is np.ndarray:
        array = result
    elif isinstance(result, _PLAIN):
        return result
    elif isinstance(result, _BUFFERS):
        return bytes(result)
    else:
        array = _to_array(result)
    if array.dtype not in dtypes.BY_NUMPY:
        raise StageFailed(
            f"Get illegal result data with type {type(result)}, dtype {array.dtype}; accepted are "
            "numpy arrays and numbers of bool, int8-64, uint8-64 and float16-64, str and bytes"
        )
    return array if array.flags.c_contiguous else np.ascontiguousarray(array)


def _to_array(result: object) -> "np.ndarray[Any, Any]":
    if isinstance(result, np.ndarray):
        return result
    if hasattr(result, "asnumpy"):
        return np.asarray(result.asnumpy())
    if not isinstance(result, _ACCEPTED) and not hasattr(result, "__array__"):
        reason = ": the function has no return" if result is None else ""
        raise StageFailed(
            f"Get illegal result data with type {type(result)}{reason}; accepted are arrays, "
            "numbers, bool, str, bytes, and lists of numbers"
        )
    try:
        return np.asarray(result)
    except (ValueError, TypeError, OverflowError) as error:
        raise StageFailed(f"Get illegal result data with type {type(result)}: {error}") from error


def to_argument(value: Value) -> "np.ndarray[Any, Any] | str":
    """Convert a value to the argument of a stage function, with bytes as a uint8 array."""
    return np.frombuffer(value, dtype=np.uint8) if isinstance(value, bytes) else value
