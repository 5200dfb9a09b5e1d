"""Whether an instance fits a model: its values in the types and shapes that the model wants.

Pure numpy: runs nothing.
"""

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from mindspore_serving.core import casting
from mindspore_serving.core import dtype as dtypes
from mindspore_serving.core.declaration import DeclaredModel
from mindspore_serving.core.dtype import TEXT
from mindspore_serving.core.value import Signature, TensorSpec, Value, to_argument
from mindspore_serving.errors import InvalidInputs, InvalidTensor

Array: TypeAlias = "np.ndarray[Any, Any]"
Row: TypeAlias = "tuple[Array, ...]"
"""One instance: its arrays, one per input."""


def check_instance(spec: DeclaredModel, signature: Signature, instance: Sequence[Value]) -> Row:
    """The arrays of `instance` in the shapes the model wants.

    An array of another type is cast where `casting.cast` does, one of the right size but another
    shape is reshaped.  Where the model leaves dimensions open, rank and known dimensions must fit
    instead.  Raises InvalidInputs.
    """
    given, wanted = len(instance), len(signature.inputs)
    if given != wanted:
        relation = f"{given} {'less' if given < wanted else 'greater'}"
        raise InvalidInputs(f"Given model inputs size {relation} than model inputs size {wanted}")
    return tuple(
        (_fit_text if tensor.dtype == TEXT else _fit)(
            i, value, tensor, instance_shape(spec, i, tensor)
        )
        for i, (value, tensor) in enumerate(zip(instance, signature.inputs, strict=True))
    )


def instance_shape(spec: DeclaredModel, index: int, tensor: TensorSpec) -> tuple[int, ...] | None:
    """The shape that input `index` has in one instance; None if unknown."""
    if tensor.shape is None:
        return None
    return tensor.shape[1:] if is_batched(spec, index) else tensor.shape


def is_batched(spec: DeclaredModel, index: int) -> bool:
    """Whether input `index` has a batch dimension."""
    return spec.with_batch_dim and index not in spec.without_batch_dim_inputs


def _fit(index: int, value: Value, tensor: TensorSpec, shape: tuple[int, ...] | None) -> Array:
    if isinstance(value, str) or (isinstance(value, bytes) and tensor.dtype is not None):
        raise InvalidTensor(_type_text(index, value, tensor, shape))
    array = np.asarray(to_argument(value))
    if tensor.dtype is not None and array.dtype != tensor.dtype:
        try:
            array = casting.cast(array, tensor.dtype)
        except InvalidInputs as error:
            raise InvalidTensor(f"{_type_text(index, value, tensor, shape)}: {error}") from None
    if shape is None or array.shape == shape:
        return np.ascontiguousarray(array) if array.ndim else array
    if all(dim >= 0 for dim in shape):
        _check_size(index, array, tensor, shape)
        return np.ascontiguousarray(array).reshape(shape)
    _check_open_shape(index, array, tensor, shape)
    return np.ascontiguousarray(array)


def _check_size(index: int, array: Array, tensor: TensorSpec, shape: tuple[int, ...]) -> None:
    if tensor.dtype is None:
        given, wanted, what = array.size, math.prod(shape), "element count"
    else:
        given, wanted, what = array.nbytes, math.prod(shape) * tensor.dtype.itemsize, "size"
    if given != wanted:
        raise InvalidTensor(
            f"Given model input {index} {what} {given} not match the {what} {wanted} defined in "
            f"model{_both(array, tensor, shape)}"
        )


def _check_open_shape(index: int, array: Array, tensor: TensorSpec, shape: tuple[int, ...]) -> None:
    fits = len(shape) == array.ndim and all(
        want in (-1, have) for want, have in zip(shape, array.shape, strict=False)
    )
    if not fits:
        raise InvalidTensor(
            f"Given model input {index} shape {list(array.shape)} not match the shape "
            f"{list(shape)} defined in model, where -1 is any size{_both(array, tensor, shape)}"
        )


def _type_text(index: int, value: Value, tensor: TensorSpec, shape: tuple[int, ...] | None) -> str:
    given = dtypes.of(value)
    name = given.kind if given is not None else str(getattr(value, "dtype", type(value)))
    if tensor.dtype is None:
        return f"Given model input {index} data type {name}, but a model takes arrays only"
    wanted = dtypes.BY_SPEC[tensor.dtype].kind
    return (
        f"Given model input {index} data type {name} not match the data type {wanted} "
        f"defined in model{_both(value, tensor, shape)}"
    )


def _both(value: Value, tensor: TensorSpec, shape: tuple[int, ...] | None) -> str:
    """What was given and what is wanted, in the words of users."""
    if isinstance(value, np.ndarray):
        given = f"{value.dtype} {list(value.shape)}"
    else:
        given = f"a {type(value).__name__}"
    wanted = "any shape" if shape is None else list(shape)
    return f"; input '{tensor.name}': {given} given, {tensor.dtype or 'any type'} {wanted} wanted"


def _fit_text(index: int, value: Value, tensor: TensorSpec, shape: tuple[int, ...] | None) -> Array:
    """The text `value` as an array of shape (), or of ones if the model wants dimensions.

    Raises InvalidTensor if it is no text.
    """
    if not isinstance(value, str):
        given = dtypes.of(value)
        name = given.kind if given is not None else str(type(value))
        raise InvalidTensor(
            f"Given model input {index} data type {name} not match the data type "
            f"{dtypes.STR.kind} defined in model: input '{tensor.name}' is one text"
        )
    array = np.empty((1,) * len(shape or ()), object)
    array[...] = str(value)
    return array
