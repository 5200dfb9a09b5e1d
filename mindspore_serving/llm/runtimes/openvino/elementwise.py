"""Operations of `Ops` that need neither weights nor a cache: arithmetic and slicing."""

from collections.abc import Sequence

import numpy as np
from openvino import opset13 as opset

from mindspore_serving.llm.models.ops import MIN_MEAN_SQUARE, Ops
from mindspore_serving.llm.runtimes.openvino.nodes import (
    Node,
    expect,
    f32,
    features,
    i32,
    name_of,
    sliced,
    swish,
)


class Elementwise(Ops):
    """Elementwise operations; a tensor is a node of a graph."""

    def silu(self, x: Node) -> Node:
        return swish(x)

    def relu(self, x: Node) -> Node:
        return opset.relu(x)

    def sigmoid(self, x: Node) -> Node:
        return opset.sigmoid(x)

    def gelu(self, x: Node, *, tanh: bool = True) -> Node:
        return opset.gelu(x, "TANH" if tanh else "ERF")

    def mul(self, a: Node, b: Node) -> Node:
        return opset.multiply(a, b if features(b) == 1 else _like(a, b))

    def add(self, a: Node, b: Node) -> Node:
        return opset.add(a, _like(a, b))

    def scale(self, x: Node, factor: float) -> Node:
        return x if factor == 1.0 else opset.multiply(x, f32(factor))

    def mean(self, x: Node) -> Node:
        return opset.reduce_mean(x, i32(-1), True)

    def gaussian_topk(self, x: Node, cutoff: float) -> Node:
        deviation = opset.subtract(x, self.mean_of_ranks(x))
        std = opset.sqrt(self.mean_of_ranks(opset.multiply(deviation, deviation)))
        return opset.relu(opset.subtract(deviation, self.scale(std, cutoff)))

    def match_rms(self, x: Node, other: Node) -> Node:
        source, target = (self.mean(opset.multiply(each, each)) for each in (x, other))
        divisor = opset.maximum(source, f32(MIN_MEAN_SQUARE))
        return opset.multiply(x, opset.sqrt(opset.divide(target, divisor)))

    def below(self, ids: Node, count: int) -> Node:
        return opset.select(opset.less(ids, i32(count)), ids, i32(0))

    def softcap(self, x: Node, cap: float) -> Node:
        return self.scale(opset.tanh(self.scale(x, 1 / cap)), cap)

    def split(self, x: Node, sizes: Sequence[int]) -> list[Node]:
        expect(x, sum(sizes), f"pieces of {list(sizes)}")
        ends = np.cumsum(sizes).tolist()
        return [sliced(x, end - size, end) for size, end in zip(sizes, ends, strict=True)]

    def gather_rows(self, x: Node, rows: Node) -> Node:
        return opset.gather(x, rows, i32(0))


def _like(a: Node, b: Node) -> Node:
    expect(b, features(a), f"as many as {name_of(a)!r}")
    return b
