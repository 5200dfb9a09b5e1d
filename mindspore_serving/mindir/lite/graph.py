"""Graph of a MindSpore Lite file: tensors, nodes and their primitives."""

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from mindspore_serving.errors import StartError
from mindspore_serving.mindir.lite.flatbuffer import DamagedFile, Table, root

IDENTIFIER = b"MSL2"
_BOOL, _INT8, _UINT8, _FLOAT16 = 30, 32, 37, 42
DTYPES = {
    _BOOL: "?",
    **{_INT8 + i: f"<i{1 << i}" for i in range(4)},
    **{_UINT8 + i: f"<u{1 << i}" for i in range(4)},
    **{_FLOAT16 + i: f"<f{2 << i}" for i in range(3)},
}
"""Numbers of element types; those of MindSpore's core."""
_UNKNOWN = (-1, -2)


@dataclass(frozen=True, slots=True)
class LiteTensor:
    """A tensor: dims in the order of its format, -1 for any size, and its data if constant."""

    name: str
    dtype: "np.dtype[Any]"
    dims: tuple[int, ...]
    data: "np.ndarray[Any, Any] | None"


@dataclass(frozen=True, slots=True)
class LiteNode:
    """A node: the number of its primitive in the schema's union, and the table of its fields."""

    name: str
    primitive: int
    fields: Table
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LiteGraph:
    """The main graph: indices of input and output tensors, and nodes in the order of their runs."""

    tensors: tuple[LiteTensor, ...]
    nodes: tuple[LiteNode, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


def read_graph(content: memoryview) -> LiteGraph:
    """Read the graph of a .ms file.

    Raises StartError: damage, an older version, quantized weights, more than one graph.
    """
    if bytes(content[4:8]) == b"MSL1":
        raise StartError("it is of MindSpore Lite 1.0 or older: convert its source anew")
    if bytes(content[4:8]) != IDENTIFIER:
        raise StartError(
            "it is no file of MindSpore Lite (.ms); a .mindir file is declared as MindIR"
        )
    meta = root(content)
    subgraphs = list(meta.tables(20))
    if len(subgraphs) > 1:
        raise StartError(f"it has {len(subgraphs)} graphs: branches and loops are not supported")
    if meta.number(22, "<?", False):
        raise StartError("it is obfuscated")
    tensors = tuple(_tensor(table) for table in meta.tables(18))
    nodes = tuple(_node(table, len(tensors)) for table in meta.tables(16))
    owner, slots = (subgraphs[0], (6, 8)) if subgraphs else (meta, (10, 12))
    inputs, outputs = (_indices(owner, slot, len(tensors)) for slot in slots)
    if not inputs or not outputs:
        raise DamagedFile("its graph has no inputs or no outputs")
    return LiteGraph(tensors, nodes, inputs, outputs)


def _tensor(table: Table) -> LiteTensor:
    name, number = table.text(22), table.number(6, "<i")
    if number not in DTYPES:
        raise StartError(f"tensor '{name}' is of element type {number}, which is not supported")
    dims = tuple(int(dim) for dim in table.numbers(8, "<i4"))
    if any(dim < 0 and dim not in _UNKNOWN for dim in dims):
        raise DamagedFile(f"tensor '{name}' has the shape {list(dims)}")
    dtype, raw = np.dtype(DTYPES[number]), table.numbers(16, "u1")
    is_packed = table.number(24, "<?", False) or table.number(26, "<i") > 0
    if is_packed or (raw.size and any(True for _ in table.tables(18))) or table.table(28):
        raise StartError(
            f"weight '{name}' is quantized, packed or in another file: convert the model's source "
            "without quantization"
        )
    if not raw.size:
        return LiteTensor(name, dtype, dims, None)
    if raw.size != prod(dims) * dtype.itemsize:
        raise DamagedFile(
            f"weight '{name}' of shape {list(dims)} has {raw.size} bytes of {dtype} elements"
        )
    return LiteTensor(name, dtype, dims, raw.view(dtype).reshape(dims))


def _node(table: Table, num_tensors: int) -> LiteNode:
    name, primitive = table.text(4), table.table(8)
    if table.number(14, "<i"):
        raise StartError(f"node '{name}' is quantized: convert the model's source without that")
    fields = primitive.table(6) if primitive is not None else None
    if primitive is None or fields is None:
        raise DamagedFile(f"node '{name}' has no primitive")
    inputs, outputs = (_indices(table, slot, num_tensors) for slot in (10, 12))
    return LiteNode(name, primitive.number(4, "<B"), fields, inputs, outputs)


def _indices(table: Table, slot: int, num_tensors: int) -> tuple[int, ...]:
    indices = tuple(int(index) for index in table.numbers(slot, "<u4"))
    if any(index >= num_tensors for index in indices):
        raise DamagedFile(f"it refers to tensors {list(indices)}, but has {num_tensors}")
    return indices
