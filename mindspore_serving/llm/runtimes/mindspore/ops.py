"""The operations of a definition in eager MindSpore, float32, by the operators of a device.

What is not in their table is arithmetic, indexing and shapes of tensors, which every device has.
"""

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from mindspore_serving.llm.models.ops import AttentionSpec, Ops
from mindspore_serving.llm.runtimes.mindspore.attention import PagedCache, Pass, Past, attend
from mindspore_serving.llm.runtimes.mindspore.operators import Operators, Weights, tensor

Tensor: TypeAlias = Any  # a mindspore.Tensor


class MindSporeOps(Ops):
    """`Ops`.  A tensor is a mindspore.Tensor, a weight is a tensor's name."""

    def __init__(self, weights: Weights, cache: PagedCache, operators: Operators) -> None:
        self._weights = weights
        self._op = operators
        self._cache = cache
        self._pass: Pass | None = None

    def begin(self, current: Pass) -> None:
        """`current` has the places of the next pass's tokens."""
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
        self, x: Tensor, weight: str, num_heads: int, eps: float, *, plus_one: bool = False
    ) -> Tensor:
        heads = x.reshape(x.shape[0], num_heads, -1)
        return self.rms_norm(heads, weight, eps, plus_one=plus_one).reshape(x.shape)

    def layer_norm(self, x: Tensor, weight: str, bias: str | None, eps: float) -> Tensor:
        centred = x - self._op.mean(x)
        normed = centred * self._op.rsqrt(self._op.mean(centred * centred) + eps)
        scaled = normed * self._weights.plain(weight)
        return scaled if bias is None else scaled + self._weights.plain(bias)

    def rope_tables(
        self, positions: Tensor, inv_freq: Sequence[float], scale: float = 1.0
    ) -> tuple[Tensor, Tensor]:
        """(cos, sin), [T, 1, len(inv_freq)] each."""
        frequencies = np.asarray(inv_freq, np.float32)
        angles = (positions.asnumpy().astype(np.float32)[:, None] * frequencies)[:, None]
        factor = np.float32(scale)
        return tensor(np.cos(angles) * factor), tensor(np.sin(angles) * factor)

    def rope(self, x: Tensor, tables: tuple[Tensor, Tensor], num_heads: int) -> Tensor:
        cos, sin = tables
        half = cos.shape[-1]
        heads = x.reshape(x.shape[0], num_heads, -1)
        first, second = heads[..., :half], heads[..., half : 2 * half]
        turned = [first * cos - second * sin, second * cos + first * sin]
        if heads.shape[-1] > 2 * half:
            turned.append(heads[..., 2 * half :])
        return self._op.cat(turned, -1).reshape(x.shape)

    def attention(self, layer: int, q: Tensor, k: Tensor, v: Tensor, spec: AttentionSpec) -> Tensor:
        if self._pass is None:
            raise RuntimeError("attention outside of a pass: begin() comes first")
        layout = self._pass.layout
        self._cache.write(layer, layout.slots, k.asnumpy(), v.asnumpy())
        parts = []
        for span in layout.spans:
            past = Past(*self._cache.read(layer, span), self._pass.mask(span, spec))
            parts.append(attend(self._op, q[span.begin : span.end], past, spec))
        return self._op.cat(parts, 0) if len(parts) > 1 else parts[0]

    def silu_mul(self, gate: Tensor, up: Tensor) -> Tensor:
        return self._op.silu(gate) * up

    def gelu(self, x: Tensor, *, tanh: bool = True) -> Tensor:
        if tanh:
            return self._op.gelu_tanh(x)
        return x * (self._op.erf(x * 0.5**0.5) + 1.0) * 0.5

    def softcap(self, x: Tensor, cap: float) -> Tensor:
        return self._op.tanh(x / cap) * cap

    def split(self, x: Tensor, sizes: Sequence[int]) -> list[Tensor]:
        ends = np.cumsum(sizes).tolist()
        return [x[:, end - size : end] for size, end in zip(sizes, ends, strict=True)]

    def gather_rows(self, x: Tensor, rows: Tensor) -> Tensor:
        return self._op.take(x, rows)

    def moe(
        self,
        x: Tensor,
        router: str,
        experts: Sequence[tuple[str, str, str]],
        *,
        top_k: int,
        normalize: bool,
    ) -> Tensor:
        for names in experts:  # all of them at the first pass, not each when a token meets it
            for name in names:
                self._weights.transposed(name)
        scores = self._op.softmax(self.linear(x, router)).asnumpy()
        chosen = np.argpartition(-scores, top_k - 1, axis=-1)[:, :top_k]
        shares = np.take_along_axis(scores, chosen, -1)
        if normalize:
            shares = shares / shares.sum(-1, keepdims=True)
        out = np.zeros(x.shape, np.float32)
        for index in np.unique(chosen).tolist():
            tokens, places = np.nonzero(chosen == index)
            gate, up, down = experts[index]
            part = self._op.take(x, tensor(tokens.astype(np.int32)))
            hidden = self.silu_mul(self.linear(part, gate), self.linear(part, up))
            out[tokens] += self.linear(hidden, down).asnumpy() * shares[tokens, places, None]
        return tensor(out)
