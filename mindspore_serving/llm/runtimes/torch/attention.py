"""Attention over a paged cache by PyTorch operations: gather, matmul, softmax.

CPUs use it, and CUDA devices without Triton; `kernels` reads keys and values in place instead.
Sequences with the same number of new tokens are computed together, padded to the longest of them.
Keys and values are gathered from their blocks in every step, so long contexts cost bandwidth.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Protocol

import numpy as np
import torch
from torch.nn import functional

from mindspore_serving.llm.models.ops import AttentionSpec
from mindspore_serving.llm.runtimes.layout import Indices, Layout, TokenSpan
from mindspore_serving.llm.runtimes.pages import Array, in_pages, release_rows

MAX_BATCHED_TOKENS = 16  # new tokens of a sequence up to which it shares a padded batch
BEGIN, COUNT, LENGTH, TABLE = range(4)  # columns of a sequence: see AttentionPath.decoding


class Attention(Protocol):
    """Attention of one step, with its arrays on the device."""

    def attend(
        self, keys: torch.Tensor, values: torch.Tensor, q: torch.Tensor, spec: AttentionSpec,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:  # fmt: skip
        """Attend with `q`, [T, heads * head_dim], over one layer's cache; return the same shape.

        The cache contains the new tokens.  `sinks` are [heads].
        """
        ...


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """Attention of a step before its arrays are on the device.

    `attention` is called with the arrays there.
    """

    arrays: Sequence[Indices]
    attention: Callable[[Sequence[torch.Tensor]], Attention]


class AttentionPath(Protocol):
    """Strategy of attention: it plans a step's tiles or groups."""

    def plan(self, layout: Layout) -> AttentionPlan: ...

    def decoding(self, rows: torch.Tensor) -> Attention:
        """Return the attention of a step with one new token per sequence.

        Row i of `rows`, [B, TABLE + blocks], describes the sequence of the step's i-th token: index
        of its first new token, number of new tokens, length with them, blocks.  No value of `rows`
        is read on the host, so that a captured graph holds for later values.
        """
        ...


@dataclass(frozen=True, slots=True)
class GatheredGroup:
    """Sequences with `num_new` new tokens each.  Shapes: B sequences, L longest length."""

    tokens: torch.Tensor  # [B * num_new], indices of the step's tokens
    tables: torch.Tensor  # [B, blocks], padded with any block
    lengths: torch.Tensor  # [B]
    visible_ends: torch.Tensor  # [B * num_new], one position past the last visible one
    num_new: int
    longest: int
    # By window, heads and whether it is causal.
    visible: dict[tuple[int, int, bool], torch.Tensor] = field(default_factory=dict)

    def distances(self) -> torch.Tensor:
        """Return how far back each key is, [B, num_new, L]; negative for the future and padding."""
        device = self.lengths.device
        keys = torch.arange(self.longest, device=device)
        queries = torch.arange(self.num_new, device=device) + self.lengths[:, None] - self.num_new
        return queries[:, :, None] - keys

    def mask(self, spec: AttentionSpec) -> torch.Tensor:
        """Return the mask of visible keys, [B, 1, num_groups * num_new, L], for all layers."""
        num_groups = spec.num_heads // spec.num_kv_heads
        mask = self.visible.get((spec.window, num_groups, spec.is_causal))
        if mask is None:
            keys = torch.arange(self.longest, device=self.lengths.device)
            mask = keys < self.visible_ends.view(-1, self.num_new, 1)
            if spec.is_causal:
                mask = self.distances() >= 0
            if spec.window:
                mask &= self.distances() < spec.window
            mask = mask.repeat(1, num_groups, 1)[:, None]
            self.visible[spec.window, num_groups, spec.is_causal] = mask
        return mask


