"""Check that a model's first axes are the batch, as far as one run of two instances shows.

Knows no format.
"""

from collections.abc import Sequence

import numpy as np

from mindspore_serving.backends.base import Array, LoadedModel
from mindspore_serving.batching import axes
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
        ran = _run(backend, spec, subgraph, signature)
        if ran is None:
            continue
        try:
            split(spec, ran[1], 1, ran[0])
        except StageFailed as error:
            raise StartError(f"model: {spec.key}, subgraph: {subgraph}: {error}") from error


def why_no_batch(backend: LoadedModel, spec: DeclaredModel) -> str:
    """Return why first axes are no batch, by the shapes of tensors and of one run; "" if they are.

    `axes.why_no_batch` decides.
    """
    for subgraph, signature in enumerate(backend.signature):
        if reason := axes.why_no_batch(spec, Signature(signature.inputs, ())):
            return reason
        ran = _run(backend, spec, subgraph, signature)
        shapes = () if ran is None else tuple(output.shape for output in ran[1])
        observed = None if ran is None else axes.ObservedRun(ran[0], shapes)
        if reason := axes.why_no_batch(spec, signature, observed):
            return reason
    return ""


def _run(
    backend: LoadedModel, spec: DeclaredModel, subgraph: int, signature: Signature
) -> tuple[int, list[Array]] | None:
    """Run a graph on instances of zeros; return the batch size and the outputs.

    None if the model does not describe its inputs, or fails.
    """
    size = graph_batch_size(spec, signature)
    count = min(_NUM_INSTANCES, size or max_rows(spec, signature) or _NUM_INSTANCES)
    row = _zeros(spec, signature)
    if row is None:
        return None
    try:
        return size or count, backend.run(assemble(spec, [row] * count, size), subgraph)
    except ServingError:
        return None


def _zeros(spec: DeclaredModel, signature: Signature) -> "Row | None":
    """Return an instance of zeros; None if the model does not describe its inputs."""
    values = []
    for index, tensor in enumerate(signature.inputs):
        shape = instance_shape(spec, index, tensor)
        if tensor.zeros(shape) is None:
            return None
        tried = tensor.trial[-len(shape) :] if tensor.trial and shape else ()
        values.append(_value(tensor, tried or [abs(size) for size in shape or ()]))  # 1 for any
    return tuple(values)


def _value(tensor: TensorSpec, shape: Sequence[int]) -> Array:
    zeros = np.full(shape, "", object) if tensor.dtype == TEXT else tensor.zeros(shape)
    assert zeros is not None
    return zeros
