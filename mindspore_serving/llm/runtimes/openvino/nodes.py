"""Small pieces that graphs are built of: constants, slices, names and widths of nodes."""

from typing import Any, TypeAlias

import numpy as np
from openvino import opset13 as opset
from openvino.utils.node_factory import NodeFactory

from mindspore_serving.errors import StartError

Node: TypeAlias = Any
TO_END = 2**63 - 1
DECOMPRESSION = "decompression_0"  # the plugin's name for a conversion that is not to be folded
# The input of a graph with two rotary tables: `DecoderInputs.uses_long_rope`.
USES_LONG_ROPE = "uses_long_rope"


def features(x: Node) -> int:
    return int(x.output(0).get_partial_shape()[-1].get_length())


def sliced(x: Node, begin: int, end: int, step: int = 1) -> Node:
    """Of the last axis."""
    return named(opset.slice(x, i64(begin), i64(end), i64(step), i64(-1)), name_of(x))


def reshaped(x: Node, *shape: int) -> Node:
    return opset.reshape(x, i64(*shape), False)


def expect(x: Node, width: int, what: str) -> None:
    """Raises StartError unless `x` has `width` features, which are `what`."""
    if features(x) != width:
        raise StartError(f"{name_of(x)!r} gives {features(x)} features, expected {width}: {what}")


def head_width(x: Node, num_heads: int, *, least: int = 1) -> int:
    """Features of a head.  Raises StartError if they are fewer, or not the same for all."""
    head_dim, rest = divmod(features(x), num_heads)
    if rest or head_dim < least:
        what = f"{num_heads} heads of at least {least}"
        raise StartError(f"{name_of(x)!r} gives {features(x)} features, expected {what}")
    return head_dim


def named(node: Node, name: str) -> Node:
    """Name a node after the weight that made it, for messages and profiles."""
    node.set_friendly_name(name)
    return node


def name_of(node: Node) -> str:
    return str(node.get_friendly_name())


def i64(*values: int) -> Any:
    return opset.constant(np.array(values, np.int64))


def i32(value: int) -> Any:
    return opset.constant(np.int32(value))


def f32(value: float) -> Any:
    return opset.constant(np.float32(value))


def swish(x: Node) -> Node:
    """Without the factor that `opset.swish` adds, which keeps the plugin from recognising it."""
    return NodeFactory("opset4").create("Swish", [x.output(0)], {})


def widened(x: Node) -> Node:
    """Float32 of a constant that keeps its type in memory, until the plugin packs it."""
    y = opset.convert(x, "f32")
    y.get_rt_info()[DECOMPRESSION] = True
    return y
