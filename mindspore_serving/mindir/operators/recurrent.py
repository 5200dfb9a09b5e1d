"""Layers in time: recurrent ones, and the decoder of connectionist temporal classification."""

from typing import Any

import openvino as ov
from openvino import opset16 as op

from mindspore_serving.mindir.tensors import (
    Bool,
    Int,
    Operator,
    Tensor,
    UnsupportedTensor,
    cast,
    counting,
    ints_of,
    like,
    reshape,
    size_of,
    slice_of,
    squeeze,
    unsqueeze,
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
        raise UnsupportedTensor("several layers, two directions or a projection in one operator")
    flat = reshape(weights, (-1,))
    sizes = [4 * hidden_size * input_size, 4 * hidden_size * hidden_size]
    sizes += [4 * hidden_size] * has_bias
    inner, outer, *bias = op.variadic_split(flat, op.constant(0), ints_of(sizes)).outputs()
    none = op.broadcast(like(0, x), ints_of([1, 4 * hidden_size, 1]))
    biases = _gates(bias[0], hidden_size, 1) if has_bias else none
    lengths = op.broadcast(size_of(x, 0), size_of(x, 1))
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
    return _turned(squeeze(y, 1)), _turned(last_h), _turned(last_c), like(0, x), like(0, x)


def _gates(flat: Any, hidden: int, columns: int) -> Any:
    parts = op.reshape(flat, ints_of([4, hidden * columns]), False)
    ordered = op.gather(parts, ints_of(_GATES), op.constant(0))
    return op.reshape(ordered, ints_of([1, 4 * hidden, columns]), False).output(0)


def _turned(x: Any) -> Any:
    return op.transpose(x, ints_of([1, 0, 2]))


def _ctc_greedy_decoder(x: Tensor, sequence_length: Tensor, *, merge_repeated: Bool = True) -> Any:
    """Decode logits (time, batch, classes) greedily; the last class is the blank.

    Returns the classes as a sparse matrix (indices [count, 2], values [count], shape [2]), and
    minus the sum of the highest logits [batch, 1].
    """
    x = op.transpose(x, ints_of([1, 0, 2])).output(0)
    best = op.topk(x, op.constant(1), 2, "max", "none", "i64")
    classes, highest = (squeeze(best.output(at), 2) for at in (1, 0))
    lengths = unsqueeze(cast(sequence_length, ov.Type.i64), 1)
    is_valid = op.less(counting(size_of(x, 1)), lengths)
    blank = op.subtract(size_of(x, 2), ints_of([1]))
    is_left = op.logical_and(is_valid, op.not_equal(classes, blank))
    if merge_repeated:
        begin, nothing = ints_of([0, 1]), ints_of([0, 0])
        before = op.pad(slice_of(classes, 1, 0, -1), begin, nothing, "constant", op.constant(-1))
        is_left = op.logical_and(is_left, op.not_equal(classes, before))
    kept = cast(is_left.output(0), ov.Type.i64)
    at = op.subtract(op.cumsum(kept, op.constant(1)), ints_of([1])).output(0)
    positions = op.transpose(op.non_zero(is_left, "i64"), ints_of([1, 0]))
    rows = op.gather(positions, ints_of([0]), op.constant(1))
    columns = op.gather_nd(at, positions)
    indices = op.concat([rows, unsqueeze(columns, 1)], 1)
    longest = op.reduce_max(op.reduce_sum(kept, ints_of([1]), False), ints_of([0]), True)
    shape = op.concat([size_of(x, 0), longest], 0)
    used = op.select(is_valid, highest, like(0, highest))
    total = op.negative(op.reduce_sum(used, ints_of([1]), True))
    return indices, op.gather_nd(classes, positions), shape, total


OPERATORS: dict[str, Operator] = {
    "LSTM": _lstm,
    "CTCGreedyDecoder": _ctc_greedy_decoder,
}
