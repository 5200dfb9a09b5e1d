"""Check that a model's first axes are the batch, as far as one run of two instances shows.

Knows no format.
"""

import numpy as np

from mindspore_serving.backends.base import Array, LoadedModel
from mindspore_serving.batching.assemble import assemble, graph_batch_size, max_rows, split
from mindspore_serving.batching.validate import Row, instance_shape
from mindspore_serving.core.declaration import DeclaredModel
from mindspore_serving.core.dtype import TEXT
from mindspore_serving.core.value import Signature, TensorSpec
from mindspore_serving.errors import ServingError, StageFailed, StartError

_NUM_INSTANCES = 2  # one would not distinguish a batch from another axis of size 1


def check_batch(backend: LoadedModel, spec: DeclaredModel) -> None:
    """Run each graph on zeros, if shapes and types are known.

    Raises StartError for an output whose first axis is not the batch: every request would fail.

    A model that does not run on zeros, or on axes of one where any size will do, is not checked.
    """
    for subgraph, signature in enumerate(backend.signature):
        size = graph_batch_size(spec, signature)
        count = min(_NUM_INSTANCES, size or max_rows(spec, signature) or _NUM_INSTANCES)
        row = _zeros(spec, signature)
        if row is None:
            continue
        try:
            outputs = backend.run(assemble(spec, [row] * count, size), subgraph)
        except ServingError:
            continue
        try:
            split(spec, outputs, count, size or count)
        except StageFailed as error:
            raise StartError(f"model: {spec.key}, subgraph: {subgraph}: {error}") from error


def _zeros(spec: DeclaredModel, signature: Signature) -> "Row | None":
    """Return an instance of zeros; None if the model does not describe its inputs."""
    values = []
    for index, tensor in enumerate(signature.inputs):
        shape = instance_shape(spec, index, tensor)
        if tensor.zeros(shape) is None:
            return None
        values.append(_value(tensor, [abs(size) for size in shape or ()]))  # 1 for any
    return tuple(values)


def _value(tensor: TensorSpec, shape: list[int]) -> Array:
    zeros = np.full(shape, "", object) if tensor.dtype == TEXT else tensor.zeros(shape)
    assert zeros is not None
    return zeros
