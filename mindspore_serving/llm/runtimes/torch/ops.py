"""Operations of a definition in eager PyTorch, on a CPU or a CUDA device.

A rank computes its part of every layer; sums over ranks are in float32 on a CPU.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import torch
from torch.nn import functional

from mindspore_serving.llm.models.expert_block import ExpertBlock, HeldExperts
from mindspore_serving.llm.models.ops import AttentionSpec, Longer, Ops, latent_sizes
from mindspore_serving.llm.models.state_rules import DeltaRule, SelectiveScan
from mindspore_serving.llm.parallel.exchange import RankExchange
from mindspore_serving.llm.parallel.expert_counts import RankExperts
from mindspore_serving.llm.runtimes.torch.attention import Attention, TorchCache
from mindspore_serving.llm.runtimes.torch.collectives import DeviceExchange
from mindspore_serving.llm.runtimes.torch.experts import held_indices, route, run_expert
from mindspore_serving.llm.runtimes.torch.lora import AdapterTokens, TorchAdapters
from mindspore_serving.llm.runtimes.torch.states import (
    StateCache,
    StatePiece,
    causal_convolution,
    delta_rule,
    selective_scan,
)
from mindspore_serving.llm.runtimes.torch.weights import TorchWeights

Tensor: TypeAlias = torch.Tensor
Caches: TypeAlias = tuple[TorchCache, StateCache]


@dataclass(frozen=True, slots=True)
class TorchPass:
    """Cache slots, attention, adapters and state pieces of the step being computed."""

    slots: Tensor  # [T]
    attention: Attention
    adapters: tuple[AdapterTokens, ...] = ()
    pieces: Sequence[StatePiece] = ()


class TorchOps(Ops):
    """`Ops` in PyTorch: tensors are torch.Tensor, and weights are tensors on the device."""

    def __init__(
        self, weights: TorchWeights, caches: Caches, dtype: torch.dtype, adapters: TorchAdapters
    ) -> None:
        self._weights = weights
        self._cache, self._states = caches
        self._adapters = adapters
        self._dtype = dtype
        self._frequencies: dict[tuple[float, ...], Tensor] = {}
        self._pass: TorchPass | None = None
        self._chosen: tuple[AdapterTokens, ...] = ()
        self._is_adapted = False  # the pass has adapters, or records which weights they may change
        self.specs: set[AttentionSpec] = set()  # of all attention that was computed
        self.last_hidden: Tensor | None = None  # of the last pass, [num_logits, H]
        self.routed: list[Tensor] = []  # experts of the pass by layer, where ranks have some each

    def begin(self, current: TorchPass) -> None:
        """Start a pass with the slots and the attention of `current`."""
        self._pass = current
        self.routed = []
        self._chosen = current.adapters
        self._is_adapted = bool(current.adapters) or self._adapters.used is not None

    def _current(self) -> TorchPass:
        if self._pass is None:
            raise RuntimeError("an operation on the cache outside of a pass: begin() comes first")
        return self._pass

    def weight(self, name: str) -> Tensor:
        return self._weights[name]

    def has_weight(self, name: str) -> bool:
        return self._weights.has(name)

    def embedding(self, ids: Tensor, table: Tensor) -> Tensor:
        y = functional.embedding(ids, table)
        if self._is_adapted:
            self._adapters.add_rows(self._chosen, table, ids, y)
        return y

    def replace_rows(self, x: Tensor, indices: Tensor, rows: Tensor) -> Tensor:
        return x.index_copy(0, indices, rows.to(x.dtype))

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        y = functional.linear(x, weight, bias)
        if self._is_adapted:
            self._adapters.add_product(self._chosen, weight, x, y, of_rows=False)
        return y

    def logits(self, x: Tensor, head: Tensor, bias: Tensor | None = None) -> Tensor:
        y = functional.linear(x, head, bias)
        if self._is_adapted:
            self._adapters.add_product(self._chosen, head, x, y, of_rows=True)
        return y

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float, *, plus_one: bool = False) -> Tensor:
        scale = 1.0 + weight.float() if plus_one else weight.float()
        normed = functional.rms_norm(x.float(), x.shape[-1:], scale, eps)
        return normed.to(x.dtype)

    def head_rms_norm(
        self, x: Tensor, weight: Tensor | None, num_heads: int, eps: float, *,
        plus_one: bool = False,
    ) -> Tensor:  # fmt: skip
        heads = x.unflatten(-1, (num_heads, -1))
        width = heads.shape[-1]
        if weight is not None and len(weight) == width:
            return self.rms_norm(heads, weight, eps, plus_one=plus_one).flatten(1)
        normed = functional.rms_norm(heads.float(), [width], None, eps)
        if weight is not None:
            normed = normed * weight.float().view(num_heads, width)
        return normed.to(x.dtype).flatten(1)

    def layer_norm(
        self, x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, *,
        plus_one: bool = False,
    ) -> Tensor:  # fmt: skip
        if plus_one and weight is not None:
            weight = weight + 1
        return functional.layer_norm(x, x.shape[-1:], weight, bias, eps)

    def head_layer_norm(self, x: Tensor, weight: Tensor, num_heads: int, eps: float) -> Tensor:
        heads = x.unflatten(-1, (num_heads, -1))
        return (functional.layer_norm(heads, heads.shape[-1:], eps=eps) * weight).flatten(1)

    def rope_tables(
        self, positions: Tensor, inv_freq: Sequence[float], scale: float = 1.0,
        longer: Longer | None = None, axes: Sequence[int] = (),
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """Return (cos, sin), [T, 1, len(inv_freq)] each."""
        frequencies = self._on_device(inv_freq, positions)
        if longer is not None:
            uses_long_rope, long_freq = longer
            long_frequencies = self._on_device(long_freq, positions)
            frequencies = torch.where(uses_long_rope[:, None] > 0, long_frequencies, frequencies)
        columns = positions[:, list(axes)] if axes else positions[:, None]
        angles = (columns.float() * frequencies)[:, None]
        return (angles.cos() * scale).to(self._dtype), (angles.sin() * scale).to(self._dtype)

    def _on_device(self, inv_freq: Sequence[float], positions: Tensor) -> Tensor:
        key = tuple(inv_freq)
        frequencies = self._frequencies.get(key)
        if frequencies is None:
            frequencies = torch.tensor(key, dtype=torch.float32, device=positions.device)
            self._frequencies[key] = frequencies
        return frequencies

    def rope(
        self, x: Tensor, tables: tuple[Tensor, Tensor], num_heads: int, *, pairs: bool = False
    ) -> Tensor:
        cos, sin = tables
        half = cos.shape[-1]
        heads = x.unflatten(-1, (num_heads, -1))
        first, second, rest = heads.split([half, half, heads.shape[-1] - 2 * half], -1)
        if pairs:
            first, second = heads[..., : 2 * half : 2], heads[..., 1 : 2 * half : 2]
        rotated = [first * cos - second * sin, second * cos + first * sin, rest]
        return torch.cat(rotated, -1).flatten(1)

    def query_scale(self, positions: Tensor, beta: float, length: int, first: int) -> Tensor:
        steps = torch.floor((positions.float()[:, None] + first) / length)
        return (1 + beta * torch.log1p(steps)).to(self._dtype)

    def split_heads(self, x: Tensor, num_heads: int, sizes: Sequence[int]) -> list[Tensor]:
        heads = x.unflatten(-1, (num_heads, -1))
        return [part.flatten(1) for part in heads.split(list(sizes), -1)]

    def join_heads(self, parts: Sequence[Tensor], num_heads: int, width: int) -> Tensor:
        joined = torch.cat([part.unflatten(-1, (num_heads, -1)) for part in parts], -1)
        return functional.pad(joined, (0, width - joined.shape[-1])).flatten(1)

    def repeat_head(self, x: Tensor, num_heads: int) -> Tensor:
        return x.repeat(1, num_heads)

    def attention(self, layer: int, q: Tensor, k: Tensor, v: Tensor, spec: AttentionSpec) -> Tensor:
        current = self._current()
        self.specs.add(spec)
        shape = (len(k), spec.num_kv_heads, spec.head_dim)
        self._cache.write(layer, current.slots, k.view(shape), v.view(shape))
        sinks = self._weights[spec.sinks] if spec.sinks else None
        return current.attention.attend(*self._cache.layers[layer], q, spec, sinks)

    def latent_attention(
        self, layer: int, q: tuple[Tensor, Tensor], key: tuple[Tensor, Tensor], expansion: Tensor,
        spec: AttentionSpec,
    ) -> Tensor:  # fmt: skip
        if not self._cache.is_latent:
            expanded: Tensor = super().latent_attention(layer, q, key, expansion, spec)
            return expanded
        latent, heads, current = latent_sizes(spec), spec.num_heads, self._current()
        matrices = expansion.view(heads, latent.plain + latent.value, latent.kv_rank)
        of_keys, of_values = matrices.split([latent.plain, latent.value], 1)
        plain, rotated = (part.unflatten(-1, (heads, -1)) for part in q)
        queries = torch.cat([torch.einsum("thp,hpr->thr", plain, of_keys), rotated], -1)
        self._cache.write(layer, current.slots, torch.cat(key, -1)[:, None])
        width = latent.kv_rank + latent.rotated
        shared = replace(spec, num_kv_heads=1, head_dim=width, latent=None)
        self.specs.add(shared)
        keys_values = self._cache.layers[layer]
        out = current.attention.attend(*keys_values, queries.flatten(1), shared)
        out = out.unflatten(-1, (heads, latent.kv_rank))
        return torch.einsum("thr,hvr->thv", out, of_values).flatten(1)

    def convolution(
        self, layer: int, x: Tensor, weight: Tensor, bias: Tensor | None = None
    ) -> Tensor:
        y = causal_convolution(x, self._states.layers[layer][0], weight, self._current().pieces)
        return y if bias is None else y + bias

    def delta_rule(
        self, layer: int, qkv: tuple[Tensor, Tensor, Tensor], alpha: Tensor, beta: Tensor,
        rule: DeltaRule,
    ) -> Tensor:  # fmt: skip
        rate = self._weights[rule.a_log].float().exp()
        decay = -rate * functional.softplus(alpha.float() + self._weights[rule.dt_bias].float())
        parts = (*qkv, decay, beta.float().sigmoid())
        table = self._states.layers[layer][1]
        return delta_rule(parts, table, rule.heads, self._current().pieces).to(alpha.dtype)

    def selective_scan(
        self, layer: int, xbc: tuple[Tensor, Tensor, Tensor], step: Tensor, scan: SelectiveScan
    ) -> Tensor:
        rate, bias, skip = (
            self._weights[name].float() for name in (scan.a_log, scan.dt_bias, scan.skip)
        )
        steps = functional.softplus(step.float() + bias).clamp(*scan.limits)
        table = self._states.layers[layer][1]
        x, b, c = (part.float() for part in xbc)
        parts = (c, b, x, -rate.exp() * steps, steps)
        y = selective_scan(parts, table, scan.heads, self._current().pieces)
        y += (x.unflatten(-1, (len(skip), -1)) * skip[:, None]).flatten(1)
        return y.to(step.dtype)

    def silu(self, x: Tensor) -> Tensor:
        return functional.silu(x)

    def relu(self, x: Tensor) -> Tensor:
        return functional.relu(x)

    def sigmoid(self, x: Tensor) -> Tensor:
        return torch.sigmoid(x)

    def gelu(self, x: Tensor, *, tanh: bool = True) -> Tensor:
        return functional.gelu(x, approximate="tanh" if tanh else "none")

    def mean(self, x: Tensor) -> Tensor:
        return x.mean(-1, keepdim=True)

    def softcap(self, x: Tensor, cap: float) -> Tensor:
        return torch.tanh(x / cap) * cap

    def split(self, x: Tensor, sizes: Sequence[int]) -> list[Tensor]:
        return [part.contiguous() for part in x.split(list(sizes), -1)]

    def gather_rows(self, x: Tensor, rows: Tensor) -> Tensor:
        return x[rows]

    def moe(self, x: Tensor, scores: Tensor, block: ExpertBlock) -> Tensor:
        weights, chosen = route(scores, block.routing, block.correction)
        if block.gains is not None:
            weights = weights * block.gains.float()[chosen]
        weights = weights.to(x.dtype)
        out = torch.zeros_like(x)
        if block.held is not None:
            self.routed.append(chosen)
            chosen = held_indices(chosen, block.held)
        for index in chosen.unique().tolist():
            if index < 0:  # of another rank
                continue
            tokens, ranks = (chosen == index).nonzero(as_tuple=True)
            weight = weights[tokens, ranks, None]
            if block.routing.scales_input:
                result = run_expert(x[tokens] * weight, block, index)
            else:
                result = run_expert(x[tokens], block, index) * weight
            out.index_add_(0, tokens, result)
        return out

    def hidden(self, x: Tensor) -> Tensor:
        self.last_hidden = x
        return x


class TorchRankOps(TorchOps):
    """`Ops` of one rank; embedding and head have the rank's rows of the vocabulary.

    With `collectives` ranks exchange tensors on their devices, else arrays through memory.
    """

    collectives: DeviceExchange | None = None

    def __init__(
        self, weights: TorchWeights, caches: Caches, dtype: torch.dtype, adapters: TorchAdapters,
        shared: tuple[RankExchange, RankExperts | None],
    ) -> None:  # fmt: skip
        super().__init__(weights, caches, dtype, adapters)
        self._exchange, self._experts = shared

    def held_experts(self, layer: int) -> HeldExperts | None:
        return None if self._experts is None else self._experts.held_in(layer)

    def embedding(self, ids: Tensor, table: Tensor) -> Tensor:
        rank_rows = self._exchange.rows
        is_other = (ids < rank_rows.begin) | (ids >= rank_rows.end)
        rows = super().embedding((ids - rank_rows.begin).masked_fill(is_other, 0), table)
        return self.all_reduce(rows.masked_fill(is_other[:, None], 0))

    def whole_embedding(self, ids: Tensor, table: Tensor) -> Tensor:
        return super().embedding(ids, table)

    def spanning_rms_norm(self, x: Tensor, weight: Tensor, num_groups: int, eps: float) -> Tensor:
        exchange, wide = self._exchange, x.float()
        group = exchange.rank * num_groups // exchange.size
        sums = wide.new_zeros(len(x), num_groups)
        sums[:, group] = wide.square().sum(-1)
        mean = self.all_reduce(sums)[:, group, None] * num_groups / (len(weight) * exchange.size)
        return (wide * torch.rsqrt(mean + eps) * weight.float()).to(x.dtype)

    def mean_of_ranks(self, x: Tensor) -> Tensor:
        return self.all_reduce(self.mean(x)) / self._exchange.size

    def all_reduce(self, x: Tensor) -> Tensor:
        if self.collectives is not None:
            return self.collectives.sum(x)
        total = x.float().contiguous()
        array = total.numpy()
        self._exchange.sum(array, array)
        return total.to(x.dtype)

    def logits(self, x: Tensor, head: Tensor, bias: Tensor | None = None) -> Tensor:
        """Compute the logits of this rank's rows, and gather them on rank 0.

        Other ranks return no rows.
        """
        partial = super().logits(x, head, bias)
        if self.collectives is not None:
            return self.collectives.gather(partial)
        return torch.from_numpy(self._exchange.gather(partial.float().numpy())).to(partial.dtype)
