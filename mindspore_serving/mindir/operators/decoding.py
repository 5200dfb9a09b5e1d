"""Texts of a network's classes in time: the greedy decoder of connectionist temporal
classification."""

from typing import Any

import openvino as ov
from openvino import opset16 as op

from mindspore_serving.mindir.tensors import (
    Bool,
    Operator,
    Tensor,
    cast,
    ints_of,
    like,
    reshape,
    size_of,
)


def _ctc_greedy_decoder(x: Tensor, sequence_length: Tensor, *, merge_repeated: Bool = True) -> Any:
    """Of logits (time, batch, classes): the classes that are left as a sparse matrix (indices
    [count, 2], values [count], shape [2]), and minus the sum of the highest logits [batch, 1].

    The last class is the blank.
    """
    x = op.transpose(x, ints_of([1, 0, 2])).output(0)
    best = op.topk(x, op.constant(1), 2, "max", "none", "i64")
    classes, highest = (op.squeeze(best.output(at), ints_of([2])).output(0) for at in (1, 0))
    times = op.range(op.constant(0), reshape(size_of(x, 1), ()), op.constant(1), "i64")
    lengths = op.unsqueeze(cast(sequence_length, ov.Type.i64), ints_of([1]))
    is_there = op.less(times, lengths)
    blank = op.subtract(size_of(x, 2), ints_of([1]))
    is_left = op.logical_and(is_there, op.not_equal(classes, blank))
    if merge_repeated:
        all_before = op.slice(classes, ints_of([0]), ints_of([-1]), ints_of([1]), ints_of([1]))
        begin, nothing = ints_of([0, 1]), ints_of([0, 0])
        before = op.pad(all_before, begin, nothing, "constant", op.constant(-1))
        is_left = op.logical_and(is_left, op.not_equal(classes, before))
    kept = cast(is_left.output(0), ov.Type.i64)
    at = op.subtract(op.cumsum(kept, op.constant(1)), ints_of([1])).output(0)
    places = op.transpose(op.non_zero(is_left, "i64"), ints_of([1, 0]))
    rows = op.gather(places, ints_of([0]), op.constant(1))
    columns = op.gather_nd(at, places)
    indices = op.concat([rows, op.unsqueeze(columns, ints_of([1]))], 1)
    longest = op.reduce_max(op.reduce_sum(kept, ints_of([1]), False), ints_of([0]), True)
    shape = op.concat([size_of(x, 0), longest], 0)
    used = op.select(is_there, highest, like(0, highest))
    total = op.negative(op.reduce_sum(used, ints_of([1]), True))
    return indices, op.gather_nd(classes, places), shape, total


OPERATORS: dict[str, Operator] = {"CTCGreedyDecoder": _ctc_greedy_decoder}
