"""The messages of a MindIR file that are read: a class per message, a row per field.

The numbers are those of MindSpore's mind_ir.proto, which is the format's only description.  Knows
no meaning: see `attributes` and `program`.
"""

from dataclasses import dataclass
from enum import IntEnum

from mindspore_serving.mindir.wire import SELF, repeated, single


class AttributeKind(IntEnum):
    """AttributeProto.AttributeType: what an attribute's value is."""

    UNDEFINED = 0
    FLOAT = 1
    UINT8 = 2
    INT8 = 3
    UINT16 = 4
    INT16 = 5
    INT32 = 6
    INT64 = 7
    STRING = 8
    BOOL = 9
    FLOAT16 = 10
    DOUBLE = 11
    UINT32 = 12
    UINT64 = 13
    BFLOAT16 = 16
    TENSOR = 17
    TENSORS = 19
    TUPLE = 20
    LIST = 21
    UMONAD = 23
    IOMONAD = 24
    NONE = 25


@dataclass(slots=True)
class ExternalData:
    """Location of a tensor's bytes: a file next to the model's, offset and length in bytes."""

    location: str = single(1, "text")
    offset: int = single(2, "int")
    length: int = single(3, "int")


@dataclass(slots=True)
class Tensor:
    """A constant, a weight, or the type of a value (no bytes).  A dimension of -1 is open."""

    dims: list[int] = repeated(1, "int")
    data_type: int = single(2, "int")
    name: str = single(7, "text")
    raw_data: memoryview = single(9, "bytes")
    external_data: ExternalData | None = single(12, ExternalData)
    compression_type: int = single(16, "int")


@dataclass(slots=True)
class SequenceType:
    """Type of a tuple; its length may be open."""

    is_dyn_len: int = single(1, "int")


@dataclass(slots=True)
class Attribute:
    """A named value; which field holds it depends on `type` and on what wrote it."""

    name: str = single(1, "text")
    f: float = single(2, "float")
    i: int = single(3, "int")
    d: float = single(4, "double")
    s: memoryview = single(5, "bytes")
    t: Tensor | None = single(6, Tensor)
    floats: list[float] = repeated(8, "float")
    doubles: list[float] = repeated(9, "double")
    ints: list[int] = repeated(10, "int")
    strings: list[memoryview] = repeated(11, "bytes")
    tensors: list[Tensor] = repeated(12, Tensor)
    type: int = single(16, "int")
    values: list["Attribute"] = repeated(17, SELF)
    seq_info: SequenceType | None = single(18, SequenceType)


@dataclass(slots=True)
class ValueType:
    """An input or output of a graph: its name, and a tensor's type or a tuple's."""

    name: str = single(1, "text")
    tensor: list[Tensor] = repeated(2, Tensor)
    denotation: str = single(4, "text")
    attr_info: Attribute | None = single(5, Attribute)


@dataclass(slots=True)
class NodeProto:
    """Call of a graph.

    `op_type` names an operator, a row of the primitives, a graph or a node; `domain` is the full
    name in the exported network.
    """

    input: list[str] = repeated(1, "text")
    output: list[str] = repeated(2, "text")
    name: str = single(3, "text")
    op_type: str = single(4, "text")
    attribute: list[Attribute] = repeated(5, Attribute)
    domain: str = single(7, "text")


@dataclass(slots=True)
class Graph:
    """A function: its inputs, weights (`parameter`), calls in the order of their data, outputs."""

    node: list[NodeProto] = repeated(1, NodeProto)
    name: str = single(2, "text")
    parameter: list[Tensor] = repeated(3, Tensor)
    input: list[ValueType] = repeated(5, ValueType)
    output: list[ValueType] = repeated(6, ValueType)


@dataclass(slots=True)
class Primitive:
    """An operator with its attributes, which nodes refer to by name."""

    name: str = single(1, "text")
    op_type: str = single(2, "text")
    attribute: list[Attribute] = repeated(3, Attribute)


@dataclass(slots=True)
class MindirModel:
    """A file: the graph that is called, the graphs that it calls, and their operators."""

    graph: Graph | None = single(7, Graph)
    functions: list[Graph] = repeated(8, Graph)
    primitives: list[Primitive] = repeated(12, Primitive)
