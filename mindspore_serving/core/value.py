"""What flows through a method: an array, a text or bytes.  Knows neither wire nor models."""

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from mindspore_serving.core import dtype as dtypes
from mindspore_serving.errors import StageFailed

Value: TypeAlias = "np.ndarray[Any, Any] | str | bytes"
Instance: TypeAlias = dict[str, Value]

_ACCEPTED = (bool, int, float, np.generic, tuple, list)
_PLAIN, _BUFFERS = (str, bytes), (bytearray, memoryview)  # made once: `str | bytes` is made anew


class BoxedStr(str):
    """A text that arrived with shape (1,); it is answered with that shape if passed through."""

    __slots__ = ()


class BoxedBytes(bytes):
    """Bytes that arrived with shape (1,)."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One input or output of a model.

    `shape` holds -1 for a dimension known only at run time, and is None if even the rank is
    unknown; `dtype` is None if unknown (a Python model that did not say), `core.dtype.TEXT` for
    texts, of which an instance has one.  `max_rows` is the limit of an open first dimension; 0 if
    there is none that is known.
    """

    name: str
    dtype: "np.dtype[Any] | None"
    shape: tuple[int, ...] | None
    max_rows: int = 0

    @property
    def is_static(self) -> bool:
        return self.shape is not None and all(dim >= 0 for dim in self.shape)


@dataclass(frozen=True, slots=True)
class Signature:
    """The inputs and outputs of one graph of a model, in call order."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]


def to_value(result: object) -> Value:
    """What a stage returned, as a Value.  Raises StageFailed for a type that cannot be sent.

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
    """A Value as a stage function sees it: bytes become a uint8 array, as they always did."""
    return np.frombuffer(value, dtype=np.uint8) if isinstance(value, bytes) else value
