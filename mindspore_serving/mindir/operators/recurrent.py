"""Recurrent layers."""

from typing import Any

import openvino as ov
from openvino import opset16 as op

from mindspore_serving.mindir.tensors import (
    Bool,
    Int,
    Operator,
    Tensor,
    Unsupported,
    ints_of,
    like,
    reshape,
    size_of,
)

_GATES = (1, 0, 2, 3)  # OpenVINO's forget, input, cell, output among the file's i, f, c, o


def _lstm(
    x: Tensor,
    h: Tensor,
    c: Tensor,
    weights: Tensor,
    *,
    input_size: Int,
    hidden_size: Int,
    num_layers: Int = 1,
    has_bias: Bool = True,
    bidirectional: Bool = False,
    proj_size: Int = 0,
) -> Any:
    """Time first.  `weights` is flat: of the inputs, of the state, then one bias.

    The result, the last states, and two that training alone needs.
    """
    if num_layers != 1 or bidirectional or proj_size:
        raise Unsupported("several layers, two directions or a projection in one operator")
    flat = reshape(weights, (-1,))
    sizes = [4 * hidden_size * input_size, 4 * hidden_size * hidden_size]
    sizes += [4 * hidden_size] * has_bias
    inner, outer, *bias = op.variadic_split(flat, op.constant(0), ints_of(sizes)).outputs()
    biases = _gates(bias[0], hidden_size, 1) if has_bias else None
    if biases is None:
        biases = op.broadcast(like(0, x), ints_of([1, 4 * hidden_size, 1]))
    lengths = op.broadcast(op.gather(_shape(x), ints_of([0]), ints_of([0])), size_of(x, 1))
    node = op.lstm_sequence(
        _turned(x),
        _turned(h),
        _turned(c),
        op.convert(lengths, "i32"),
        _gates(inner, hidden_size, input_size),
        _gates(outer, hidden_size, hidden_size),
        op.reshape(biases, ints_of([1, -1]), False),
        hidden_size,
        "forward",
    )
    y, last_h, last_c = node.outputs()
    turned = op.transpose(op.squeeze(y, ints_of([1])), ints_of([1, 0, 2]))
    return turned, _turned(last_h), _turned(last_c), like(0, x), like(0, x)


def _gates(flat: Any, hidden: int, columns: int) -> Any:
    parts = op.reshape(flat, ints_of([4, hidden * columns]), False)
    ordered = op.gather(parts, ints_of(_GATES), op.constant(0))
    return op.reshape(ordered, ints_of([1, 4 * hidden, columns]), False).output(0)


def _turned(x: Any) -> Any:
    return op.transpose(x, ints_of([1, 0, 2]))


def _shape(x: Any) -> Any:
    return op.shape_of(x, ov.Type.i64)


OPERATORS: dict[str, Operator] = {"LSTM": _lstm}
