"""What one instance has to hold and gets back: names, types and shapes, as far as they are known.

Plain data that travels between processes and is shown to clients.  Of models as their files
describe them, with a batch dimension, see `core.value`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import msgspec

from mindspore_serving.core.sampling_params import SAMPLING

Shape: TypeAlias = tuple[int | None, ...]
"""Sizes; None for one that is free."""


class ValueSpec(msgspec.Struct, frozen=True, array_like=True):
    """An input or output of one instance.

    `dtype` is a name of `core.dtype`, None if a Python stage decides; `shape` is None if not even
    the number of dimensions is known.  An input that `is_optional` has a default.  `parameter` is
    the name of the sampling parameter that it is, "" for none, and `default` what that is if the
    request does not say; None for no number.
    """

    name: str
    dtype: str | None = None
    shape: Shape | None = None
    is_optional: bool = False
    parameter: str = ""
    default: float | None = None


class InstanceSignature(msgspec.Struct, frozen=True, array_like=True):
    """The inputs and outputs of a method, or of one graph of a model; no outputs if their number
    is not known before a run.
    """

    inputs: tuple[ValueSpec, ...] = ()
    outputs: tuple[ValueSpec, ...] = ()


@dataclass(frozen=True, slots=True)
class ServableSignature:
    """A servable version, all versions of it that were loaded (ascending), and its methods by
    name.
    """

    name: str
    version: int
    versions: tuple[int, ...]
    methods: Mapping[str, InstanceSignature]


def describe(specs: Iterable[ValueSpec]) -> list[dict[str, Any]]:
    """For JSON: {"name": "x", "dtype": "float32", "shape": [3, null]}; null is unknown or free.  Of
    a sampling parameter "schema" has its range and default.
    """
    return [
        {"name": spec.name, "dtype": spec.dtype, "shape": _to_list(spec.shape)}
        | ({"optional": True} if spec.is_optional else {})
        | ({"schema": schema_of(spec)} if spec.parameter else {})
        for spec in specs
    ]


def schema_of(spec: ValueSpec) -> dict[str, Any]:
    """The JSON schema of a sampling parameter: its type, range, meaning and default."""
    row = SAMPLING[spec.parameter]
    schema = {"type": "integer" if row.kind is int else "number", **row.to_schema()}
    schema.pop("default", None)
    return schema if spec.default is None else {**schema, "default": spec.default}


def merge(specs: Iterable[ValueSpec]) -> ValueSpec:
    """What all of `specs`, of one value, agree on, under the name of the first."""
    first, *others = specs
    dtype = first.dtype if all(other.dtype == first.dtype for other in others) else None
    shape = first.shape if all(other.shape == first.shape for other in others) else None
    return ValueSpec(first.name, dtype, shape, first.is_optional)


def _to_list(shape: Shape | None) -> list[int | None] | None:
    return None if shape is None else list(shape)
