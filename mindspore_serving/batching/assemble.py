"""Instances to the arrays of one model run, and its results back to instances.

Pure numpy: runs nothing.  An *instance* has the model's shape without the batch dimension, if there
is one (`with_batch_dim`, `without_batch_dim_inputs`).
"""

import math
from collections.abc import Hashable, Sequence
from typing import Any, TypeAlias

import numpy as np

from mindspore_serving.batching.texts import fit_text, is_text, to_text
from mindspore_serving.core import casting
from mindspore_serving.core import dtype as dtypes
from mindspore_serving.core.declaration import ModelSpec
from mindspore_serving.core.dtype import TEXT
from mindspore_serving.core.value import Signature, TensorSpec, Value, to_argument
from mindspore_serving.errors import InvalidInputs, InvalidTensor, StageFailed, StartError

Array: TypeAlias = "np.ndarray[Any, Any]"
Row: TypeAlias = "tuple[Array, ...]"
"""One instance: its arrays, one per input."""
Results: TypeAlias = "tuple[Value, ...]"
"""What one instance gets: an array or text per output."""


def batch_size(spec: ModelSpec, signatures: Sequence[Signature]) -> int:
    """How many instances one run takes: fixed, or 0 if any number; 1 without a batch dimension.

    Several graphs take what the fixed ones take.  Raises StartError if shapes contradict.
    """
    sizes = [_graph_batch_size(spec, signature, i) for i, signature in enumerate(signatures)]
    fixed = {size for size in sizes if size}
    if len(fixed) > 1:
        raise StartError(
            f"The subgraphs of model {spec.key} should have equal batch size, they have {sizes}"
        )
    return fixed.pop() if fixed else 0


def graph_batch_size(spec: ModelSpec, signature: Signature) -> int:
    """`batch_size` of one graph whose shapes are known to agree."""
    if not spec.with_batch_dim:
        return 1
    batched = [tensor for i, tensor in enumerate(signature.inputs) if _is_batched(spec, i)]
    return max((_first_dim(tensor) for tensor in batched), default=0)


def check_instance(spec: ModelSpec, signature: Signature, instance: Sequence[Value]) -> Row:
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
        (fit_text if tensor.dtype == TEXT else _fit)(
            i, value, tensor, instance_shape(spec, i, tensor)
        )
        for i, (value, tensor) in enumerate(zip(instance, signature.inputs, strict=True))
    )


def instance_shape(spec: ModelSpec, index: int, tensor: TensorSpec) -> tuple[int, ...] | None:
    """The shape that input `index` has in one instance; None if unknown."""
    if tensor.shape is None:
        return None
    return tensor.shape[1:] if _is_batched(spec, index) else tensor.shape


def group(spec: ModelSpec, rows: Sequence[Row]) -> list[list[int]]:
    """Indices of `rows` that may share a run, in order of first appearance.

    A group has equal types and shapes, and equal content in inputs without a batch dimension.
    """
    if len(rows) == 1:
        return [[0]]
    if not spec.with_batch_dim:
        return [[i] for i in range(len(rows))]
    groups: dict[Hashable, list[int]] = {}
    for i, row in enumerate(rows):
        groups.setdefault(_key(spec, row), []).append(i)
    return list(groups.values())


def assemble(spec: ModelSpec, rows: Sequence[Row], size: int) -> list[Array]:
    """The inputs of one run over `rows`, which are of one group; C-contiguous.

    `size` is the batch dimension: 0 for as many as there are rows, else missing rows repeat the
    first.  A batch of one is a view of the row; anything larger is fresh memory.
    """
    if not spec.with_batch_dim:
        return list(rows[0])
    return [
        _stack([row[i] for row in rows], size or len(rows)) if _is_batched(spec, i) else array
        for i, array in enumerate(rows[0])
    ]


def split(spec: ModelSpec, outputs: Sequence[Array], count: int, size: int) -> list[Results]:
    """The first `count` instances of a run of batch dimension `size`.

    The rows share one fresh array per output.  Raises StageFailed naming one without `size` rows.
    """
    if not spec.with_batch_dim:
        copies = [np.array(output, order="C") for output in outputs]
        return [tuple(_result(i, output) for i, output in enumerate(copies))]
    for i, output in enumerate(outputs):
        if output.ndim == 0 or output.shape[0] != size:
            raise StageFailed(
                f"The shape {list(output.shape)} of model output {i} does not match current batch "
                f"size {size}: the first dimension of every output is the batch, or declare the "
                "model with with_batch_dim=False"
            )
    kept = [np.array(output[:count], order="C") for output in outputs]
    return [
        tuple(_result(n, output[i, ...]) for n, output in enumerate(kept)) for i in range(count)
    ]


def _result(index: int, output: Array) -> Value:
    return to_text(index, output) if is_text(output) else output


def _graph_batch_size(spec: ModelSpec, signature: Signature, subgraph: int) -> int:
    where = f"model: {spec.key}, subgraph: {subgraph}"
    for index in spec.without_batch_dim_inputs:
        if index >= len(signature.inputs):
            raise StartError(
                f"The without_batch_dim_inputs contain {index}, but the model has "
                f"{len(signature.inputs)} inputs, {where}"
            )
    if not spec.with_batch_dim:
        return 1
    size = 0
    inputs = [(i, tensor) for i, tensor in enumerate(signature.inputs) if _is_batched(spec, i)]
    if not inputs:
        raise StartError(
            f"No model input has a batch dimension, declare with_batch_dim=False, {where}"
        )
    for i, tensor in inputs:
        size = _agreed(size, tensor, f"model input {i}", where)
    for i, tensor in enumerate(signature.outputs):
        _agreed(size, tensor, f"model output {i}", where)
    return size


def _agreed(size: int, tensor: TensorSpec, what: str, where: str) -> int:
    """The fixed batch size, `size` so far or that of `tensor`; 0 if neither is fixed."""
    if tensor.shape is None:
        return size
    if tensor.shape == ():
        raise StartError(
            f"The shape of {what} cannot be empty, when with_batch_dim is True its first dimension "
            f"is the batch, {where}"
        )
    if tensor.shape[0] == 0:
        raise StartError(f"The batch size of {what} should be > 0, but it is 0, {where}")
    first = _first_dim(tensor)
    if size and first and first != size:
        raise StartError(
            f"The batch size {first} of {what} does not match current batch size {size}, {where}"
        )
    return size or first


def _first_dim(tensor: TensorSpec) -> int:
    """0 if it is open or unknown."""
    return max(tensor.shape[0], 0) if tensor.shape else 0


def _is_batched(spec: ModelSpec, index: int) -> bool:
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


def _key(spec: ModelSpec, row: Row) -> Hashable:
    shapes = tuple((array.dtype.char, array.shape) for array in row)
    shared = tuple(array.tobytes() for i, array in enumerate(row) if not _is_batched(spec, i))
    return shapes, shared


def _stack(arrays: Sequence[Array], size: int) -> Array:
    first = arrays[0]
    if size == 1:
        return first[np.newaxis]
    batch = np.empty((size, *first.shape), first.dtype)
    for i, array in enumerate(arrays):
        batch[i] = array[()]  # of an array of objects without dimensions, the object
    batch[len(arrays) :] = first
    return batch
