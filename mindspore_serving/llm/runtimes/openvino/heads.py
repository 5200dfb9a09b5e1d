"""Operations by head: norms, rotary positions, and splitting and joining features.

A tensor is [tokens, heads * features] outside, and [tokens, 1, heads, features] within.
"""

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from openvino import opset13 as opset

from mindspore_serving.llm.models.ops import Longer
from mindspore_serving.llm.runtimes.openvino.elementwise import Elementwise
from mindspore_serving.llm.runtimes.openvino.nodes import (
    TO_END,
    Node,
    expect,
    f32,
    features,
    head_width,
    i32,
    i64,
    name_of,
    named,
    reshaped,
    sliced,
)

Tables: TypeAlias = tuple[Node, Node, int]  # cos and sin, and the number of rotated features


def rms(x: Node, gain: Node | None, eps: float) -> Node:
    """Normalise the last axis by its root mean square, scaled by `gain` if there is one."""
    mean = opset.reduce_mean(opset.power(x, f32(2)), i64(-1), keep_dims=True)
    inverse = opset.divide(f32(1), opset.sqrt(opset.add(mean, f32(eps))))
    y = opset.multiply(x, inverse)
    return y if gain is None else opset.multiply(gain, y)


def rms_norm(x: Node, gain: Node | None, num_heads: int, eps: float) -> Node:
    """Apply `rms` to each head; `gain` has the features of one head or of all."""
    width = features(x)
    heads = _heads(x, num_heads)
    if gain is not None:
        gain = reshaped(gain, 1, 1, -1, width // num_heads)
    return reshaped(rms(heads, gain, eps), -1, width)


def layer_norm(x: Node, gain: Node, num_heads: int, eps: float) -> Node:
    """Apply a layer norm to each head; `gain` has a row for each head."""
    y = opset.mvn(_heads(x, num_heads), i64(-1), True, eps, "INSIDE_SQRT")
    y = opset.multiply(y, reshaped(gain, 1, 1, num_heads, -1))
    return reshaped(y, -1, features(x))


class Headwise(Elementwise):
    """Operations of `Ops` on heads that need neither weights nor a cache."""

    def rope_tables(
        self, positions: Node, inv_freq: Sequence[float], scale: float = 1.0,
        longer: Longer | None = None, axes: Sequence[int] = (),
    ) -> Tables:  # fmt: skip
        frequencies = opset.constant(np.array([inv_freq], np.float32))
        if longer is not None:
            uses_long_rope, long_freq = longer
            chosen = opset.unsqueeze(opset.greater(uses_long_rope, i32(0)), i64(1))
            long_frequencies = opset.constant(np.array([long_freq], np.float32))
            frequencies = opset.select(chosen, long_frequencies, frequencies)
        columns = opset.convert(positions, "f32")
        columns = (
            opset.gather(columns, i64(*axes), i64(1)) if axes else opset.unsqueeze(columns, i64(1))
        )
        angles = opset.multiply(columns, frequencies)
        both = opset.concat([angles, angles], -1)
        width = 2 * len(inv_freq)
        cos, sin = (
            reshaped(table if scale == 1.0 else opset.multiply(table, f32(scale)), -1, 1, 1, width)
            for table in (opset.cos(both), opset.sin(both))
        )
        return cos, sin, width

    def rope(self, x: Node, tables: Tables, num_heads: int, *, pairs: bool = False) -> Node:
        cos, sin, rotated = tables
        width, head_dim = features(x), head_width(x, num_heads, minimum=rotated)
        heads = _heads(x, num_heads)
        to_rotate = heads if rotated == head_dim else sliced(heads, 0, rotated)
        if pairs:  # reorder to halves: a score is a sum over features in any order
            to_rotate = opset.concat(
                [sliced(to_rotate, 0, TO_END, 2), sliced(to_rotate, 1, TO_END, 2)], -1
            )
        first, second = sliced(to_rotate, 0, rotated // 2), sliced(to_rotate, rotated // 2, TO_END)
        halves = opset.concat([opset.multiply(second, f32(-1)), first], -1)
        y = opset.add(opset.multiply(to_rotate, cos), opset.multiply(halves, sin))
        if rotated != head_dim:
            y = opset.concat([y, sliced(heads, rotated, TO_END)], -1)
        return named(reshaped(y, -1, width), name_of(x))

    def query_scale(self, positions: Node, beta: float, length: int, first: int) -> Node:
        column = opset.unsqueeze(opset.convert(positions, "f32"), i64(1))
        steps = opset.floor(opset.divide(opset.add(column, f32(first)), f32(length)))
        return opset.add(opset.multiply(opset.log(opset.add(steps, f32(1))), f32(beta)), f32(1))

    def split_heads(self, x: Node, num_heads: int, sizes: Sequence[int]) -> list[Node]:
        expect(x, num_heads * sum(sizes), f"{num_heads} heads of {list(sizes)}")
        heads, ends = _heads(x, num_heads), np.cumsum(sizes).tolist()
        return [
            reshaped(sliced(heads, end - size, end), -1, num_heads * size)
            for size, end in zip(sizes, ends, strict=True)
        ]

    def join_heads(self, parts: Sequence[Node], num_heads: int, width: int) -> Node:
        joined = [_heads(part, num_heads) for part in parts]
        padding = width - sum(map(features, joined))
        if padding:
            shape = opset.concat([_count(parts[0]), i64(1, num_heads, padding)], 0)
            joined.append(opset.broadcast(f32(0), shape))
        y = opset.concat(joined, -1) if len(joined) > 1 else joined[0]
        return named(reshaped(y, -1, num_heads * width), name_of(parts[0]))

    def repeat_head(self, x: Node, num_heads: int) -> Node:
        shape = opset.concat([_count(x), i64(num_heads, features(x))], 0)
        y = opset.broadcast(opset.unsqueeze(x, i64(1)), shape)
        return named(reshaped(y, -1, num_heads * features(x)), name_of(x))


def _count(x: Node) -> Node:
    """Return the number of tokens, [1]."""
    return opset.slice(opset.shape_of(x), i64(0), i64(1), i64(1), i64(0))


def _heads(x: Node, num_heads: int) -> Node:
    return reshaped(x, -1, 1, num_heads, head_width(x, num_heads))
