"""JSON schemas of the inputs and outputs of methods, and examples of inputs."""

from typing import Any

import numpy as np

from mindspore_serving.core import dtype as dtypes
from mindspore_serving.core.examples import TEXT, Example
from mindspore_serving.core.signature import InstanceSignature, ValueSpec, schema_of
from mindspore_serving.frontends.operation import STRING, Schema, to_array, to_object
from mindspore_serving.frontends.v2.schemas import NUMBER, PARAMETERS
from mindspore_serving.wire.v2.datatypes import BY_DTYPE, BY_NAME

MAX_EXAMPLE = 256  # values of an example; a larger one is left out
_BYTES = to_object({"b64": {"type": "string", "contentEncoding": "base64"}})
_BOXED = to_object(
    {
        "b64": {"type": "string", "contentEncoding": "base64"},
        "type": {"enum": [row.name for row in dtypes.TABLE]},
        "shape": to_array(NUMBER),
    },
    "shape",
)
_ANY_INPUT: Schema = {"description": "any type that the Python function accepts"}
_ANY_OUTPUT: Schema = {"description": "any type that the Python function returns"}


def instance_schema(specs: tuple[ValueSpec, ...], *, is_output: bool = False) -> dict[str, Any]:
    """Return the schema of an instance of the classic protocol."""
    fields = {spec.name: value_schema(spec, is_output=is_output) for spec in specs}
    return to_object(fields, *(spec.name for spec in specs if spec.is_optional))


def value_schema(spec: ValueSpec, *, is_output: bool = False) -> dict[str, Any]:
    """Return the schema of a value in the classic protocol."""
    if spec.parameter:
        return schema_of(spec)
    if spec.dtype is None:
        return dict(_ANY_OUTPUT if is_output else _ANY_INPUT)
    element = _element(spec.dtype, is_output=is_output)
    if spec.shape is None:
        return {"anyOf": [element, {"type": "array"}]}
    nested = element
    for size in reversed(spec.shape):
        nested = to_array(nested, size, at_least=1)
    if is_output or not _is_number(spec):
        return dict(nested)
    return {"anyOf": [nested, _BOXED]}


def tensor_schema(spec: ValueSpec) -> dict[str, Any]:
    """Return the schema of a tensor of protocol v2, whose first dimension counts instances."""
    row = BY_DTYPE.get(spec.dtype or "")
    shape = to_array(NUMBER)
    if spec.shape is not None:
        sizes = ["any" if size is None else str(size) for size in spec.shape]
        shape |= {"description": f"[{', '.join(['instances', *sizes])}]"}
    fields: dict[str, Schema] = {
        "name": {"const": spec.name},
        "datatype": {"const": row.name} if row else {"enum": list(BY_NAME)},
        "shape": shape,
        "data": {"type": "array"},
        "parameters": PARAMETERS,
    }
    return to_object(fields, "data", "parameters")


def tensors_schema(specs: tuple[ValueSpec, ...]) -> dict[str, Any]:
    """Return the schema of a list of tensors of protocol v2."""
    needed = [spec for spec in specs if not spec.is_optional]
    rows = [tensor_schema(spec) for spec in specs]
    if not rows:
        return {"type": "array"}
    items = rows[0] if len(rows) == 1 else {"anyOf": rows}
    return to_array(items, at_least=len(needed))


def instance_example(signature: InstanceSignature) -> dict[str, Any] | None:
    """Return an example of an instance of the classic protocol; None if it would be long."""
    needed = [spec for spec in signature.inputs if not spec.is_optional]
    if sum(spec.example.size for spec in needed) > MAX_EXAMPLE:
        return None
    return {spec.name: spec.example.nested() for spec in needed}


def tensors_example(signature: InstanceSignature) -> dict[str, Any] | None:
    """Return an example of a body of protocol v2 with one instance; None if it would be long."""
    needed = [spec for spec in signature.inputs if not spec.is_optional]
    if sum(spec.example.size for spec in needed) > MAX_EXAMPLE:
        return None
    first = (1,) if signature.is_batched else ()
    return {"inputs": [_tensor_example(spec, first) for spec in needed]}


def _tensor_example(spec: ValueSpec, first: tuple[int, ...]) -> dict[str, Any]:
    """Return an example of a tensor of one instance; bytes are a text."""
    example = spec.example
    is_bytes = isinstance(example.value, dict)
    array = np.array((Example(TEXT, example.shape) if is_bytes else example).nested())
    return {
        "name": spec.name,
        "datatype": BY_DTYPE[spec.dtype].name if spec.dtype else _datatype(array),
        "shape": [*first, *array.shape],
        "data": array.ravel().tolist(),
    }


def _datatype(array: "np.ndarray[Any, Any]") -> str:
    """Return the datatype of protocol v2 of a value of JSON."""
    return {"U": "BYTES", "b": "BOOL", "i": "INT64"}.get(array.dtype.kind, "FP32")


def _element(dtype: str, *, is_output: bool) -> Schema:
    if dtype == "str":
        return STRING
    if dtype == "bytes":
        return _BYTES
    kind = np.dtype(dtype)
    if kind.kind == "b":
        return {"type": "boolean"}
    if kind.kind == "f":
        return {"type": ["number", "null"]}  # NaN
    limits = np.iinfo(kind)
    return {"type": "integer", "minimum": int(limits.min), "maximum": int(limits.max)}


def _is_number(spec: ValueSpec) -> bool:
    return spec.dtype not in ("str", "bytes")
