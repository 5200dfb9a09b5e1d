"""Helpers to build graphs: inputs, constants, slices, names and widths of nodes."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import openvino as ov
from openvino import opset13 as opset
from openvino.op import Parameter
from openvino.utils.node_factory import NodeFactory

from mindspore_serving.errors import StartError

Node: TypeAlias = Any
TO_END = 2**63 - 1
DECOMPRESSION = "decompression_0"  # the plugin's mark of a conversion that must not be folded
# The input of a graph with two rotary tables, as `DecoderInputs.uses_long_rope`.
USES_LONG_ROPE = "uses_long_rope"
ROPE_POSITIONS = "rope_positions"  # the input of a graph for images with positions of their own


def features(x: Node) -> int:
    """Return the size of the last axis."""
    return int(x.output(0).get_partial_shape()[-1].get_length())


def sliced(x: Node, begin: int, end: int, step: int = 1) -> Node:
    """Slice the last axis."""
    return named(opset.slice(x, i64(begin), i64(end), i64(step), i64(-1)), name_of(x))


def reshaped(x: Node, *shape: int) -> Node:
    """Reshape `x`; one size may be -1."""
    return opset.reshape(x, i64(*shape), False)


def expect(x: Node, width: int, what: str) -> None:
    """Raise StartError unless `x` has `width` features; `what` describes them."""
    if features(x) != width:
        raise StartError(f"{name_of(x)!r} gives {features(x)} features, expected {width}: {what}")


def head_width(x: Node, num_heads: int, *, minimum: int = 1) -> int:
    """Return the features of a head.  Raises StartError if fewer than `minimum`, or uneven."""
    head_dim, rest = divmod(features(x), num_heads)
    if rest or head_dim < minimum:
        what = f"{num_heads} heads of at least {minimum}"
        raise StartError(f"{name_of(x)!r} gives {features(x)} features, expected {what}")
    return head_dim


def named(node: Node, name: str) -> Node:
    """Name a node after the weight that it reads, for messages and profiles."""
    node.set_friendly_name(name)
    return node


def name_of(node: Node) -> str:
    """Return the node's name."""
    return str(node.get_friendly_name())


def i64(*values: int) -> Any:
    """Build an int64 vector."""
    return opset.constant(np.array(values, np.int64))


def i32(value: int) -> Any:
    """Build an int32 scalar."""
    return opset.constant(np.int32(value))


def f32(value: float) -> Any:
    """Build a float32 scalar."""
    return opset.constant(np.float32(value))


def swish(x: Node) -> Node:
    """Build a Swish without the beta that `opset.swish` adds, so that the plugin recognises it."""
    return NodeFactory("opset4").create("Swish", [x.output(0)], {})


def widened(x: Node) -> Node:
    """Convert a constant to float32, but keep its type in memory until the plugin packs it."""
    y = opset.convert(x, "f32")
    y.get_rt_info()[DECOMPRESSION] = True
    return y


def parameter(name: str, kind: Any, shape: Sequence[int]) -> Node:
    """Build an input of a graph; -1 is a size that varies."""
    node = Parameter(kind, ov.PartialShape(list(shape)))
    node.output(0).get_tensor().set_names({name})
    node.set_friendly_name(name)
    return node


def built(outputs: Mapping[str, Node], inputs: Sequence[Node], name: str) -> ov.Model:
    """Build the graph from `inputs` to `outputs`, which get their names."""
    results = [opset.result(node) for node in outputs.values()]
    for result, label in zip(results, outputs, strict=True):
        result.output(0).get_tensor().set_names({label})
    return ov.Model(results, list(inputs), name)
