"""A mixture of experts as nodes: a dense graph, of which the plugin computes only what is chosen.

In the graph every expert computes every token, and shares of zero drop out.  The plugin recognises
exactly this form and computes the chosen experts only; another form is correct, but slower by the
number of experts over the number chosen.
"""

from typing import Any, TypeAlias

import numpy as np
from openvino import opset13 as opset
from openvino.utils.node_factory import NodeFactory

Node: TypeAlias = Any


def mixture(
    x: Node, weights: tuple[Node, Node, Node], routing: tuple[Node, Node, Node]
) -> Node:  # fmt: skip
    """[T, H].

    Args:
        x: [T, H].
        weights: gate and up [E, I, H], down [E, H, I].
        routing: scores [T, E], of which only the shape counts; shares and expert numbers [T, k].
    """
    gate, up, down = weights
    count, hidden, _ = (size.get_length() for size in down.output(0).get_partial_shape())
    rows = _reshape(opset.unsqueeze(x, _i64(0)), -1, hidden)
    each = _reshape(opset.tile(rows, _i64(count, 1)), count, -1, hidden)
    inner = opset.multiply(
        _swish(opset.matmul(each, gate, False, True)), opset.matmul(each, up, False, True)
    )
    out = _reshape(opset.matmul(inner, down, False, True), count, 1, -1, hidden)
    scores, shares, chosen = routing
    none = opset.multiply(scores, opset.constant(np.float32(0)))
    spread = opset.scatter_elements_update(none, chosen, shares, _i64(1))  # [T, E]
    spread = _reshape(opset.transpose(spread, _i64(1, 0)), count, 1, -1)
    weighted = opset.multiply(out, opset.unsqueeze(spread, _i64(-1)))
    return _reshape(opset.reduce_sum(weighted, _i64(0), keep_dims=False), -1, hidden)


def _swish(x: Node) -> Node:
    """Without the factor that `opset.swish` adds, which keeps the plugin from recognising it."""
    return NodeFactory("opset4").create("Swish", [x.output(0)], {})


def _reshape(x: Node, *shape: int) -> Node:
    return opset.reshape(x, _i64(*shape), False)


def _i64(*values: int) -> Any:
    return opset.constant(np.array(values, np.int64))
