"""Operations of a definition in eager MindSpore, float32, by the operators of a device.

Operations that are not in their table are arithmetic, indexing and shapes of tensors, which every
device has.
"""

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from mindspore_serving.llm.models.expert_block import ExpertBlock
from mindspore_serving.llm.models.ops import AttentionSpec, Longer, Ops
from mindspore_serving.llm.runtimes.mindspore.attention import (
    F32,
    MindSporeCache,
    MindSporePass,
    Past,
    attend,
)
from mindspore_serving.llm.runtimes.mindspore.experts import clamped, route
from mindspore_serving.llm.runtimes.mindspore.operators import MindSporeWeights, Operators, tensor

Tensor: TypeAlias = Any  # a mindspore.Tensor


class MindSporeOps(Ops):
    """`Ops` in MindSpore: tensors are mindspore.Tensor, and a weight's handle is its name."""

    def __init__(
        self, weights: MindSporeWeights, cache: MindSporeCache, operators: Operators
    ) -> None:
        self._weights = weights
        self._op = operators
        self._cache = cache
        self._pass: MindSporePass | None = None

    def begin(self, current: MindSporePass) -> None:
        """Start a pass over the tokens of `current`."""
        self._pass = current

    def weight(self, name: str) -> str:
        self._weights.check(name)
        return name

    def has_weight(self, name: str) -> bool:
        return self._weights.has(name)

    def embedding(self, ids: Tensor, table: str) -> Tensor:
        return self._op.take(self._weights.plain(table), ids)

    def linear(self, x: Tensor, weight: str, bias: str | None = None) -> Tensor:
        y = self._op.matmul(x, self._weights.transposed(weight))
        return y if bias is None else y + self._weights.plain(bias)

    def rms_norm(self, x: Tensor, weight: str, eps: float, *, plus_one: bool = False) -> Tensor:
        scale = self._weights.plain(weight)
        normed = x * self._op.rsqrt(self._op.mean(x * x) + eps)
        return normed * (scale + 1.0 if plus_one else scale)

    def head_rms_norm(
        self, x: Tensor, weight: str | None, num_heads: int, eps: float, *, plus_one: bool = False
    ) -> Tensor:
        heads = x.reshape(x.shape[0], num_heads, -1)
        if weight is None:
            normed = heads * self._op.rsqrt(self._op.mean(heads * heads) + eps)
            return normed.reshape(x.shape)
        return self.rms_norm(heads, weight, eps, plus_one=plus_one).reshape(x.shape)

    def layer_norm(
        self, x: Tensor, weight: str | None, bias: str | None, eps: float, *,
        plus_one: bool = False,
    ) -> Tensor:  # fmt: skip
        y = self._centred(x, eps)
        if weight is not None:
            scale = self._weights.plain(weight)
            y = y * (scale + 1.0 if plus_one else scale)
        return y if bias is None else y + self._weights.plain(bias)

    def head_layer_norm(self, x: Tensor, weight: str, num_heads: int, eps: float) -> Tensor:
        heads = self._centred(x.reshape(x.shape[0], num_heads, -1), eps)
        return (heads * self._weights.plain(weight)).reshape(x.shape)

    def _centred(self, x: Tensor, eps: float) -> Tensor:
        centred = x - self._op.mean(x)
        return centred * self._op.rsqrt(self._op.mean(centred * centred) + eps)

    def rope_tables(
        self, positions: Tensor, inv_freq: Sequence[float], scale: float = 1.0,
        longer: Longer | None = None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """Return (cos, sin), [T, 1, len(inv_freq)] each."""
        frequencies = np.asarray(inv_freq, np.float32)
        if longer is not None:
            uses_long_rope, long_freq = longer
            chosen = uses_long_rope.asnumpy()[:, None] > 0
            frequencies = np.where(chosen, np.asarray(long_freq, np.float32), frequencies)
        angles = (positions.asnumpy().astype(np.float32)[:, None] * frequencies)[:, None]
        factor = np.float32(scale)
        return tensor(np.cos(angles) * factor), tensor(np.sin(angles) * factor)

    def rope(
        self, x: Tensor, tables: tuple[Tensor, Tensor], num_heads: int, *, pairs: bool = False
    ) -> Tensor:
        cos, sin = tables
        half = cos.shape[-1]
        heads = x.reshape(x.shape[0], num_heads, -1)
        first, second = heads[..., :half], heads[..., half : 2 * half]
        if pairs:
            first, second = heads[..., : 2 * half : 2], heads[..., 1 : 2 * half : 2]
        rotated = [first * cos - second * sin, second * cos + first * sin]
        if heads.shape[-1] > 2 * half:
            rotated.append(heads[..., 2 * half :])
        return self._op.cat(rotated, -1).reshape(x.shape)

    def query_scale(self, positions: Tensor, beta: float, length: int, first: int) -> Tensor:
        steps = np.floor((positions.asnumpy().astype(np.float32)[:, None] + first) / length)
        return tensor((1 + beta * np.log1p(steps)).astype(np.float32))

    def split_heads(self, x: Tensor, num_heads: int, sizes: Sequence[int]) -> list[Tensor]:
        heads, ends = x.reshape(x.shape[0], num_heads, -1), np.cumsum(sizes).tolist()
        return [
            heads[..., end - size : end].reshape(x.shape[0], -1)
            for size, end in zip(sizes, ends, strict=True)
        ]

    def join_heads(self, parts: Sequence[Tensor], num_heads: int, width: int) -> Tensor:
        count = parts[0].shape[0]
        heads = np.zeros((count, num_heads, width), np.float32)
        begin = 0
        for part in parts:
            array = part.asnumpy().reshape(count, num_heads, -1)
            heads[..., begin : begin + array.shape[-1]] = array
            begin += array.shape[-1]
        return tensor(heads.reshape(count, -1))

    def repeat_head(self, x: Tensor, num_heads: int) -> Tensor:
        return self._op.cat([x] * num_heads, -1)

    def attention(self, layer: int, q: Tensor, k: Tensor, v: Tensor, spec: AttentionSpec) -> Tensor:
        if self._pass is None:
            raise RuntimeError("attention outside of a pass: begin() comes first")
        layout = self._pass.layout
        self._cache.write(layer, layout.slots, k.asnumpy(), v.asnumpy())
        parts, scores = [], self._weights.plain(spec.sinks) if spec.sinks else None
        for span in layout.spans:
            past = Past(*self._cache.read(layer, span), self._pass.mask(span, spec), scores)
            parts.append(attend(self._op, q[span.begin : span.end], past, spec))
        return self._op.cat(parts, 0) if len(parts) > 1 else parts[0]

    def silu(self, x: Tensor) -> Tensor:
        return self._op.silu(x)

    def relu(self, x: Tensor) -> Tensor:
        return (x + abs(x)) * 0.5

    def sigmoid(self, x: Tensor) -> Tensor:
        return (self._op.tanh(x * 0.5) + 1.0) * 0.5

    def gelu(self, x: Tensor, *, tanh: bool = True) -> Tensor:
        if tanh:
            return self._op.gelu_tanh(x)
        return x * (self._op.erf(x * 0.5**0.5) + 1.0) * 0.5

    def gain(self, x: Tensor, weight: str) -> Tensor:
        return x * self._weights.plain(weight)

    def mean(self, x: Tensor) -> Tensor:
        return self._op.mean(x)

    def softcap(self, x: Tensor, cap: float) -> Tensor:
        return self._op.tanh(x / cap) * cap

    def split(self, x: Tensor, sizes: Sequence[int]) -> list[Tensor]:
        ends = np.cumsum(sizes).tolist()
        return [x[:, end - size : end] for size, end in zip(sizes, ends, strict=True)]

    def gather_rows(self, x: Tensor, rows: Tensor) -> Tensor:
        return self._op.take(x, rows)

    def moe(self, x: Tensor, scores: Tensor, block: ExpertBlock) -> Tensor:
        # Load all experts at the first pass, not each at its first token.
        for weights in block.experts:
            for name in (weights.gate, weights.up, weights.down):
                self._weights.transposed(name)
        correction, gains = (
            None if name is None else self._weights.plain(name).asnumpy().reshape(-1)
            for name in (block.correction, block.gains)
        )
        shares, chosen = route(scores.asnumpy(), block.routing, correction)
        if gains is not None:
            shares = shares * gains[chosen]
        out = np.zeros(x.shape, np.float32)
        for index in np.unique(chosen).tolist():
            tokens, ranks = np.nonzero(chosen == index)
            share = shares[tokens, ranks, None]
            part = self._op.take(x, tensor(tokens.astype(np.int32)))
            if block.routing.scales_input:
                out[tokens] += self._expert(part * tensor(share), block, index)
            else:
                out[tokens] += self._expert(part, block, index) * share
        return tensor(out)

    def _expert(self, x: Tensor, block: ExpertBlock, index: int) -> F32:
        weights, clamp = block.experts[index], block.clamp
        first, second, third = weights.biases or (None, None, None)
        gate, up = self.linear(x, weights.gate, first), self.linear(x, weights.up, second)
        if block.is_gelu:
            hidden = self.gelu(gate) * up
        elif clamp is None:
            hidden = self.silu_mul(gate, up)
        else:
            hidden = tensor(clamped(gate.asnumpy(), up.asnumpy(), clamp))
        result: F32 = self.linear(hidden, weights.down, third).asnumpy()
        return result
