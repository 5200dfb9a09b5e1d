"""Attention over a paged cache in MindSpore, which has no kernel for either on a CPU.

The cache is in numpy arrays, which are written in place.  Each sequence's keys and values are
gathered from their blocks in every step, and attention is composed of matmul and softmax.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from mindspore_serving.llm.models.ops import AttentionSpec
from mindspore_serving.llm.runtimes.layout import Indices, Layout, TokenSpan
from mindspore_serving.llm.runtimes.mindspore.operators import Operators, tensor
from mindspore_serving.llm.runtimes.pages import in_pages, release_rows

Tensor: TypeAlias = Any  # a mindspore.Tensor
F32: TypeAlias = npt.NDArray[np.float32]
HIDDEN = np.float32(-1e30)  # added to the score of a masked key


class MindSporeCache:
    """Keys and values of layers, each [num_blocks, block_size, kv_heads, head_dim].

    `heads` has the last two sizes of each layer.
    """

    def __init__(self, blocks: tuple[int, int], heads: Mapping[int, tuple[int, int]]) -> None:
        def zeros(layer: int) -> F32:
            return in_pages((*blocks, *heads[layer]), np.float32)

        self.layers = {layer: (zeros(layer), zeros(layer)) for layer in heads}

    def copy(self, source: Indices, target: Indices) -> None:
        """Copy blocks `source` to `target`; all are read before any is written."""
        for keys, values in self.layers.values():
            keys[target] = keys[source]
            values[target] = values[source]

    def release(self, blocks: Sequence[int]) -> None:
        """Return the memory of `blocks` to the system."""
        for keys, values in self.layers.values():
            release_rows(keys, blocks)
            release_rows(values, blocks)

    def write(self, layer: int, slots: Indices, keys: F32, values: F32) -> None:
        """Write `keys` and `values`, [T, kv_heads * head_dim], to the slots of a layer."""
        for cache, new in zip(self.layers[layer], (keys, values), strict=True):
            heads = cache.shape[2:]
            cache.reshape(-1, *heads)[slots] = new.reshape(-1, *heads)

    def read(self, layer: int, span: TokenSpan) -> tuple[F32, F32]:
        """Return a sequence's keys and values, [length, kv_heads, head_dim] each."""
        keys, values = (
            cache[span.blocks].reshape(-1, *cache.shape[2:])[: span.length]
            for cache in self.layers[layer]
        )
        return keys, values


@dataclass(slots=True)
class MindSporePass:
    """The step being computed; masks are shared by layers of the same kind."""

    layout: Layout
    _masks: dict[tuple[int, AttentionSpec], Tensor] = field(default_factory=dict)

    def mask(self, span: TokenSpan, spec: AttentionSpec) -> Tensor:
        """Return the bias of the scores of `span`, [1 or kv_heads, groups * num_new, length]."""
        mask = self._masks.get((span.begin, spec))
        if mask is None:
            mask = self._masks[span.begin, spec] = tensor(_bias(span, spec))
        return mask


def _bias(span: TokenSpan, spec: AttentionSpec) -> F32:
    distances = np.arange(span.start, span.length)[:, None] - np.arange(span.length)
    is_hidden = distances < 0
    if spec.window:
        is_hidden |= distances >= spec.window
    num_groups = spec.num_heads // spec.num_kv_heads
    bias: F32 = np.where(is_hidden, HIDDEN, np.float32(0))
    if spec.alibi is None:
        return np.tile(bias, (1, num_groups, 1))
    slopes = np.asarray(spec.alibi, np.float32)[:, None, None]
    bias = bias - slopes * distances.astype(np.float32)
    return bias.reshape(spec.num_kv_heads, -1, span.length)


@dataclass(frozen=True, slots=True)
class Past:
    """Keys and values of one sequence with its new tokens, [length, kv_heads, head_dim] each.

    `sinks` are scores, [heads], or None.
    """

    keys: F32
    values: F32
    mask: Tensor
    sinks: Tensor | None = None


def attend(op: Operators, q: Tensor, past: Past, spec: AttentionSpec) -> Tensor:
    """Attend with one sequence's `q`, [num_new, heads * head_dim], over `past`.

    The heads that share a key are stacked as if they were queries.
    """
    num_new, kv_heads, dim = q.shape[0], spec.num_kv_heads, spec.head_dim
    num_groups = spec.num_heads // kv_heads
    q = q.reshape(num_new, kv_heads, num_groups, dim)
    q = q.transpose(1, 2, 0, 3).reshape(kv_heads, num_groups * num_new, dim)
    scores = op.matmul(q, tensor(past.keys.transpose(1, 2, 0))) * spec.scale
    if spec.softcap:
        scores = op.tanh(scores / spec.softcap) * spec.softcap
    scores = scores + past.mask
    if past.sinks is None:
        weights = op.softmax(scores)
    else:
        sinks = np.repeat(past.sinks.asnumpy().reshape(kv_heads, num_groups), num_new, 1)
        weights = op.softmax(op.cat([scores, tensor(sinks[..., None])], -1))[..., :-1]
    out = op.matmul(weights, tensor(past.values.transpose(1, 0, 2)))
    out = out.reshape(kv_heads, num_groups, num_new, dim)
    return out.transpose(2, 0, 1, 3).reshape(num_new, -1)
