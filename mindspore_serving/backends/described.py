"""Models whose tensors a description names: checks against the loaded model, and its warm-up.

A description is config.pbtxt of Triton, for one.  Knows no runtime.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from mindspore_serving.backends.base import Array, LoadedModel
from mindspore_serving.core.declaration import DeclaredModel, WarmUpInput, WarmUpSample
from mindspore_serving.core.dtype import BY_SPEC, TEXT
from mindspore_serving.core.examples import MAX_ELEMENTS
from mindspore_serving.core.value import Signature, TensorSpec
from mindspore_serving.errors import ServingError, StartError

_POSITIONAL = (
    "pytorch",
    "sklearn",
    "xgboost",
    "lightgbm",
    "catboost",
)  # formats without names for clients
_INDEX = re.compile(r"__([0-9]{1,4})\Z")  # as INPUT__0


class DescribedModel:
    """A loaded model with the names, dtypes and shapes of its description."""

    def __init__(self, model: LoadedModel, signature: Signature) -> None:
        self._model = model
        self.signature = (signature,)

    def run(self, inputs: Sequence[Array], subgraph: int = 0) -> list[Array]:
        """Run the model, see `LoadedModel.run`."""
        return self._model.run(inputs, subgraph)

    def close(self) -> None:
        """Close the model."""
        self._model.close()


def check(spec: DeclaredModel, model: LoadedModel) -> LoadedModel:
    """Return `model`, with what `spec` says of its tensors, after the runs to warm it up.

    Raises StartError if they contradict each other, or if a run fails.
    """
    if spec.controls and spec.format not in _POSITIONAL:
        _check_controls(spec, model.signature[0].inputs)
    if (spec.inputs or spec.outputs) and spec.factory is None:
        (signature, *_) = model.signature
        inputs = _matched("input", spec, spec.inputs, signature.inputs)
        outputs = _matched("output", spec, spec.outputs, signature.outputs)
        model = DescribedModel(model, Signature(inputs, outputs))
    for sample in spec.warm_up:
        _run(spec, model, sample)
    return model


def _check_controls(spec: DeclaredModel, tensors: tuple[TensorSpec, ...]) -> None:
    """Check that the model has the control inputs of the description.  Raises StartError."""
    dtypes = {tensor.name: tensor.dtype for tensor in tensors}
    for control in spec.controls:
        where = f"control_input '{control.name}' of model '{spec.key}'"
        if control.name not in dtypes:
            raise StartError(f"{where}: the model has no such input, it has {', '.join(dtypes)}")
        dtype = dtypes[control.name]
        name = control.dtype if dtype is None else BY_SPEC[dtype].name
        if name != control.dtype:
            raise StartError(f"{where} is {control.dtype}, but the model's input is {name}")


def _matched(
    kind: str,
    spec: DeclaredModel,
    described: tuple[TensorSpec, ...],
    tensors: tuple[TensorSpec, ...],
) -> tuple[TensorSpec, ...]:
    """Return the model's `tensors`, in its order, with names, dtypes and shapes of `described`."""
    if not described:
        return tensors
    optional = [tensor for tensor in tensors if tensor.is_optional]
    if optional and not {tensor.name for tensor in described} & {t.name for t in optional}:
        required = tuple(tensor for tensor in tensors if not tensor.is_optional)
        matched = iter(_matched(kind, spec, described, required))
        return tuple(tensor if tensor.is_optional else next(matched) for tensor in tensors)
    names = [tensor.name for tensor in tensors]
    where = f"model '{spec.key}'"
    if kind == "input" and tensors and tensors[0].shape == (-1, len(described)) != (-1, 1):
        return (_with_columns(where, described, tensors[0]),)
    if spec.format in _POSITIONAL and not {tensor.name for tensor in described} <= set(names):
        if tensors and len(described) != len(tensors):
            raise StartError(
                f"{where} has {len(tensors)} {kind}s, {len(described)} are described: "
                f"{', '.join(tensor.name for tensor in described)}"
            )
        ordered = _in_order(described)
        return tuple(
            _merged(f"{kind} {i} of {where}", *pair)
            for i, pair in enumerate(zip(ordered, tensors or ordered, strict=True))
        )
    by_name = {tensor.name: tensor for tensor in described}
    unknown = by_name.keys() - set(names)
    missing = set(names) - by_name.keys() if kind == "input" else ()
    if unknown or missing:
        raise StartError(
            f"{where} has the {kind}s {', '.join(names)}, described are {', '.join(by_name)}"
        )
    return tuple(
        _merged(f"{kind} '{tensor.name}' of {where}", by_name[tensor.name], tensor)
        if tensor.name in by_name
        else tensor
        for tensor in tensors
    )


