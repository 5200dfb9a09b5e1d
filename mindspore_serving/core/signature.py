"""Signatures of one instance: names, types and shapes of inputs and outputs, as far as known.

Plain data that is sent between processes and shown to clients. `core.value` has the signature of a
model with its batch dimension.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import msgspec

from mindspore_serving.core import examples
from mindspore_serving.core.examples import Example
from mindspore_serving.core.sampling_params import SAMPLING

Shape: TypeAlias = tuple[int | None, ...]
"""Sizes; None for a dynamic dimension."""


class ValueSpec(msgspec.Struct, frozen=True, array_like=True):
    """Input or output of one instance.

    `dtype` is a name of `core.dtype`, None if a Python stage decides; `shape` is None if the number
    of dimensions is unknown. An input that `is_optional` has a default. `parameter` is the name of
    the sampling parameter that it sets, "" for none, and `default` its default; None for no number.
    `declared` is the example of its author, if there is one. `columns` are the names of the values
    of a row, if the model knows them. `labels` are those of classes, by index.
    """

    name: str
    dtype: str | None = None
    shape: Shape | None = None
    is_optional: bool = False
    parameter: str = ""
    default: float | None = None
    declared: Example | None = None
    columns: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()

    @property
    def example(self) -> Example:
        """Value that is likely to be accepted."""
        return self.declared or examples.likely(self.name, self.dtype, self.shape)


class InstanceSignature(msgspec.Struct, frozen=True, array_like=True):
    """Inputs and outputs of a method, or of one graph of a model.

    There are no outputs if their number is unknown before a run.  Tensors of protocol v2 have a
    first dimension that counts instances if it `is_batched`; else a request has one instance with
    whole tensors, for `no_batch_reason` if that was decided by the model's shapes.  A method that
    `has_state` takes requests in sequences.
    """

    inputs: tuple[ValueSpec, ...] = ()
    outputs: tuple[ValueSpec, ...] = ()
    is_batched: bool = True
    no_batch_reason: str = ""
    has_state: bool = False


@dataclass(frozen=True, slots=True)
class ServableSignature:
    """Servable version, all loaded versions (ascending), and its methods by name.

    `sticky_header` is the header that chooses a version, "" if there is none.
    """

    name: str
    version: int
    versions: tuple[int, ...]
    methods: Mapping[str, InstanceSignature]
    sticky_header: str = ""


def describe_batch(signature: InstanceSignature) -> str:
    """Return a line about requests of several instances; "" if tensors can be stacked."""
    if signature.is_batched:
        return ""
    reason = signature.no_batch_reason or "set by with_batch_dim"
    return f"none, a run has whole tensors: {reason}"


def describe_inputs(specs: Iterable[ValueSpec]) -> list[dict[str, Any]]:
    """Return specs as `describe` does, with "example": {"value": 1.0, "shape": [3, 1]}."""
    specs = tuple(specs)
    shown = [{"value": spec.example.value, "shape": [*spec.example.shape]} for spec in specs]
    return [
        {**row, "example": example} for row, example in zip(describe(specs), shown, strict=True)
    ]


def describe(specs: Iterable[ValueSpec]) -> list[dict[str, Any]]:
    """Return specs as JSON: {"name": "x", "dtype": "float32", "shape": [3, null]}.

    null is unknown or dynamic. A sampling parameter has range and default in "schema".
    """
    return [
        {"name": spec.name, "dtype": spec.dtype, "shape": _to_list(spec.shape)}
        | ({"optional": True} if spec.is_optional else {})
        | ({"columns": [*spec.columns]} if spec.columns else {})
        | ({"schema": schema_of(spec)} if spec.parameter else {})
        for spec in specs
    ]


def schema_of(spec: ValueSpec) -> dict[str, Any]:
    """Return the JSON schema of a sampling parameter: type, range, meaning and default."""
    row = SAMPLING[spec.parameter]
    schema = {"type": "integer" if row.kind is int else "number", **row.to_schema()}
    schema.pop("default", None)
    return schema if spec.default is None else {**schema, "default": spec.default}


def merge(specs: Iterable[ValueSpec]) -> ValueSpec:
    """Return what the `specs` of one value agree on, with the name of the first."""
    first, *rest = specs
    dtype = first.dtype if all(other.dtype == first.dtype for other in rest) else None
    shape = first.shape if all(other.shape == first.shape for other in rest) else None
    return msgspec.structs.replace(first, dtype=dtype, shape=shape)


def _to_list(shape: Shape | None) -> list[int | None] | None:
    return None if shape is None else list(shape)
