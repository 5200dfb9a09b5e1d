"""Signature and operators of a MindIR file, read without running it.

MindSpore is not imported for it.  Knows no device.
"""

import mmap
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from math import prod

import numpy as np

from mindspore_serving.backends import crypto
from mindspore_serving.backends.base import ModelSource
from mindspore_serving.backends.source import element_error, load_error
from mindspore_serving.core.value import Signature, TensorSpec
from mindspore_serving.errors import StartError
from mindspore_serving.mindir import wire
from mindspore_serving.mindir.attributes import BFLOAT16, NUMPY
from mindspore_serving.mindir.messages import (
    Attribute,
    AttributeKind,
    Graph,
    MindirModel,
    Tensor,
    ValueType,
)

_COLLECTIVES = ("Barrier", "Broadcast", "Receive", "Reduce", "Send")
_COLLECTIVE_FAMILIES = (
    *("AllGather", "AllReduce", "AlltoAll", "CollectiveGather", "CollectiveScatter"),
    *("NeighborExchange", "ReduceScatter", "InnerComm", "DistComm"),
)
_KINDS = {**NUMPY, BFLOAT16: "float32"}  # backends take and return bfloat16 as float32
_MAX_INPUT = 1 << 31  # bytes of one input: a request cannot be larger


@dataclass(frozen=True, slots=True)
class GraphFile:
    """Contents of a file; no outputs in `signature` means that the file does not describe them."""

    signature: Signature
    operators: frozenset[str]
    is_encrypted: bool
    model: MindirModel = field(repr=False)
    graph: Graph = field(repr=False)

    @property
    def bfloat16_inputs(self) -> list[int]:
        """Indices of inputs that are bfloat16 in the graph."""
        entries = enumerate(self.graph.input)
        return [index for index, entry in entries if entry.tensor[0].data_type == BFLOAT16]

    @property
    def has_convolution(self) -> bool:
        return any(name.startswith(("Conv2D", "Conv3D", "Convolution")) for name in self.operators)

    @property
    def collectives(self) -> list[str]:
        """Operators that communicate with other ranks, sorted."""
        return sorted(
            name
            for name in self.operators
            if name in _COLLECTIVES or name.startswith(_COLLECTIVE_FAMILIES)
        )

    @property
    def writes_inputs(self) -> bool:
        """True if running the graph may change its input arrays."""
        return any(name.startswith(("Inplace", "Assign", "Scatter")) for name in self.operators)


def read_graph_file(source: ModelSource, path: str) -> GraphFile:
    """Read the file at `path`, decrypted with the key of `source`.

    Inputs are named as the cell's parameters, outputs output0, output1 and so on.  Weights in the
    file are views of the mapped file.

    Raises StartError.
    """
    try:
        content = map_file(path)
        is_encrypted = crypto.is_encrypted(bytes(content[:4]))
        if is_encrypted and source.dec_key is None:
            raise StartError("the file is encrypted, pass its key as dec_key")
        model = wire.read(MindirModel, plain(source, content))
        graph = model.graph
        if graph is None or not graph.output:
            raise wire.Damaged("there is no graph in it")
    except StartError as error:
        raise load_error(source, path, error) from error
    inputs = tuple(_input(source, path, i, entry) for i, entry in enumerate(graph.input))
    signature = Signature(inputs, _outputs(graph.output))
    return GraphFile(signature, _operators(model), is_encrypted, model, graph)


def map_file(path: str) -> memoryview:
    """Map the content of a file that is not empty; pages are read when they are needed."""
    with open(path, "rb") as file:
        # Private and writable, as OpenVINO accepts no read-only arrays; nothing is written.
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))


def plain(source: ModelSource, content: memoryview) -> memoryview:
    """Decrypt `content` if `source` has a key.  Raises StartError."""
    if source.dec_key is None:
        return content
    return memoryview(bytearray(crypto.decrypt(bytes(content), source.dec_key, source.dec_mode)))


def read_weights_file(source: ModelSource, path: str, location: str) -> memoryview:
    """Read the weights file `location` that the model at `path` names.

    Raises StartError: it is not below the model's directory, or does not exist.
    """
    root = os.path.realpath(os.path.dirname(path))
    weights_path = os.path.realpath(os.path.join(root, location))
    if os.path.isabs(location) or os.path.commonpath([root, weights_path]) != root:
        raise StartError(f"its weights are in '{location}', which is outside of its directory")
    if not os.path.isfile(weights_path) or not os.path.getsize(weights_path):
        raise StartError(f"its weights are in '{location}', which does not exist or is empty")
    content = map_file(weights_path)
    return plain(source, content) if crypto.is_encrypted(bytes(content[:4])) else content


def _input(source: ModelSource, path: str, index: int, entry: ValueType) -> TensorSpec:
    name = entry.name.rsplit(":", 1)[-1] or f"input{index}"
    spec = _tensor(name, entry.tensor[0]) if len(entry.tensor) == 1 else None
    if spec is None:
        kind = entry.denotation or "unknown"
        raise element_error(source, path, index, name=name, kind=kind)
    size = prod(spec.shape or (0,)) * (spec.dtype.itemsize if spec.dtype is not None else 1)
    if size > _MAX_INPUT:
        text = f"input {index} '{name}' of shape {spec.shape} has {size} bytes, accepted are "
        raise load_error(source, path, f"{text}{_MAX_INPUT}")
    return spec


def _outputs(entries: Iterable[ValueType]) -> tuple[TensorSpec, ...]:
    """Return the outputs, tensors or tuples of tensors of `entries`; () if one is unknown."""
    tensors: list[Tensor] = []
    for entry in entries:
        if entry.tensor:
            tensors.extend(entry.tensor)
        elif entry.attr_info is None or not _flatten(entry.attr_info, tensors):
            return ()
    specs = [_tensor(f"output{i}", tensor) for i, tensor in enumerate(tensors)]
    known = [spec for spec in specs if spec is not None]
    return tuple(known) if len(known) == len(specs) else ()


def _flatten(attribute: Attribute, tensors: list[Tensor]) -> bool:
    """Gather the tensors of a possibly nested tuple; return False if it has anything else."""
    is_open = attribute.seq_info is not None and attribute.seq_info.is_dyn_len
    if is_open or not attribute.values:
        return False
    for value in attribute.values:
        if value.type == AttributeKind.TENSORS and len(value.tensors) == 1:
            tensors.append(value.tensors[0])
        elif value.type not in (AttributeKind.TUPLE, AttributeKind.LIST) or not _flatten(
            value, tensors
        ):
            return False
    return True


def _tensor(name: str, tensor: Tensor) -> TensorSpec | None:
    """Return the spec of a tensor, None for an element type that is not in _KINDS."""
    kind = _KINDS.get(tensor.data_type)
    if kind is None:
        return None
    dims = tuple(tensor.dims)
    shape = None if any(dim < -1 for dim in dims) else dims  # -2: not even the rank is known
    return TensorSpec(name, np.dtype(kind), shape)


def _operators(model: MindirModel) -> frozenset[str]:
    """Return names like "Conv2D"; a node has "REF::Conv2D:4", which refers to such a primitive."""
    names = {primitive.op_type for primitive in model.primitives}
    for graph in (*([model.graph] if model.graph else ()), *model.functions):
        names.update(node.op_type for node in graph.node)
    return frozenset(name.removeprefix("REF::").split(":")[0] for name in names)