class GatherPath:
    """The `AttentionPath` of this module."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size

    def plan(self, layout: Layout) -> AttentionPlan:
        """Group sequences by their number of new tokens; one with many is a group by itself."""
        spans: dict[tuple[int, int], list[TokenSpan]] = defaultdict(list)
        for index, span in enumerate(layout.spans):
            num_new = span.end - span.begin
            spans[num_new, 0 if num_new <= MAX_BATCHED_TOKENS else index].append(span)
        groups = list(spans.values())
        arrays = [array for group in groups for array in _group_arrays(group, layout.visible_ends)]
        return AttentionPlan(arrays, partial(_attention_from, groups))

    def decoding(self, rows: torch.Tensor) -> "GatheredAttention":
        tables = rows[:, TABLE:]
        longest = tables.shape[1] * self._block_size
        lengths = rows[:, LENGTH]
        return GatheredAttention(
            (GatheredGroup(rows[:, BEGIN], tables, lengths, lengths, 1, longest),)
        )


def _attention_from(
    groups: Sequence[Sequence[TokenSpan]], arrays: Sequence[torch.Tensor]
) -> "GatheredAttention":
    """Build the attention from the arrays that `_group_arrays` returns for each group."""
    groups_on_device = []
    for index, spans in enumerate(groups):
        tokens, tables, lengths, visible_ends = arrays[4 * index : 4 * index + 4]
        num_new, longest = spans[0].end - spans[0].begin, max(span.length for span in spans)
        groups_on_device.append(
            GatheredGroup(tokens, tables, lengths, visible_ends, num_new, longest)
        )
    return GatheredAttention(tuple(groups_on_device))


def _group_arrays(spans: Sequence[TokenSpan], visible_ends: Indices) -> list[Indices]:
    """Return `tokens`, `tables`, `lengths` and `visible_ends` of a `GatheredGroup`."""
    tokens = np.concatenate([np.arange(span.begin, span.end) for span in spans])
    return [
        tokens,
        block_tables(spans),
        np.array([span.length for span in spans]),
        visible_ends[tokens],
    ]


def block_tables(spans: Sequence[TokenSpan]) -> Indices:
    """Return the block tables, [spans, largest number of blocks], padded with block 0."""
    tables = np.zeros((len(spans), max(len(span.blocks) for span in spans)), np.int64)
    for row, span in zip(tables, spans, strict=True):
        row[: len(span.blocks)] = span.blocks
    return tables


@cache
def alibi_slopes(alibi: tuple[float, ...], device: torch.device) -> torch.Tensor:
    """Return ALiBi slopes, float32 [heads], cached on the device.

    While a graph is captured, nothing can be uploaded.
    """
    return torch.tensor(alibi, dtype=torch.float32, device=device)


@dataclass(frozen=True, slots=True)
class GatheredAttention:
    """The `Attention` of this module."""

    groups: tuple[GatheredGroup, ...]

    def attend(
        self, keys: torch.Tensor, values: torch.Tensor, q: torch.Tensor, spec: AttentionSpec,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:  # fmt: skip
        out = q.new_empty(len(q), spec.num_heads * values.shape[-1])
        for group in self.groups:
            gathered = tuple(_gather(stored, group, q.dtype) for stored in (keys, values))
            out[group.tokens] = _attend(group, q[group.tokens], gathered, spec, sinks)
        return out


class TorchCache:
    """Keys and values of layers, each [num_blocks, block_size, kv_heads, head_dim].

    `heads` has the last two sizes of each layer.  With `latent`, values are that many first
    features of keys, which latent attention caches.
    """

    def __init__(
        self, blocks: tuple[int, int], heads: Mapping[int, tuple[int, int]], *, dtype: torch.dtype,
        device: str, latent: int = 0,
    ) -> None:  # fmt: skip
        self._pages: list[Array] = []  # memory of the tensors, on a CPU

        def zeros(layer: int) -> torch.Tensor:
            # Zeros: masked values are multiplied by 0, so they have to be finite.
            shape = (*blocks, *heads[layer])
            if device != "cpu":
                return torch.zeros(shape, dtype=dtype, device=device)
            self._pages.append(in_pages((blocks[0], math.prod(shape[1:]) * dtype.itemsize), "u1"))
            return torch.from_numpy(self._pages[-1]).view(dtype).view(shape)

        self.is_latent = latent > 0
        self.layers: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        for layer in heads:
            keys = zeros(layer)
            self.layers[layer] = keys, keys[..., :latent] if latent else zeros(layer)

    def release(self, blocks: Sequence[int]) -> None:
        """Return the memory of `blocks` to the system, on a CPU."""
        for pages in self._pages:
            release_rows(pages, blocks)

    def clear(self) -> None:
        """Drop keys and values."""
        self.layers.clear()
        self._pages.clear()

    def copy(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """Copy blocks `source` to `target`; all are read before any is written."""
        for stored in self._all():
            stored[target] = stored[source]

    def read(self, block: int) -> memoryview:
        """Return the contents of a block, as bytes."""
        parts = [stored[block].reshape(-1).view(torch.uint8) for stored in self._all()]
        return memoryview(torch.cat(parts).cpu().numpy())

    def replace(self, block: int, content: memoryview) -> None:
        """Overwrite a block with `content`, bytes that `read` returned."""
        begin, source = 0, torch.frombuffer(content, dtype=torch.uint8)
        for stored in self._all():
            part = stored[block].view(-1).view(torch.uint8)
            part.copy_(source[begin : begin + part.numel()])
            begin += part.numel()

    def _all(self) -> Iterator[torch.Tensor]:
        for pair in self.layers.values():
            yield from pair[:1] if self.is_latent else pair

    def write(self, layer: int, slots: torch.Tensor, *new_tensors: torch.Tensor) -> None:
        """Write keys and values, [T, kv_heads, head_dim], to the slots of a layer.

        A latent cache has keys alone.
        """
        for stored, new in zip(self.layers[layer], new_tensors, strict=False):
            stored.flatten(0, 1)[slots] = new.to(stored.dtype)


def _gather(stored: torch.Tensor, group: GatheredGroup, dtype: torch.dtype) -> torch.Tensor:
    """Gather the cached keys or values of a group, [B, kv_heads, L, head_dim]."""
    return stored[group.tables].flatten(1, 2)[:, : group.longest].transpose(1, 2).to(dtype)


def _attend(
    group: GatheredGroup, q: torch.Tensor, keys_values: tuple[torch.Tensor, ...],
    spec: AttentionSpec, sinks: torch.Tensor | None,
) -> torch.Tensor:  # fmt: skip
    """Attend with `q`, [B * num_new, heads * head_dim], over [B, kv_heads, L, head_dim].

    The result has the features of values.  Heads that share a key are stacked as if they were
    queries, so that no key is repeated.
    """
    keys, values = keys_values
    num_groups = spec.num_heads // spec.num_kv_heads
    batch, rows = group.tables.shape[0], num_groups * group.num_new
    q = q.view(batch, group.num_new, spec.num_kv_heads, num_groups, spec.head_dim)
    q = q.permute(0, 2, 3, 1, 4).reshape(batch, spec.num_kv_heads, rows, spec.head_dim)
    mask = group.mask(spec)
    if spec.softcap or spec.alibi is not None or sinks is not None:
        out = _attend_unfused(group, q, keys_values, spec, sinks)
    else:
        attend = functional.scaled_dot_product_attention
        out = attend(q, keys, values, attn_mask=mask, scale=spec.scale)
    out = out.view(batch, spec.num_kv_heads, num_groups, group.num_new, values.shape[-1])
    return out.permute(0, 3, 1, 2, 4).reshape(batch * group.num_new, -1)


def _attend_unfused(
    group: GatheredGroup, q: torch.Tensor, keys_values: tuple[torch.Tensor, ...],
    spec: AttentionSpec, sinks: torch.Tensor | None,
) -> torch.Tensor:  # fmt: skip
    """Attend in float32 with what fused kernels do not support: capped scores, ALiBi, sinks."""
    keys, values = keys_values
    num_groups = spec.num_heads // spec.num_kv_heads
    scores = q.float() @ keys.float().transpose(2, 3) * spec.scale
    if spec.softcap:
        scores = torch.tanh(scores / spec.softcap) * spec.softcap
    if spec.alibi is not None:
        slopes = alibi_slopes(spec.alibi, q.device).view(-1, num_groups, 1, 1)
        bias = slopes * group.distances()[:, None, None]  # [B, kv_heads, groups, num_new, L]
        scores = scores - bias.flatten(2, 3)
    scores = scores.masked_fill(~group.mask(spec), -torch.inf)
    if sinks is not None:
        rows = sinks.float().view(spec.num_kv_heads, num_groups, 1).expand(-1, -1, group.num_new)
        column = rows.flatten(1)[None, :, :, None].expand(len(scores), -1, -1, -1)
        scores = torch.cat([scores, column], -1)
    weights = scores.softmax(-1)[..., : keys.shape[2]]
    return weights.to(values.dtype) @ values
