"""Decide whether the first dimensions of a model's inputs and outputs count instances.

Pure: it sees shapes, names of dimensions and the shapes of a run; no model is run here.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from mindspore_serving.core.declaration import DeclaredModel
from mindspore_serving.core.value import Signature, TensorSpec

_BATCH = re.compile(r"\b(n_?)?batch(_?(size|dim|axis))?\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class ObservedRun:
    """Shapes of the outputs of a run on `count` stacked instances."""

    count: int
    shapes: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class _Tensor:
    """Input or output of known rank, with its name in sentences."""

    label: str
    spec: TensorSpec

    @property
    def shape(self) -> tuple[int, ...]:
        return self.spec.shape or ()

    @property
    def first(self) -> str:
        """Name of the first dimension; "" if it has none."""
        return self.spec.symbols[0] if self.spec.symbols else ""


def why_no_batch(
    spec: DeclaredModel, signature: Signature, observed: ObservedRun | None = None
) -> str:
    """Return why the first dimensions of a graph do not count instances; "" if nothing says so.

    They do not if an input is a scalar, if sizes differ, or if a dimension is the first of one
    tensor and another one of a second.  A size of 1 beside an open one is a batch of one instance.
    Inputs in `without_batch_dim_inputs` and tensors of unknown rank say nothing.  An `observed` run
    overrides the sizes of outputs, which exporters often leave as they were traced.
    """
    inputs = _known("input", signature.inputs, spec.without_batch_dim_inputs)
    outputs = _known("output", signature.outputs, ())
    reason = _scalar(inputs) or _moved(inputs, outputs) or _sizes(inputs)
    if reason:
        return reason
    if observed is not None:
        return _observed(signature, observed)
    return _scalar(outputs) or _output_sizes(inputs, outputs)


def _known(kind: str, specs: Sequence[TensorSpec], without: Sequence[int]) -> list[_Tensor]:
    return [
        _Tensor(f"{kind} '{spec.name}'", spec)
        for index, spec in enumerate(specs)
        if spec.shape is not None and index not in without
    ]


def _scalar(tensors: Sequence[_Tensor]) -> str:
    return next((f"{tensor.label} is a scalar" for tensor in tensors if not tensor.shape), "")


def _moved(inputs: Sequence[_Tensor], outputs: Sequence[_Tensor]) -> str:
    """Compare names: a dimension that is first elsewhere, or has the name of a batch."""
    tensors = [*inputs, *outputs]
    firsts = {tensor.first: tensor for tensor in reversed(inputs) if tensor.first}
    for tensor in tensors:
        for axis, name in enumerate(tensor.spec.symbols[1:], 1):
            if not name or name == tensor.first:
                continue
            if name in firsts:
                return (
                    f"dimension '{name}' is the first of {firsts[name].label}, but number "
                    f"{axis + 1} of {tensor.label}"
                )
            if _BATCH.search(name) and not _BATCH.search(tensor.first):
                return f"dimension '{name}' is number {axis + 1} of {tensor.label}"
    return ""


def _sizes(inputs: Sequence[_Tensor]) -> str:
    """Compare the first sizes of inputs; 0 is left to `assemble.batch_size`, which refuses it."""
    known: _Tensor | None = None
    for tensor in inputs:
        size, other = tensor.shape[0], tensor.shape[0] if known is None else known.shape[0]
        if size != other and 0 not in (size, other) and {size, other} != {-1, 1}:
            assert known is not None
            return _difference(known, tensor)
        if known is None or other < 0:  # a fixed size decides more than an open one
            known = tensor
    return ""


def _output_sizes(inputs: Sequence[_Tensor], outputs: Sequence[_Tensor]) -> str:
    """Compare the fixed first sizes of outputs with those of the inputs."""
    first = max(inputs, key=lambda tensor: tensor.shape[0], default=None)
    for tensor in outputs if first is not None else ():
        assert first is not None
        size, expected = tensor.shape[0], first.shape[0]
        if size > 0 and size != (expected if expected > 0 else 1):
            return _difference(first, tensor)
    return ""


def _difference(first: _Tensor, second: _Tensor) -> str:
    sizes = [_shown(tensor.shape[0]) for tensor in (first, second)]
    return f"the first dimension of {first.label} is {sizes[0]}, that of {second.label} {sizes[1]}"


def _shown(size: int) -> str:
    return "any size" if size < 0 else str(size)


def _observed(signature: Signature, observed: ObservedRun) -> str:
    names = [spec.name for spec in signature.outputs]
    for index, shape in enumerate(observed.shapes):
        if shape[:1] != (observed.count,):
            name = names[index] if len(names) == len(observed.shapes) else str(index)
            return f"output '{name}' has shape {list(shape)} in a run of {observed.count} instances"
    return ""
