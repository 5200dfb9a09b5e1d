"""Check and convert the values of an instance to the dtypes and shapes of a model's inputs.

Pure numpy: no model is run here.
"""

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from mindspore_serving import log
from mindspore_serving.core import casting
from mindspore_serving.core import dtype as dtypes
from mindspore_serving.core.declaration import DeclaredModel
from mindspore_serving.core.dtype import TEXT
from mindspore_serving.core.value import Signature, TensorSpec, Value, to_argument
from mindspore_serving.errors import InvalidInputs, InvalidTensor

Array: TypeAlias = "np.ndarray[Any, Any]"
Row: TypeAlias = "tuple[Array, ...]"
"""One instance: its arrays, one per input."""
_MAX_LOGGED = 16  # shapes
_reshaped: set[tuple[str, tuple[int, ...]]] = set()  # inputs and shapes that were logged


def check_instance(spec: DeclaredModel, signature: Signature, instance: Sequence[Value]) -> Row:
    """Convert `instance` to arrays of the model's dtypes and shapes, one per input.

    An array of another dtype is cast as far as `casting.cast` allows; one of another shape but the
    same size is reshaped.  If the model leaves dimensions open, the rank and the known dimensions
    must match.  Optional inputs at the end may be left out.  Raises InvalidInputs.
    """
    instance = (*instance, *_defaults(signature.inputs[len(instance) :]))
    count, expected = len(instance), len(signature.inputs)
    if count != expected:
        relation = f"{count} {'less' if count < expected else 'greater'}"
        raise InvalidInputs(f"Given model inputs size {relation} than model inputs size {expected}")
    return tuple(
        (_text_array if tensor.dtype == TEXT else _array)(
            i, value, tensor, instance_shape(spec, i, tensor)
        )
        for i, (value, tensor) in enumerate(zip(instance, signature.inputs, strict=True))
    )


def _defaults(tensors: Sequence[TensorSpec]) -> list[Array]:
    """Return the defaults of inputs; nothing if one is not optional."""
    values = [tensor.zeros(tensor.shape) for tensor in tensors if tensor.is_optional]
    known = [value for value in values if value is not None]
    return known if len(known) == len(tensors) else []


def instance_shape(spec: DeclaredModel, index: int, tensor: TensorSpec) -> tuple[int, ...] | None:
    """Return the shape of input `index` in one instance; None if unknown."""
    if tensor.shape is None:
        return None
    return tensor.shape[1:] if is_batched(spec, index) else tensor.shape


def is_batched(spec: DeclaredModel, index: int) -> bool:
    """Return whether input `index` has a batch dimension."""
    return bool(spec.with_batch_dim) and index not in spec.without_batch_dim_inputs


def _array(index: int, value: Value, tensor: TensorSpec, shape: tuple[int, ...] | None) -> Array:
    if isinstance(value, str) or (isinstance(value, bytes) and tensor.dtype is not None):
        raise InvalidTensor(_type_error(index, value, tensor, shape))
    array = np.asarray(to_argument(value))
    if tensor.dtype is not None and array.dtype != tensor.dtype:
        try:
            array = casting.cast(array, tensor.dtype)
        except InvalidInputs as error:
            text = _type_error(index, value, tensor, shape, f": {error}")
            raise InvalidTensor(text) from None
    if shape is None or array.shape == shape:
        return np.ascontiguousarray(array) if array.ndim else array
    if all(dim >= 0 for dim in shape):
        _check_size(index, array, tensor, shape)
        _warn_of_shape(array, tensor, shape)
        return np.ascontiguousarray(array).reshape(shape)
    _check_open_shape(index, array, tensor, shape)
    return np.ascontiguousarray(array)


def _warn_of_shape(array: Array, tensor: TensorSpec, shape: tuple[int, ...]) -> None:
    """Log once that instances of another shape are accepted, as the original server does."""
    key = tensor.name, array.shape
    if key not in _reshaped and len(_reshaped) < _MAX_LOGGED:
        _reshaped.add(key)
        text = "input '%s' is sent with shape %s, and read as %s, which has the same size"
        log.warning(text, tensor.name, list(array.shape), list(shape))


def _check_size(index: int, array: Array, tensor: TensorSpec, shape: tuple[int, ...]) -> None:
    if tensor.dtype is None:
        size, expected, unit = array.size, math.prod(shape), "element count"
    else:
        size, expected, unit = array.nbytes, math.prod(shape) * tensor.dtype.itemsize, "size"
    if size != expected:
        rows = "; send each row as an instance" if array.shape[1:] == shape else ""
        raise InvalidTensor(
            f"{_comparison(array, tensor, shape)}{rows}. Given model input {index} {unit} {size} "
            f"not match the {unit} {expected} defined in model"
        )


def _check_open_shape(index: int, array: Array, tensor: TensorSpec, shape: tuple[int, ...]) -> None:
    fits = len(shape) == array.ndim and all(
        dim in (-1, actual) for dim, actual in zip(shape, array.shape, strict=False)
    )
    if not fits:
        raise InvalidTensor(
            f"{_comparison(array, tensor, shape)}. Given model input {index} shape "
            f"{list(array.shape)} not match the shape {list(shape)} defined in model, where -1 is "
            "any size"
        )


def _type_error(
    index: int,
    value: Value,
    tensor: TensorSpec,
    shape: tuple[int, ...] | None,
    reason: str = "",
) -> str:
    dtype = dtypes.of(value)
    name = dtype.kind if dtype is not None else str(getattr(value, "dtype", type(value)))
    if tensor.dtype is None:
        return f"Given model input {index} data type {name}, but a model takes arrays only"
    expected = dtypes.BY_SPEC[tensor.dtype].kind
    return (
        f"{_comparison(value, tensor, shape)}{reason}. Given model input {index} data type {name} "
        f"not match the data type {expected} defined in model"
    )


def _comparison(value: Value, tensor: TensorSpec, shape: tuple[int, ...] | None) -> str:
    """Describe the dtype and shape of `value` beside those that the model expects."""
    expected = "any shape" if shape is None else list(shape)
    dtype = tensor.dtype or "any type"
    return f"input '{tensor.name}' is {_shown(value)}, expected {dtype} {expected}"


def _shown(value: Value) -> str:
    if isinstance(value, np.ndarray):
        return f"{value.dtype} {list(value.shape)}"
    return "a str" if isinstance(value, str) else "bytes"


def _text_array(
    index: int, value: Value, tensor: TensorSpec, shape: tuple[int, ...] | None
) -> Array:
    """Return the text `value` as an array of shape (), or (1, ..., 1) in the model's rank.

    Raises InvalidTensor if `value` is no text.
    """
    if not isinstance(value, str):
        dtype = dtypes.of(value)
        name = dtype.kind if dtype is not None else str(type(value))
        raise InvalidTensor(
            f"input '{tensor.name}' is {_shown(value)}, expected one text. Given model input "
            f"{index} data type {name} not match the data type {dtypes.STR.kind} defined in model"
        )
    array = np.empty((1,) * len(shape or ()), object)
    array[...] = str(value)
    return array
