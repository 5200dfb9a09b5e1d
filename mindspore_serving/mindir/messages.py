"""The messages of a MindIR file that are read: a class per message, a row per field.

The numbers are those of MindSpore's mind_ir.proto, which is the format's only description.  Knows
no meaning: see `attributes` and `program`.
"""

from dataclasses import dataclass, field
from enum import IntEnum
from typing import ClassVar

from mindspore_serving.mindir.wire import Field


class Kind(IntEnum):
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
    """Where a tensor's bytes are: a file beside the model's, an offset and a length in bytes."""

    location: str = ""
    offset: int = 0
    length: int = 0

    FIELDS: ClassVar = {
        1: Field("location", "text"),
        2: Field("offset", "int"),
        3: Field("length", "int"),
    }


@dataclass(slots=True)
class Tensor:
    """A constant, a weight, or the type of a value (no bytes).  A dimension of -1 is open."""

    dims: list[int] = field(default_factory=list)
    data_type: int = 0
    name: str = ""
    raw_data: memoryview = memoryview(b"")
    external_data: ExternalData | None = None
    compression_type: int = 0

    FIELDS: ClassVar = {
        1: Field("dims", "int", is_repeated=True),
        2: Field("data_type", "int"),
        7: Field("name", "text"),
        9: Field("raw_data", "bytes"),
        12: Field("external_data", ExternalData),
        16: Field("compression_type", "int"),
    }


@dataclass(slots=True)
class SequenceType:
    """Whether a tuple's length is open."""

    is_dyn_len: int = 0

    FIELDS: ClassVar = {1: Field("is_dyn_len", "int")}


@dataclass(slots=True)
class Attribute:
    """A named value; which field holds it depends on `type` and on what wrote it."""

    name: str = ""
    f: float = 0.0
    i: int = 0
    d: float = 0.0
    s: memoryview = memoryview(b"")
    t: Tensor | None = None
    floats: list[float] = field(default_factory=list)
    doubles: list[float] = field(default_factory=list)
    ints: list[int] = field(default_factory=list)
    strings: list[memoryview] = field(default_factory=list)
    tensors: list[Tensor] = field(default_factory=list)
    type: int = 0
    values: list["Attribute"] = field(default_factory=list)
    seq_info: SequenceType | None = None

    FIELDS: ClassVar = {
        1: Field("name", "text"),
        2: Field("f", "float"),
        3: Field("i", "int"),
        4: Field("d", "double"),
        5: Field("s", "bytes"),
        6: Field("t", Tensor),
        8: Field("floats", "float", is_repeated=True),
        9: Field("doubles", "double", is_repeated=True),
        10: Field("ints", "int", is_repeated=True),
        11: Field("strings", "bytes", is_repeated=True),
        12: Field("tensors", Tensor, is_repeated=True),
        16: Field("type", "int"),
        18: Field("seq_info", SequenceType),
    }


Attribute.FIELDS[17] = Field("values", Attribute, is_repeated=True)


@dataclass(slots=True)
class ValueType:
    """An input or output of a graph: its name, and a tensor's type or a tuple's."""

    name: str = ""
    tensor: list[Tensor] = field(default_factory=list)
    denotation: str = ""
    attr_info: Attribute | None = None

    FIELDS: ClassVar = {
        1: Field("name", "text"),
        2: Field("tensor", Tensor, is_repeated=True),
        4: Field("denotation", "text"),
        5: Field("attr_info", Attribute),
    }


@dataclass(slots=True)
class Node:
    """A call.  `op_type` names an operator, a row of the primitives, a graph or a node; `domain` is
    the full name in the network that was exported."""

    input: list[str] = field(default_factory=list)
    output: list[str] = field(default_factory=list)
    name: str = ""
    op_type: str = ""
    attribute: list[Attribute] = field(default_factory=list)
    domain: str = ""

    FIELDS: ClassVar = {
        1: Field("input", "text", is_repeated=True),
        2: Field("output", "text", is_repeated=True),
        3: Field("name", "text"),
        4: Field("op_type", "text"),
        5: Field("attribute", Attribute, is_repeated=True),
        7: Field("domain", "text"),
    }


@dataclass(slots=True)
class Graph:
    """A function: its inputs, weights (`parameter`), calls in the order of their data, outputs."""

    node: list[Node] = field(default_factory=list)
    name: str = ""
    parameter: list[Tensor] = field(default_factory=list)
    input: list[ValueType] = field(default_factory=list)
    output: list[ValueType] = field(default_factory=list)

    FIELDS: ClassVar = {
        1: Field("node", Node, is_repeated=True),
        2: Field("name", "text"),
        3: Field("parameter", Tensor, is_repeated=True),
        5: Field("input", ValueType, is_repeated=True),
        6: Field("output", ValueType, is_repeated=True),
    }


@dataclass(slots=True)
class Primitive:
    """An operator with its attributes, which nodes refer to by name."""

    name: str = ""
    op_type: str = ""
    attribute: list[Attribute] = field(default_factory=list)

    FIELDS: ClassVar = {
        1: Field("name", "text"),
        2: Field("op_type", "text"),
        3: Field("attribute", Attribute, is_repeated=True),
    }


@dataclass(slots=True)
class Model:
    """A file: the graph that is called, the graphs that it calls, and their operators."""

    graph: Graph | None = None
    functions: list[Graph] = field(default_factory=list)
    primitives: list[Primitive] = field(default_factory=list)

    FIELDS: ClassVar = {
        7: Field("graph", Graph),
        8: Field("functions", Graph, is_repeated=True),
        12: Field("primitives", Primitive, is_repeated=True),
    }
