"""`Ops` without weights that plan a pass: elementwise operations, and features of heads."""

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from mindspore_serving.errors import StartError
from mindspore_serving.llm.models.ops import Ops
from mindspore_serving.llm.runtimes.native.codes import (
    Binary,
    Column,
    OpCode,
    Reduce,
    Scaling,
    Unary,
)
from mindspore_serving.llm.runtimes.native.plan import ArenaTensor, PlanRecorder

_OUT, _A, _B = Column.OUT, Column.A, Column.B

Node: TypeAlias = ArenaTensor


class PlannedOps(Ops):
    """Operations of tensors in the arena."""

    def __init__(self) -> None:
        self.recorder = PlanRecorder()

    def split(self, x: Node, sizes: Sequence[int]) -> list[Node]:
        expect(x, sum(sizes), f"pieces of {list(sizes)}")
        ends = np.cumsum(sizes).tolist()
        return [x.part(end - size, size) for end, size in zip(ends, sizes, strict=True)]

    def split_heads(self, x: Node, num_heads: int, sizes: Sequence[int]) -> list[Node]:
        width, begin, parts = head_width(x, num_heads), 0, []
        expect(x, num_heads * sum(sizes), f"{num_heads} heads of {list(sizes)}")
        for size in sizes:
            out = self.recorder.tensor(num_heads * size, per_token=x.per_token) if size else x
            if size:
                last = x.part(begin, x.width - begin)
                self._copy(out, last, (num_heads, size), (width, size))
            parts.append(out)
            begin += size
        return parts

    def join_heads(self, parts: Sequence[Node], num_heads: int, width: int) -> Node:
        out, begin = self.recorder.tensor(num_heads * width, per_token=parts[0].per_token), 0
        for index, part in enumerate(parts):
            size = head_width(part, num_heads)
            padding = width - begin - size if index == len(parts) - 1 else 0
            if padding < 0:
                raise StartError(f"parts of a head have more than its {width} features")
            to = out.part(begin, out.width - begin)
            self._copy(to, part, (num_heads, size), (size, width), padding)
            begin += size
        return out

    def repeat_head(self, x: Node, num_heads: int) -> Node:
        out = self.recorder.tensor(num_heads * x.width, per_token=x.per_token)
        self._copy(out, x, (num_heads, x.width), (0, x.width))
        return out

    def _copy(
        self, out: Node, x: Node, shape: tuple[int, int], distances: tuple[int, int],
        padding: int = 0,
    ) -> None:  # fmt: skip
        self.recorder.add(
            OpCode.COPY_HEADS, {_OUT: out, _A: x}, width=shape[1], p0=shape[0],
            p1=distances[0], p2=distances[1], p3=padding,
        )  # fmt: skip

    def silu_mul(self, gate: Node, up: Node) -> Node:
        return self._binary(Binary.SILU_MUL, gate, up)

    def gelu(self, x: Node, *, tanh: bool = True) -> Node:
        return self._unary(Unary.GELU_TANH if tanh else Unary.GELU, x)

    def silu(self, x: Node) -> Node:
        return self._unary(Unary.SILU, x)

    def relu(self, x: Node) -> Node:
        return self._unary(Unary.RELU, x)

    def sigmoid(self, x: Node) -> Node:
        return self._unary(Unary.SIGMOID, x)

    def scale(self, x: Node, factor: float) -> Node:
        return self._scaling(Scaling.SCALE, x, factor)

    def softcap(self, x: Node, cap: float) -> Node:
        return self._scaling(Scaling.SOFTCAP, x, cap)

    def gaussian_topk(self, x: Node, cutoff: float) -> Node:
        return self._scaling(Scaling.GAUSSIAN_TOPK, x, cutoff)

    def mul(self, a: Node, b: Node) -> Node:
        return self._binary(Binary.MUL, a, b)

    def add(self, a: Node, b: Node) -> Node:
        return self._binary(Binary.ADD, a, b)

    def mean(self, x: Node) -> Node:
        out = self.recorder.tensor(1, per_token=x.per_token)
        tensors = {_OUT: out, _A: x}
        self.recorder.add(OpCode.REDUCE, tensors, p0=Reduce.MEAN, width=x.width)
        return out

    def match_rms(self, x: Node, other: Node) -> Node:
        expect(other, x.width, "as many features as the other tensor")
        out = self._like(x)
        self.recorder.add(OpCode.REDUCE, {_OUT: out, _A: x, _B: other}, p0=Reduce.MATCH_RMS)
        return out

    def _like(self, x: Node) -> Node:
        return self.recorder.tensor(x.width, per_token=x.per_token)

    def _unary(self, kind: Unary, x: Node) -> Node:
        out = self._like(x)
        self.recorder.add(OpCode.UNARY, {_OUT: out, _A: x}, p0=kind)
        return out

    def _scaling(self, kind: Scaling, x: Node, *numbers: float) -> Node:
        out = self._like(x)
        self.recorder.add(OpCode.SCALING, {_OUT: out, _A: x}, numbers, p0=kind)
        return out

    def _binary(self, kind: Binary, a: Node, b: Node, number: float = 0.0) -> Node:
        code = OpCode.BROADCAST if b.width == 1 < a.width else OpCode.BINARY
        if code is OpCode.BINARY:
            expect(b, a.width, "as many features as the other tensor")
        if b.stride and a.per_token != b.per_token:
            raise StartError("an operation has tensors of different rows")
        out = self._like(a)
        self.recorder.add(code, {_OUT: out, _A: a, _B: b}, (number,), p0=kind)
        return out


def head_width(x: Node, num_heads: int) -> int:
    """Return the features of each head.  Raises StartError unless all have as many."""
    if x.width % num_heads:
        raise StartError(f"{x.width} features are not {num_heads} equal heads")
    return x.width // num_heads


def expect(x: Node, width: int, what: str) -> None:
    """Raise StartError unless `x` has `width` features."""
    if x.width != width:
        raise StartError(f"a tensor has {x.width} features, expected {what}: {width}")
