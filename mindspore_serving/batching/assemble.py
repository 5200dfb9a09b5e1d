"""Stack instances into the arrays of one model run, and split its outputs into instances.

Pure numpy: no model is run here.  An *instance* has the model's shape without the batch dimension,
if the model has one (`with_batch_dim`, `without_batch_dim_inputs`).
"""

from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np

from mindspore_serving.batching.validate import Row, is_batched
from mindspore_serving.core.declaration import DeclaredModel
from mindspore_serving.core.value import Signature, TensorSpec, Value
from mindspore_serving.errors import StageFailed, StartError

_HINT = (
    "if the first dimension is another, the model needs with_batch_dim=False: in declare_model of "
    "a servable_config.py; of a model file alone by serve --no-batch-dim, or "
    "ServableStartConfig(with_batch_dim=False)"
)

Array: TypeAlias = "np.ndarray[Any, Any]"
Results: TypeAlias = "tuple[Value, ...]"
"""Outputs of one instance: an array or a text each."""


def batch_size(spec: DeclaredModel, signatures: Sequence[Signature]) -> int:
    """Return the batch size that the graphs of a model share: 0 for any, 1 without batch dimension.

    A graph with an open batch dimension adapts to one with a fixed size.  Raises StartError if the
    shapes contradict each other.
    """
    sizes = [_graph_batch_size(spec, signature, i) for i, signature in enumerate(signatures)]
    fixed = {size for size in sizes if size}
    if len(fixed) > 1:
        raise StartError(
            f"The subgraphs of model {spec.key} should have equal batch size, they have {sizes}"
        )
    return fixed.pop() if fixed else 0


def graph_batch_size(spec: DeclaredModel, signature: Signature) -> int:
    """Return the batch size of one graph, like `batch_size`; its shapes must agree already."""
    if not spec.with_batch_dim:
        return 1
    batched = [tensor for i, tensor in enumerate(signature.inputs) if is_batched(spec, i)]
    return max((_first_dim(tensor) for tensor in batched), default=0)


def without_arguments(spec: DeclaredModel, signature: Signature) -> DeclaredModel:
    """Return `spec` with the scalar arguments of the model as inputs without a batch dimension."""
    arguments = [i for i, tensor in enumerate(signature.inputs) if tensor.is_argument]
    without = dict.fromkeys((*spec.without_batch_dim_inputs, *arguments))
    return replace(spec, without_batch_dim_inputs=tuple(without)) if arguments else spec


def max_rows(spec: DeclaredModel, signature: Signature) -> int:
    """Return the limit of a graph's open batch dimension, in instances; 0 for no limit."""
    limits = [tensor.max_rows for i, tensor in enumerate(signature.inputs) if is_batched(spec, i)]
    return min(filter(None, [spec.max_batch_size, *limits]), default=0)


def group(spec: DeclaredModel, rows: Sequence[Row]) -> list[list[int]]:
    """Group the indices of `rows` that can share a run, in order of first appearance.

    Rows of a group have equal dtypes and shapes, and equal values in inputs without a batch
    dimension.
    """
    if len(rows) == 1:
        return [[0]]
    if not spec.with_batch_dim:
        return [[i] for i in range(len(rows))]
    groups: dict[Hashable, list[int]] = {}
    for i, row in enumerate(rows):
        groups.setdefault(_key(spec, row), []).append(i)
    return list(groups.values())


def assemble(spec: DeclaredModel, rows: Sequence[Row], size: int) -> list[Array]:
    """Stack the rows of one group into the C-contiguous inputs of a run.

    `size` is the batch size: 0 for the number of rows, else the batch is padded with copies of the
    first row.  A batch of size 1 is a view of the row; a larger one is new memory.
    """
    if not spec.with_batch_dim:
        return list(rows[0])
    return [
        _stack([row[i] for row in rows], size or len(rows)) if is_batched(spec, i) else array
        for i, array in enumerate(rows[0])
    ]


def split(spec: DeclaredModel, outputs: Sequence[Array], count: int, size: int) -> list[Results]:
    """Split the outputs of a run of batch size `size` into its first `count` instances.

    The instances share one new array per output.  Raises StageFailed if an output does not have
    `size` rows.
    """
    if not spec.with_batch_dim:
        copies = [np.array(output, order="C") for output in outputs]
        return [tuple(_result(i, output) for i, output in enumerate(copies))]
    for i, output in enumerate(outputs):
        if output.ndim == 0 or output.shape[0] != size:
            raise StageFailed(
                f"The shape {list(output.shape)} of model output {i} does not match current batch "
                f"size {size}: the first dimension of every output is the batch; {_HINT}"
            )
    kept = [np.array(output[:count], order="C") for output in outputs]
    return [
        tuple(_result(n, output[i, ...]) for n, output in enumerate(kept)) for i in range(count)
    ]


def _result(index: int, output: Array) -> Value:
    return _to_text(index, output) if _is_text(output) else output


def _graph_batch_size(spec: DeclaredModel, signature: Signature, subgraph: int) -> int:
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
    inputs = [(i, tensor) for i, tensor in enumerate(signature.inputs) if is_batched(spec, i)]
    if not inputs:
        raise StartError(
            f"No model input has a batch dimension, declare with_batch_dim=False, {where}; {_HINT}"
        )
    for i, tensor in inputs:
        size = _common_size(size, tensor, f"model input {i}", where)
    for i, tensor in enumerate(signature.outputs):
        _common_size(size, tensor, f"model output {i}", where)
    return size


def _common_size(size: int, tensor: TensorSpec, name: str, where: str) -> int:
    """Return the fixed batch size of the tensors so far (`size`) and `tensor`; 0 if still open."""
    if tensor.shape is None:
        return size
    if tensor.shape == ():
        raise StartError(
            f"The shape of {name} cannot be empty, when with_batch_dim is True its first dimension "
            f"is the batch, {where}; {_HINT}"
        )
    if tensor.shape[0] == 0:
        raise StartError(f"The batch size of {name} should be > 0, but it is 0, {where}")
    first = _first_dim(tensor)
    if size and first and first != size:
        raise StartError(
            f"The batch size {first} of {name} does not match current batch size {size}, {where}; "
            f"{_HINT}"
        )
    return size or first


def _first_dim(tensor: TensorSpec) -> int:
    """Return the first dimension of a tensor; 0 if it is open or unknown."""
    return max(tensor.shape[0], 0) if tensor.shape else 0


def _key(spec: DeclaredModel, row: Row) -> Hashable:
    shapes = tuple((array.dtype.char, array.shape) for array in row)
    shared = tuple(array.tobytes() for i, array in enumerate(row) if not is_batched(spec, i))
    return shapes, shared


def _stack(arrays: Sequence[Array], size: int) -> Array:
    first = arrays[0]
    if size == 1:
        return first[np.newaxis]
    batch = np.empty((size, *first.shape), first.dtype)
    for i, array in enumerate(arrays):
        batch[i] = array[()]  # unpacks a 0-d array of objects (texts)
    batch[len(arrays) :] = first
    return batch


def _is_text(array: Array) -> bool:
    """Return whether an output of a model consists of texts."""
    return array.dtype.kind in "OU"


def _to_text(index: int, output: Array) -> str:
    """Return the text of one instance; raise StageFailed unless `output` is exactly one text."""
    if output.size != 1 or not isinstance(text := output.reshape(-1)[0], str):
        raise StageFailed(
            f"Model output {index} is {output.size} texts for an instance, replies carry one: have "
            "the model give an output for each"
        )
    return str(text)
