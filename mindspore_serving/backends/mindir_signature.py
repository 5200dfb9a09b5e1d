"""The signature of a MindIR file, read from its protobuf; MindSpore is not imported for it.

The message classes come from MindSpore's own generated file, loaded by its path.  Knows no device.
"""

import importlib.util
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from mindspore_serving.backends import crypto
from mindspore_serving.backends.base import ModelSource
from mindspore_serving.backends.source import element_error, load_error
from mindspore_serving.core.value import Signature, TensorSpec
from mindspore_serving.errors import StartError

# TensorProto.DataType of mind_ir.proto; what numpy has no type for is missing.
_NUMPY = {
    1: "float32",
    2: "uint8",
    3: "int8",
    4: "uint16",
    5: "int16",
    6: "int32",
    7: "int64",
    9: "bool",
    10: "float16",
    11: "float64",
    12: "uint32",
    13: "uint64",
    17: "float64",
}
_BFLOAT16 = 16
_COLLECTIVES = ("Barrier", "Broadcast", "Receive", "Reduce", "Send")
_COLLECTIVE_FAMILIES = (
    *("AllGather", "AllReduce", "AlltoAll", "CollectiveGather", "CollectiveScatter"),
    *("NeighborExchange", "ReduceScatter", "InnerComm", "DistComm"),
)


@dataclass(frozen=True, slots=True)
class GraphFile:
    """What a file tells.  No outputs in `signature` means that it does not tell them."""

    signature: Signature
    operators: frozenset[str]
    is_encrypted: bool

    @property
    def has_convolution(self) -> bool:
        return any(name.startswith(("Conv2D", "Conv3D", "Convolution")) for name in self.operators)

    @property
    def collectives(self) -> list[str]:
        """Operators that talk to other ranks, sorted."""
        return sorted(
            name
            for name in self.operators
            if name in _COLLECTIVES or name.startswith(_COLLECTIVE_FAMILIES)
        )

    @property
    def writes_inputs(self) -> bool:
        """Whether running it may change the arrays it is given."""
        return any(name.startswith(("Inplace", "Assign", "Scatter")) for name in self.operators)


def read_graph_file(source: ModelSource, path: str) -> GraphFile:
    """Read the file at `path`, decrypted with the key of `source`.

    Inputs are named as the cell's parameters; outputs output0, output1...  Raises StartError.
    """
    content = Path(path).read_bytes()
    is_encrypted = crypto.is_encrypted(content)
    if is_encrypted and source.dec_key is None:
        raise load_error(source, path, "the file is encrypted, pass its key as dec_key")
    if source.dec_key is not None:
        try:
            content = crypto.decrypt(content, source.dec_key, source.dec_mode)
        except StartError as error:
            raise load_error(source, path, error) from error
    model = _parse(source, path, content)
    inputs = tuple(_input(source, path, i, entry) for i, entry in enumerate(model.graph.input))
    signature = Signature(inputs, _outputs(model.graph.output))
    return GraphFile(signature, _operators(model), is_encrypted)


def _parse(source: ModelSource, path: str, content: bytes) -> Any:
    from google.protobuf.message import DecodeError

    model = _messages().ModelProto()
    try:
        model.ParseFromString(content)
    except DecodeError as error:
        raise load_error(source, path, "the file is damaged, cut off or not MindIR") from error
    if not model.HasField("graph") or not model.graph.output:
        raise load_error(source, path, "there is no graph in it: not MindIR, or cut off")
    return model


@cache
def _messages() -> Any:
    loaded = sys.modules.get("mindspore.train.mind_ir_pb2")
    if loaded is not None:
        return loaded
    package = importlib.util.find_spec("mindspore")
    if package is None or package.origin is None:
        raise ImportError("No module named 'mindspore'")
    path = Path(package.origin).parent / "train" / "mind_ir_pb2.py"
    spec = importlib.util.spec_from_file_location("mindspore_serving_mind_ir", path)
    if spec is None or spec.loader is None or not path.is_file():
        raise ImportError(f"the installed mindspore has no {path.name}")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # an older protobuf says so with an error class of its own
        raise ImportError(f"the message classes of MindIR cannot be loaded: {error}") from error
    return module


def _input(source: ModelSource, path: str, index: int, entry: Any) -> TensorSpec:
    name = entry.name.rsplit(":", 1)[-1] or f"input{index}"
    spec = _tensor(name, entry.tensor[0], _NUMPY) if len(entry.tensor) == 1 else None
    if spec is None:
        kind = entry.denotation or "unknown"
        if entry.tensor:
            kind = "bfloat16" if entry.tensor[0].data_type == _BFLOAT16 else kind
        raise element_error(source, path, index, name=name, kind=kind)
    return spec


def _outputs(entries: Any) -> tuple[TensorSpec, ...]:
    """One entry with a tensor, one with a tuple of them, or one that tells nothing."""
    tensors: list[Any] = []
    for entry in entries:
        if entry.tensor:
            tensors.extend(entry.tensor)
        elif not _flatten(entry.attr_info, tensors):
            return ()
    kinds = {**_NUMPY, _BFLOAT16: "float32"}  # the backend answers so
    specs = [_tensor(f"output{i}", tensor, kinds) for i, tensor in enumerate(tensors)]
    known = [spec for spec in specs if spec is not None]
    return tuple(known) if len(known) == len(specs) else ()


def _flatten(attribute: Any, tensors: list[Any]) -> bool:
    """Gather the tensors of a possibly nested tuple; False if anything else is in it."""
    if attribute.seq_info.is_dyn_len or not attribute.values:
        return False
    for value in attribute.values:
        kind = value.AttributeType.Name(value.type)
        if kind == "TENSORS" and len(value.tensors) == 1:
            tensors.append(value.tensors[0])
        elif kind not in ("TUPLE", "LIST") or not _flatten(value, tensors):
            return False
    return True


def _tensor(name: str, tensor: Any, kinds: Mapping[int, str]) -> TensorSpec | None:
    """None for an element type that is not in `kinds`."""
    kind = kinds.get(tensor.data_type)
    if kind is None:
        return None
    dims = tuple(tensor.dims)
    shape = None if any(dim < -1 for dim in dims) else dims  # -2: not even the rank is known
    return TensorSpec(name, np.dtype(kind), shape)


def _operators(model: Any) -> frozenset[str]:
    """Names like "Conv2D"; a node says "REF::Conv2D:4", which points to such a primitive."""
    found = {primitive.op_type for primitive in model.primitives}
    for graph in (model.graph, *model.functions):
        found.update(node.op_type for node in graph.node)
    return frozenset(name.removeprefix("REF::").split(":")[0] for name in found)