def _with_columns(where: str, described: tuple[TensorSpec, ...], row: TensorSpec) -> TensorSpec:
    """Return the input of a row, with described columns as the names of its values."""
    by_name = {column.name: column for column in described}
    columns = row.columns or tuple(by_name)
    if set(columns) != by_name.keys():
        raise StartError(
            f"{where} has the columns {', '.join(columns)}, described are {', '.join(by_name)}"
        )
    example = [by_name[name].example for name in columns]
    numbers = [value for value in example if isinstance(value, int | float)]
    is_shown = len(numbers) == len(columns) <= MAX_ELEMENTS
    return replace(row, columns=columns, example=numbers if is_shown else None)


def _in_order(described: tuple[TensorSpec, ...]) -> tuple[TensorSpec, ...]:
    """Return tensors by the numbers that end their names, if all have one, else as they are."""
    matches = [_INDEX.search(tensor.name) for tensor in described]
    by_number = {int(match[1]): t for match, t in zip(matches, described, strict=True) if match}
    if by_number.keys() != set(range(len(described))):
        return described
    return tuple(by_number[number] for number in range(len(described)))


def _merged(where: str, described: TensorSpec, tensor: TensorSpec) -> TensorSpec:
    """Return the tensor with both descriptions.  Raises StartError if they differ."""
    if described.dtype is not None and tensor.dtype not in (None, described.dtype):
        raise StartError(f"{where} has dtype {tensor.dtype}, described is {described.dtype}")
    dtype = described.dtype if tensor.dtype is None else tensor.dtype
    shape = tensor.shape
    if described.shape is not None and dtype != TEXT:
        shape = _common(described.shape, tensor.shape)
    if shape is None and described.shape is not None and dtype != TEXT:
        shown = [list(described.shape), list(tensor.shape or ())]
        raise StartError(
            f"{where} has shape {shown[1]}, described is {shown[0]}: -1 is any size; in "
            "config.pbtxt the first dimension is left out of dims if max_batch_size is over 0"
        )
    example = tensor.example if described.example is None else described.example
    return replace(
        tensor,
        name=described.name,
        dtype=dtype,
        shape=shape,
        example=example,
        labels=described.labels,
    )


def _common(first: tuple[int, ...], second: tuple[int, ...] | None) -> tuple[int, ...] | None:
    """Return the shape that both allow, with -1 where neither has a size; None if they differ."""
    if second is None:
        return first
    if len(first) != len(second):
        return None
    sizes = tuple(map(max, first, second))
    fits = all(size in (a, -1) or a < 0 for a, size in zip(first, sizes, strict=True))
    fits = fits and all(size in (b, -1) or b < 0 for b, size in zip(second, sizes, strict=True))
    return sizes if fits else None


def _run(spec: DeclaredModel, model: LoadedModel, sample: WarmUpSample) -> None:
    where = f"warm-up {sample.name!r} of model '{spec.key}'"
    names = [tensor.name for tensor in model.signature[0].inputs]
    if sample.inputs.keys() != set(names):
        raise StartError(
            f"{where} has the inputs {', '.join(sample.inputs)}, the model has {', '.join(names)}"
        )
    arrays = [_array(where, sample.inputs[name], sample.batch_size) for name in names]
    try:
        for _ in range(sample.count):
            model.run(arrays)
    except ServingError as error:
        raise StartError(f"{where} failed: {error}") from error


def _array(where: str, source: WarmUpInput, batch_size: int) -> Array:
    shape = (batch_size, *source.shape) if batch_size else source.shape
    dtype = np.dtype(source.dtype)
    if not source.file:
        if not source.is_random:
            return np.zeros(shape, dtype)
        size = math.prod(shape)
        return np.random.default_rng(0).integers(0, 2, size).astype(dtype).reshape(shape)
    size = math.prod(source.shape) * dtype.itemsize
    try:
        with open(source.file, "rb") as file:
            data = file.read(size + 1)
    except OSError as error:
        raise StartError(f"{where}: its file cannot be read: {error}") from None
    if len(data) != size:
        raise StartError(f"{where}: '{source.file}' has not the {size} bytes of {source}")
    row = np.frombuffer(data, dtype).reshape(source.shape)
    return np.ascontiguousarray(np.broadcast_to(row, shape))
