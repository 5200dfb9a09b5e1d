"""Attention over a paged cache in PyTorch, by what every device has: gather, matmul, softmax.

Sequences with equally many new tokens are computed together: all that decode in one go, padded to
the longest of them.  The keys and values of a sequence are gathered from their blocks in every
step; there is no kernel that reads them in place, so long contexts cost bandwidth.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch.nn import functional

from mindspore_serving.llm.runtimes.base import AttentionSpec
from mindspore_serving.llm.runtimes.layout import Layout, Span

LONGEST_BATCHED = 16  # new tokens up to which sequences share a batch, padding and all
Upload = Callable[[object], torch.Tensor]  # an array of indices -> int64 on the device


@dataclass(frozen=True, slots=True)
class Group:
    """Sequences with `num_new` new tokens each.  Shapes: B sequences, L longest length."""

    tokens: torch.Tensor  # [B * num_new], of the step's tokens
    tables: torch.Tensor  # [B, blocks], padded with 0
    lengths: torch.Tensor  # [B]
    num_new: int
    longest: int
    visible: dict[tuple[int, int], torch.Tensor] = field(default_factory=dict)  # by window, heads

    def distances(self) -> torch.Tensor:
        """[B, num_new, L]: how far back a key lies; negative is the future, or padding."""
        device = self.lengths.device
        keys = torch.arange(self.longest, device=device)
        queries = torch.arange(self.num_new, device=device)[None] + (
            self.lengths[:, None] - self.num_new
        )
        return queries[:, :, None] - keys

    def mask(self, window: int, num_groups: int) -> torch.Tensor:
        """[B, 1, num_groups * num_new, L]: what a query sees; the same in every layer."""
        mask = self.visible.get((window, num_groups))
        if mask is None:
            distances = self.distances()
            mask = distances >= 0
            if window:
                mask &= distances < window
            mask = mask.repeat(1, num_groups, 1)[:, None]
            self.visible[window, num_groups] = mask
        return mask


def grouped(layout: Layout, upload: Upload) -> tuple[Group, ...]:
    """The groups of a step; a sequence with many new tokens is one by itself."""
    spans: dict[tuple[int, int], list[Span]] = defaultdict(list)
    for index, span in enumerate(layout.spans):
        num_new = span.end - span.begin
        spans[num_new, 0 if num_new <= LONGEST_BATCHED else index].append(span)
    return tuple(_group(members, upload) for members in spans.values())


def _group(spans: Sequence[Span], upload: Upload) -> Group:
    tables = np.zeros((len(spans), max(len(span.blocks) for span in spans)), np.int64)
    for row, span in zip(tables, spans, strict=True):
        row[: len(span.blocks)] = span.blocks
    lengths = np.array([span.length for span in spans])
    return Group(
        tokens=upload(np.concatenate([np.arange(span.begin, span.end) for span in spans])),
        tables=upload(tables),
        lengths=upload(lengths),
        num_new=spans[0].end - spans[0].begin,
        longest=int(lengths.max()),
    )


class PagedCache:
    """Keys and values of every layer, [num_blocks, block_size, kv_heads, head_dim] each."""

    def __init__(
        self, shape: tuple[int, int, int, int], num_layers: int, *, dtype: torch.dtype, device: str
    ) -> None:
        def empty() -> torch.Tensor:
            # Zeros: what is masked is multiplied by 0, and whatever lies there must be finite.
            return torch.zeros(shape, dtype=dtype, device=device)

        self.layers = [(empty(), empty()) for _ in range(num_layers)]

    def copy(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """Blocks `source` to `target`, all read before any is written."""
        for keys, values in self.layers:
            keys[target] = keys[source]
            values[target] = values[source]

    def write(
        self, layer: int, slots: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
    ) -> None:
        """`keys`, `values`: [T, kv_heads, head_dim]."""
        for cache, new in zip(self.layers[layer], (keys, values), strict=True):
            cache.flatten(0, 1)[slots] = new.to(cache.dtype)

    def read(
        self, layer: int, group: Group, dtype: torch.dtype
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """[B, kv_heads, L, head_dim] twice."""
        keys, values = (
            cache[group.tables].flatten(1, 2)[:, : group.longest].transpose(1, 2).to(dtype)
            for cache in self.layers[layer]
        )
        return keys, values


def attend(
    group: Group, q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, spec: AttentionSpec
) -> torch.Tensor:
    """`q` [B * num_new, heads * head_dim] over [B, kv_heads, L, head_dim]; shaped as `q`.

    The heads that share a key are put side by side as if they were queries: no key is repeated.
    """
    num_groups = spec.num_heads // spec.num_kv_heads
    batch, rows = group.tables.shape[0], num_groups * group.num_new
    q = q.view(batch, group.num_new, spec.num_kv_heads, num_groups, spec.head_dim)
    q = q.permute(0, 2, 3, 1, 4).reshape(batch, spec.num_kv_heads, rows, spec.head_dim)
    mask = group.mask(spec.window, num_groups)
    if spec.softcap or spec.alibi is not None:
        out = _attend_by_hand(group, q, keys, values, spec)
    else:
        out = functional.scaled_dot_product_attention(
            q, keys, values, attn_mask=mask, scale=spec.scale
        )
    out = out.view(batch, spec.num_kv_heads, num_groups, group.num_new, spec.head_dim)
    return out.permute(0, 3, 1, 2, 4).reshape(batch * group.num_new, -1)


def _attend_by_hand(
    group: Group, q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, spec: AttentionSpec
) -> torch.Tensor:
    """What the fused kernels do not do, in float32: capped scores, ALiBi."""
    num_groups = spec.num_heads // spec.num_kv_heads
    scores = q.float() @ keys.float().transpose(2, 3) * spec.scale
    if spec.softcap:
        scores = torch.tanh(scores / spec.softcap) * spec.softcap
    if spec.alibi is not None:
        slopes = torch.tensor(spec.alibi, device=q.device).view(-1, num_groups, 1, 1)
        bias = slopes * group.distances()[:, None, None]  # [B, kv_heads, groups, num_new, L]
        scores = scores - bias.flatten(2, 3)
    scores = scores.masked_fill(~group.mask(spec.window, num_groups), -torch.inf)
    return scores.softmax(-1).to(values.dtype) @ values
