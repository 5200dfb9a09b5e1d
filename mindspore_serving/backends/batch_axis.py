"""Batch dimensions of loaded models: which tensors have one, and at which axis.

`settle` decides what a declaration leaves open.  Knows no format.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from mindspore_serving import log
from mindspore_serving.backends import probing
from mindspore_serving.backends.base import Array, LoadedModel
from mindspore_serving.batching.axes import why_no_batch
from mindspore_serving.core.declaration import DeclaredModel
from mindspore_serving.core.value import Signature, TensorSpec
from mindspore_serving.errors import StageFailed, StartError, did_you_mean


class MovedAxisModel:
    """A loaded model whose batch dimensions are moved to the front."""

    def __init__(self, model: LoadedModel, axes: Mapping[str, int]) -> None:
        self._model = model
        self._inputs = [_axes(signature.inputs, axes) for signature in model.signature]
        self._outputs = [_axes(signature.outputs, axes) for signature in model.signature]
        self.signature = tuple(
            Signature(
                tuple(_move(spec, axes) for spec in signature.inputs),
                tuple(_move(spec, axes) for spec in signature.outputs),
            )
            for signature in model.signature
        )

    def run(self, inputs: Sequence[Array], subgraph: int = 0) -> list[Array]:
        """Run the model, see `LoadedModel.run`."""
        arrays = list(inputs)
        try:
            for index, axis in self._inputs[subgraph].items():
                arrays[index] = np.ascontiguousarray(np.moveaxis(arrays[index], 0, axis))
            outputs = self._model.run(arrays, subgraph)
            for index, axis in self._outputs[subgraph].items():
                outputs[index] = np.moveaxis(outputs[index], axis, 0)
        except np.exceptions.AxisError as error:
            raise StageFailed(f"batch_axis does not fit the shapes of the model: {error}") from None
        return outputs

    def close(self) -> None:
        """Close the model."""
        self._model.close()


def settle(
    spec: DeclaredModel, model: LoadedModel, *, can_probe: bool
) -> tuple[DeclaredModel, LoadedModel]:
    """Return the declaration with what it left open, and the model with its batch in front.

    With `can_probe`, a run on zeros shows the outputs' shapes.  Raises StartError for a
    `batch_axis` that does not fit the model.
    """
    if spec.batch_axis:
        return _with_axes(spec, model)
    if spec.with_batch_dim is False:
        return spec, model
    reasons = (why_no_batch(spec, signature) for signature in model.signature)
    reason = next(filter(None, reasons), "")
    if spec.with_batch_dim is True:
        if reason:
            log.warning(
                "model %s has with_batch_dim=True, but %s: if requests fail, set it to False, or "
                "batch_axis", spec.key, reason,
            )  # fmt: skip
        return spec, model
    batched = replace(spec, with_batch_dim=True)
    if can_probe:
        reason = probing.why_no_batch(model, batched)
    return replace(spec, with_batch_dim=not reason, no_batch_reason=reason), model


def _with_axes(spec: DeclaredModel, model: LoadedModel) -> tuple[DeclaredModel, LoadedModel]:
    if spec.with_batch_dim is False:
        raise StartError(f"model {spec.key} has a batch_axis, but with_batch_dim=False")
    inputs = [tensor.name for signature in model.signature for tensor in signature.inputs]
    outputs = [tensor.name for signature in model.signature for tensor in signature.outputs]
    for name, axis in spec.batch_axis.items():
        if name not in (*inputs, *outputs):
            raise StartError(
                f"batch_axis of model {spec.key} has {name!r}, known are "
                f"{', '.join((*inputs, *outputs))}{did_you_mean(name, (*inputs, *outputs))}"
            )
        if axis < 0 and name in outputs:
            raise StartError(
                f"batch_axis of model {spec.key} is {axis} for the output {name!r}, expected 0 or "
                "more: every output has a row for each instance"
            )
    for tensor in (t for graph in model.signature for t in (*graph.inputs, *graph.outputs)):
        axis = spec.batch_axis.get(tensor.name, 0)
        if tensor.shape is not None and axis >= len(tensor.shape):
            raise StartError(
                f"batch_axis of model {spec.key} is {axis} for {tensor.name!r}, which has the "
                f"shape {list(tensor.shape)}: axes are counted from 0, -1 is an input without"
            )
    names = [tensor.name for tensor in model.signature[0].inputs]
    without = [i for i, name in enumerate(names) if spec.batch_axis.get(name, 0) < 0]
    indices = (*spec.without_batch_dim_inputs, *without)
    settled = replace(
        spec, with_batch_dim=True, without_batch_dim_inputs=tuple(dict.fromkeys(indices))
    )
    return settled, MovedAxisModel(model, spec.batch_axis)


def _axes(tensors: Sequence[TensorSpec], axes: Mapping[str, int]) -> dict[int, int]:
    """Return the axes over 0, by the indices of `tensors`."""
    return {i: axis for i, spec in enumerate(tensors) if (axis := axes.get(spec.name, 0)) > 0}


def _move(spec: TensorSpec, axes: Mapping[str, int]) -> TensorSpec:
    axis = axes.get(spec.name, 0)
    if axis <= 0:
        return spec

    def moved(values: tuple[Any, ...]) -> tuple[Any, ...]:
        return (*values[axis : axis + 1], *values[:axis], *values[axis + 1 :])

    shape = None if spec.shape is None else moved(spec.shape)
    return replace(
        spec, shape=shape, max_rows=0, symbols=moved(spec.symbols), trial=moved(spec.trial)
    )
