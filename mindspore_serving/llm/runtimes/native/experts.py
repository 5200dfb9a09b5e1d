"""Compiled choice of experts; the order of rows by expert is that of `kernels.choices`."""

import numpy as np

from mindspore_serving.llm.runtimes.native.codes import RouteFlag
from mindspore_serving.llm.runtimes.native.compiling import compiled
from mindspore_serving.llm.runtimes.native.elementwise import (
    A_STRIDE,
    B_STRIDE,
    OUT,
    OUT_STRIDE,
    P0,
    P1,
    P2,
    P3,
    P4,
    P5,
    WIDTH,
    A,
    B,
    Floats,
    Integers,
    sigmoid,
)
from mindspore_serving.llm.runtimes.native.memory import exp
from mindspore_serving.llm.runtimes.native.memory import load_f32 as get
from mindspore_serving.llm.runtimes.native.memory import store_f32 as put

_SIGMOID, _NORMALIZE, _BY_PAIRS = map(int, RouteFlag)
_ZERO, _LOWEST = np.float32(0), np.float32(-np.inf)


@compiled
def chosen(arena: int, op: Integers, row: int) -> int:
    """Return the expert of a row: the number at B."""
    return int(get(arena, op[B] + row * op[B_STRIDE]))


@compiled
def add_bias(arena: int, op: Integers, rows: int) -> None:
    """Add to A the bias of each row's expert, WIDTH numbers from P1 on."""
    for row in range(rows):
        bias = op[P1] + chosen(arena, op, row) * op[WIDTH]
        at, to = op[A] + row * op[A_STRIDE], op[OUT] + row * op[OUT_STRIDE]
        for i in range(op[WIDTH]):
            put(arena, to + i, get(arena, at + i) + get(arena, bias + i))


@compiled
def route(arena: int, op: Integers, numbers: Floats, rows: int) -> None:
    """Write the P4 best of WIDTH experts, and then their weights.

    A are the router's scores; P0 has flags (`RouteFlag`), B the offset of a correction and P1 that
    of gains, or -1, P2 the number of groups, of which P3 are chosen; P5 is the offset of scratch
    memory for three numbers an expert.  Numbers are the least sum of weights, and their factor.
    """
    count, flags, top_k = op[WIDTH], op[P0], op[P4]
    shares = arena + 4 * op[P5]
    ranked = shares + 4 * count
    for row in range(rows):
        at = op[A] + row * op[A_STRIDE]
        _share(arena + 4 * at, shares, count, flags & _SIGMOID)
        for i in range(count):
            put(ranked, i, get(shares, i) + (get(arena, op[B] + i) if op[B] >= 0 else _ZERO))
        if op[P3] < op[P2]:
            _keep_groups(ranked, count, op, flags & _BY_PAIRS)
        to = op[OUT] + row * op[OUT_STRIDE]
        total = _ZERO
        for i in range(top_k):
            best = _take_best(ranked, count)
            put(arena, to + i, np.float32(best))
            put(arena, to + top_k + i, get(shares, best))
            total += get(shares, best)
        factor = numbers[1]
        if flags & _NORMALIZE:
            factor /= max(total, numbers[0])
        for i in range(top_k):
            expert = int(get(arena, to + i))
            gain = get(arena, op[P1] + expert) if op[P1] >= 0 else np.float32(1)
            at = to + top_k + i
            put(arena, at, get(arena, at) * factor * gain)


@compiled
def _share(scores: int, shares: int, count: int, by_sigmoid: int) -> None:
    """Write the sigmoid or the softmax of `scores`."""
    if by_sigmoid:
        for i in range(count):
            put(shares, i, sigmoid(get(scores, i)))
        return
    largest, total = get(scores, 0), _ZERO
    for i in range(count):
        largest = max(largest, get(scores, i))
    for i in range(count):
        share = exp(get(scores, i) - largest)
        put(shares, i, share)
        total += share
    for i in range(count):
        put(shares, i, get(shares, i) / total)


@compiled
def _take_best(ranked: int, count: int) -> int:
    """Return the index of the largest number, which becomes -inf; in range whatever the numbers."""
    best = 0
    for i in range(count):
        if get(ranked, i) > get(ranked, best):
            best = i
    put(ranked, best, _LOWEST)
    return best


@compiled
def _keep_groups(ranked: int, count: int, op: Integers, by_pairs: int) -> None:
    """Set the scores outside of the P3 best of P2 groups to -inf."""
    groups = op[P2]
    size, ratings = count // groups, ranked + 4 * count
    for group in range(groups):
        first, second = _LOWEST, _LOWEST
        for i in range(group * size, (group + 1) * size):
            score = get(ranked, i)
            if score > first:
                first, second = score, first
            elif score > second:
                second = score
        put(ratings, group, first + second if by_pairs else first)
    for _ in range(op[P3]):
        _take_best(ratings, groups)
    for group in range(groups):
        if get(ratings, group) != _LOWEST:
            for i in range(group * size, (group + 1) * size):
                put(ranked, i, _LOWEST)
